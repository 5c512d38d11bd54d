"""Messages to turns, turns to what one template can take."""

from __future__ import annotations

import json

import pytest

from strata_engine.chat import Message, Part, ToolCall, ToolSpec
from strata_engine.text.conversation import parse_arguments, read_tools, read_turns
from strata_engine.text.template import ChatTemplate
from tests.support.chat_templates import TEMPLATES
from tests.support.text_vocabularies import small


@pytest.mark.parametrize(
    ("sent", "parsed"),
    [
        ('{"city":"Paris"}', {"city": "Paris"}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ("", {}),
        ("  ", {}),
        (None, {}),
        ("null", {}),
        ("{}", {}),
        ("[1]", {"arguments": "[1]"}),
        ([1], {"arguments": "[1]"}),
        ("5", {"arguments": "5"}),
        ('"x"', {"arguments": '"x"'}),
        ('{"city":', {"arguments": '{"city":'}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_arguments_become_an_object(sent: object, parsed: dict):
    assert parse_arguments(sent) == parsed


def test_a_tool_result_is_given_the_name_of_its_call():
    call = Message("assistant", tool_calls=(ToolCall("c1", "f", "{}"),))
    assert read_turns([call, Message("tool", (Part("text", "r"),), tool_call_id="c1")])[1].name == "f"


def test_a_schema_reaches_the_template_unchanged_key_order_included():
    schema = {"type": "object", "properties": {"b": {"type": "array", "items": {"type": "object"}}, "a": {}}}
    given = read_tools([ToolSpec("f", "d", schema)])[0]["function"]
    assert json.dumps(given["parameters"]) == json.dumps(schema)


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("chatml", {"system_role", "repeats"}),
        ("strict", {"system_role", "repeats", "tools", "tool_turns"}),
        ("alternating", set()),
        ("parts", {"wants_parts", "system_role", "repeats"}),
        ("printing", {"repeats", "tools", "tool_turns", "short_ids", "argument_text"}),
        ("effort", {"system_role", "repeats"}),
    ],
)
def test_probes_find_what_a_template_can_take(name: str, traits: set[str]):
    found = ChatTemplate(TEMPLATES[name], small(eos_token_id=2)).traits
    names = ("wants_parts", "system_role", "repeats", "tools", "tool_turns", "short_ids", "argument_text")
    assert {n for n in names if getattr(found, n)} == traits
