"""Odd conversations (tests/vectors/text/template_cases.jsonl) with every kind of chat template."""

from __future__ import annotations

import pytest

from strata_engine.errors import RequestRefused
from strata_engine.text.base import Rendered
from strata_engine.text.check import check_format
from strata_engine.text.template import ChatTemplate
from strata_engine.text.tokenizer import BpeTokenizer
from tests.support.chat_templates import TEMPLATES, request
from tests.support.cutting import cases
from tests.support.text_vocabularies import CHATML, CONTROL, TAGS, small

CASES = cases("template_cases")


def vocabulary(name: str) -> BpeTokenizer:
    """Templates that write a BOS go with a vocabulary that wants one."""
    bos = name in ("alternating", "printing")
    special = {**CHATML, **TAGS, "<s>": CONTROL, "</s>": CONTROL}
    return small(special, bos_token_id=7, eos_token_id=2, add_bos_token=bos)


@pytest.fixture(params=sorted(TEMPLATES))
def form(request: pytest.FixtureRequest) -> tuple[ChatTemplate, BpeTokenizer]:
    tokenizer = vocabulary(request.param)
    return ChatTemplate(TEMPLATES[request.param], tokenizer), tokenizer


def of(ids: tuple[int, ...], tokenizer: BpeTokenizer, spelling: str) -> int:
    return ids.count(tokenizer.specials.all[spelling])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_case_holds(form: tuple[ChatTemplate, BpeTokenizer], case: dict):
    chat, tokenizer = form
    expect = case["expect"]
    if expect["status"] == 400:
        with pytest.raises(RequestRefused, match="role"):
            chat.render(request(case))
        return
    rendered = chat.render(request(case))
    assert [t for t in expect.get("contains", ()) if t not in rendered.text] == []
    assert [t for t in expect.get("not_contains", ()) if t in rendered.text] == []
    assert not any(n.code in ("template-lost", "template-marks") for n in rendered.notices)
    if "turn_markers" in expect:
        assert of(rendered.ids, tokenizer, "<|im_start|>") == turns(expect["turn_markers"], rendered)
    if "bos" in expect:
        assert_one_bos(rendered, tokenizer)
    if "start_state" in expect:
        opened = "<think>" in rendered.text[-40:] and "</think>" not in rendered.text[-40:]
        assert (rendered.state == "thinking") == opened


def turns(expected: int, rendered: Rendered) -> int:
    """The case counts one user turn and the reply's; a template may add a system turn of its own."""
    return expected + rendered.text.startswith("<|im_start|>system\neffort=")


def assert_one_bos(rendered: Rendered, tokenizer: BpeTokenizer) -> None:
    if tokenizer.add_bos:
        assert rendered.ids[0] == tokenizer.bos_id
    assert rendered.ids.count(tokenizer.bos_id) == tokenizer.add_bos


@pytest.mark.parametrize("case", [c for c in CASES if "tools" in c], ids=lambda case: case["id"])
def test_tools_are_never_dropped_in_silence(form: tuple[ChatTemplate, BpeTokenizer], case: dict):
    assert "get_weather" in form[0].render(request(case)).text


@pytest.mark.parametrize("case", [c for c in CASES if c["id"] != "unknown-role"], ids=lambda case: case["id"])
def test_prompt_ids_spell_the_prompt(form: tuple[ChatTemplate, BpeTokenizer], case: dict):
    chat, tokenizer = form
    rendered = chat.render(request(case))
    assert tokenizer.decode(rendered.ids) == rendered.text


def test_the_check_command_finds_nothing_wrong(form: tuple[ChatTemplate, BpeTokenizer]):
    chat, tokenizer = form
    outcomes = check_format(chat, tokenizer)
    assert [(o.id, o.detail) for o in outcomes if not o.passed] == []
    assert {o.id for o in outcomes} >= {c["id"] for c in CASES} - {"tools-unsupported"}


def test_the_check_command_sees_a_template_that_loses_text():
    tokenizer = small(eos_token_id=2)
    chat = ChatTemplate("{{ '<|im_start|>' + messages[-1].content[:5] }}", tokenizer)
    failed = {o.id for o in check_format(chat, tokenizer) if not o.passed}
    assert {"two-system", "forged-turn", "content-parts"} <= failed
