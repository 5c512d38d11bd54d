"""Bodies -> Call: every field's good and bad values, without a socket."""

from __future__ import annotations

import pytest

from strata_cli.server.errors import BadField
from strata_cli.server.images import fetched
from strata_cli.server.openai import chat, completions
from strata_engine.chat import ToolCall
from strata_engine.config import SamplingParams
from strata_engine.runtime.api import LoadedModel

MESSAGES = [{"role": "user", "content": "hi"}]
MODEL = LoadedModel(
    "m", "m", "u/m", "llama", "Q8_0", 1, 512, 512, 100, 4, 1, "cpu", (), 0.0,
    SamplingParams(temperature=0.3, top_k=7, stop=("<end>",)),
)  # fmt: skip


def read(**more):
    return chat.read({"messages": MESSAGES, **more})


def params(**more) -> SamplingParams:
    return read(**more).sequences(MODEL)[0][1]


def raw(**more):
    return completions.read({"prompt": "x", **more})


def test_absent_fields_take_the_models_defaults():
    assert params() == MODEL.defaults


def test_null_fields_are_absent():
    names = """
        temperature top_p top_k min_p max_tokens max_completion_tokens stop seed tools tool_choice
        response_format logit_bias n stream stream_options user logprobs top_logprobs frequency_penalty
        presence_penalty repeat_penalty repetition_penalty modalities stop_token_ids ignore_eos min_tokens
        include_stop_str_in_output reasoning_effort audio chat_template_kwargs continue_final_message
        add_generation_prompt functions grammar
    """
    call = read(**dict.fromkeys(names.split()))
    assert call.sequences(MODEL)[0][1] == MODEL.defaults
    assert call.ignored == ()


@pytest.mark.parametrize(("field", "value", "name", "wanted"), [
    ("temperature", 0, "temperature", 0.0), ("top_p", 1, "top_p", 1.0), ("top_k", -1, "top_k", 0),
    ("top_k", 5.0, "top_k", 5), ("min_p", 0.1, "min_p", 0.1), ("max_tokens", 9, "max_tokens", 9),
    ("max_tokens", -1, "max_tokens", None), ("max_tokens", 2**40, "max_tokens", 2**31 - 1),
    ("repetition_penalty", 1.1, "repeat_penalty", 1.1), ("repeat_penalty", 1.2, "repeat_penalty", 1.2),
    ("repeat_last_n", -1, "penalty_last_n", -1), ("presence_penalty", -2, "presence_penalty", -2.0),
    ("frequency_penalty", 2, "frequency_penalty", 2.0), ("seed", 5, "seed", 5), ("seed", -1, "seed", None),
    ("min_tokens", 3, "min_tokens", 3), ("ignore_eos", True, "ignore_eos", True),
    ("include_stop_str_in_output", True, "include_stop", True), ("stop_token_ids", [1, 2], "stop_token_ids", (1, 2)),
    ("stop", "a", "stop", ("<end>", "a")), ("stop", ["", "a", "a"], "stop", ("<end>", "a")),
    ("stop", [], "stop", ("<end>",)), ("logit_bias", {"5": -1000}, "logit_bias", ((5, -100.0),)),
    ("logit_bias", [[5, 1e9], ["6", 1]], "logit_bias", ((5, 100.0), (6, 1.0))),
])  # fmt: skip
def test_a_field_reaches_the_engine(field, value, name, wanted):
    assert getattr(params(**{field: value}), name) == wanted


@pytest.mark.parametrize(("field", "value"), [
    ("temperature", "hot"), ("temperature", True), ("temperature", -0.1), ("temperature", 1e400), ("top_p", 1.1),
    ("top_p", -0.1), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("max_tokens", 0), ("max_tokens", -2),
    ("max_tokens", "9"), ("max_completion_tokens", 0), ("presence_penalty", 2.1), ("frequency_penalty", -3),
    ("repetition_penalty", 0), ("seed", 1.5), ("seed", 2**65), ("stop", 5), ("stop", [1]), ("stop", ["x"] * 65),
    ("stop_token_ids", [1.5]), ("stop_token_ids", 5), ("stop_token_ids", [True]), ("ignore_eos", 1), ("min_tokens", -1),
    ("n", 0), ("n", 129), ("n", "2"), ("logit_bias", 5), ("logit_bias", [[1]]), ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": "x"}), ("logit_bias", {"-1": 1}), ("logit_bias", [[1, True]]), ("logprobs", 5),
    ("top_logprobs", 3), ("stream", "yes"), ("stream_options", []), ("model", 5), ("tools", {}), ("messages", []),
    ("chat_template_kwargs", "x"), ("reasoning_effort", "huge"), ("reasoning_effort", 3), ("return_token_ids", "x"),
    ("continue_final_message", True), ("add_generation_prompt", False), ("parallel_tool_calls", "x"),
])  # fmt: skip
def test_a_wrong_value_is_refused_by_name(field, value):
    with pytest.raises(BadField) as caught:
        read(**{field: value})
    assert caught.value.details["param"] == field
    assert caught.value.http_status == 400


@pytest.mark.parametrize(("field", "value"), [
    ("tools", [{"type": "function", "function": {"name": "f"}}]), ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("functions", [{"name": "f"}]),
    ("function_call", "auto"), ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
    ("response_format", {"type": "sound"}), ("audio", {"voice": "x"}), ("modalities", ["text", "audio"]),
    ("grammar", "root ::= x"), ("guided_json", {"type": "object"}), ("prediction", {"type": "content"}),
    ("web_search_options", {"a": 1}), ("best_of", 2), ("reasoning_format", "none"), ("use_beam_search", True),
    ("typical_p", 0.5), ("skip_special_tokens", False), ("thinking_token_budget", 5), ("lora", [1]),
])  # fmt: skip
def test_what_is_known_but_not_there_yet_is_refused_not_ignored(field, value):
    with pytest.raises(BadField) as caught:
        read(**{field: value})
    assert caught.value.details["param"] == field
    assert caught.value.code == "unsupported_value"
    assert "not supported yet" in caught.value.message


@pytest.mark.parametrize(("field", "value"), [
    ("tools", []), ("tool_choice", "auto"), ("tool_choice", "none"), ("response_format", {"type": "text"}),
    ("functions", []), ("function_call", "none"), ("modalities", ["text"]), ("best_of", 1), ("grammar", ""),
    ("user", "me"), ("metadata", {"a": "b"}), ("store", True), ("service_tier", "auto"), ("cache_prompt", False),
    ("parallel_tool_calls", True), ("reasoning_format", "auto"), ("skip_special_tokens", True),
])  # fmt: skip
def test_values_that_ask_for_nothing_are_taken(field, value):
    assert read(**{field: value}).ignored == ()


def test_tools_that_may_not_be_called_are_listed_as_ignored():
    call = read(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
    assert call.ignored == ("tools",)
    assert call.requests[0].tools == ()


def test_the_newer_name_of_the_length_wins():
    assert params(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_ids_outside_the_vocabulary_are_refused():
    for body in ({"logit_bias": {"100": 1}}, {"stop_token_ids": [100]}, {"stop_token_ids": [-1]}):
        with pytest.raises(BadField, match="outside the vocabulary"):
            read(**body).sequences(MODEL)
    with pytest.raises(BadField, match="prompt: token id 100"):
        completions.read({"prompt": [1, 100]}).sequences(MODEL)


def test_logprobs_need_both_fields():
    assert params(logprobs=True).logprobs == 0
    assert params(logprobs=True, top_logprobs=20).logprobs == 20
    assert params(logprobs=False).logprobs is None
    for wrong in ({"logprobs": True, "top_logprobs": 21}, {"logprobs": False, "top_logprobs": 1}):
        with pytest.raises(BadField) as caught:
            read(**wrong)
        assert caught.value.details["param"] == "top_logprobs"


@pytest.mark.parametrize(("more", "wanted"), [
    ({}, None), ({"reasoning_effort": "none"}, False), ({"reasoning_effort": "minimal"}, "low"),
    ({"reasoning_effort": "high"}, "high"), ({"reasoning": {"effort": "medium"}}, "medium"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, False),
])  # fmt: skip
def test_thinking_is_asked_for_in_several_ways(more, wanted):
    assert read(**more).requests[0].thinking == wanted


def test_template_arguments_reach_the_template():
    assert read(chat_template_kwargs={"a": 1}).requests[0].template_kwargs == {"a": 1}


def test_a_reply_can_be_continued():
    messages = [*MESSAGES, {"role": "assistant", "content": "I"}]
    assert (
        chat.read({"messages": messages, "continue_final_message": True, "add_generation_prompt": False})
        .requests[0]
        .continue_final
    )
    with pytest.raises(BadField, match="add_generation_prompt"):
        chat.read({"messages": messages, "continue_final_message": True, "add_generation_prompt": True})


def test_parts_are_joined_and_developer_means_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = chat.read({"messages": [{"role": "developer", "content": parts}, *MESSAGES]})
    assert [(m.role, m.text) for m in call.requests[0].messages] == [("system", "ab"), ("user", "hi")]


def test_calls_of_the_past_are_kept_as_they_were_sent():
    past = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"b": 2}}},
    ]}  # fmt: skip
    call = chat.read({"messages": [*MESSAGES, past, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]})
    _, assistant, tool = call.requests[0].messages
    assert assistant.tool_calls == (ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", {"b": 2}))
    assert (assistant.parts, assistant.reasoning, tool.tool_call_id) == ((), "hm", "c1")


def test_an_old_style_call_of_the_past_is_read():
    past = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert chat.read({"messages": [*MESSAGES, past]}).requests[0].messages[1].tool_calls == (ToolCall("", "f", "{}"),)


@pytest.mark.parametrize(("messages", "param"), [
    (None, "messages"), ("hello", "messages"), ([123], "messages.0"), ([{}], "messages.0.role"),
    ([{"role": 123, "content": "x"}], "messages.0.role"), ([{"role": "narrator", "content": "x"}], "messages.0.role"),
    ([{"role": "user", "content": 123}], "messages.0.content"), ([{"role": "user"}], "messages.0.content"),
    ([{"role": "user", "content": None}], "messages.0.content"),
    ([{"role": "user", "content": ["x"]}], "messages.0.content.0"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages.0.content.0.type"),
    ([{"role": "user", "content": [{}]}], "messages.0.content.0.type"),
    ([*MESSAGES, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], "messages"),
    ([{"role": "assistant", "tool_calls": {}}], "messages.0.tool_calls"),
    ([{"role": "assistant", "tool_calls": [1]}], "messages.0.tool_calls.0"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages.0.tool_calls.0.function"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages.0.tool_calls.0.function.name"),
    ([{"role": "assistant", "tool_calls": [{"type": "custom"}]}], "messages.0.tool_calls.0.type"),
])  # fmt: skip
def test_a_wrong_message_is_refused_by_place(messages, param):
    with pytest.raises(BadField) as caught:
        chat.read({"messages": messages})
    assert caught.value.details["param"] == param


PIXEL = "iVBORw0KGgo="


@pytest.mark.parametrize("part", [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}},
    {"type": "image_url", "image_url": f"data:image/png;base64,{PIXEL}"}, {"type": "image_url", "image_url": PIXEL},
    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}, {"type": "image", "image": PIXEL},
    {"type": "image_url", "image_url": "data:image/png,%89PNG%0D%0A%1A%0A"},
])  # fmt: skip
def test_inline_images_are_read(part):
    (message,) = chat.read({"messages": [{"role": "user", "content": [part]}]}).requests[0].messages
    assert message.parts[0].kind == "image"
    assert message.parts[0].data == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("link", ["http://169.254.169.254/", "https://x/y.png"])
def test_links_wait_for_the_server_to_allow_them(link):
    part = {"type": "image_url", "image_url": link}
    request = chat.read({"messages": [{"role": "user", "content": [part]}]}).requests[0]
    assert request.messages[0].parts[0].text == link
    with pytest.raises(BadField, match="--allow-image-urls") as caught:
        fetched(request, allowed=False)
    assert caught.value.details["param"] == "messages.0.content.0"


@pytest.mark.parametrize(("part", "text"), [
    ({"type": "image_url"}, "is missing"), ({"type": "image_url", "image_url": {"url": 5}}, "is missing"),
    ({"type": "image_url", "image_url": "data:image/png;base64,A?"}, "not valid base64"),
    ({"type": "image_url", "image_url": "data:image/png;base64"}, "without data"),
    ({"type": "image_url", "image_url": "data:image/png;base64,"}, "without bytes"),
    ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "file links are never fetched"),
    ({"type": "image_url", "image_url": {"url": "ftp://x/y.png"}}, "ftp links are never fetched"),
])  # fmt: skip
def test_images_are_refused_with_the_reason(part, text):
    with pytest.raises(BadField, match=text):
        chat.read({"messages": [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize(("prompt", "wanted"), [
    ("x", [("x", None)]), ("", [("", None)]), (["a", "b"], [("a", None), ("b", None)]), ([1, 2], [(None, (1, 2))]),
    ([[1], [2, 3]], [(None, (1,)), (None, (2, 3))]), (["a", [1]], [("a", None), (None, (1,))]),
])  # fmt: skip
def test_prompt_forms(prompt, wanted):
    assert [(r.text, r.ids) for r in completions.read({"prompt": prompt}).requests] == wanted


@pytest.mark.parametrize("prompt", [None, [], 5, {}, [1, "a"], [[]], [["a"]], [1.5], [True], [[1], None]])
def test_wrong_prompts(prompt):
    with pytest.raises(BadField) as caught:
        completions.read({"prompt": prompt})
    assert caught.value.details["param"].startswith("prompt")


def test_completion_fields():
    assert raw(logprobs=3).given["logprobs"] == 3
    assert raw(logprobs=0).given["logprobs"] == 0
    assert raw(logprobs=False).given.get("logprobs") is None
    assert raw(suffix="", best_of=1).ignored == ()
    assert raw(echo=True).echo
    for wrong in ({"logprobs": 21}, {"suffix": "x"}, {"best_of": 3}, {"echo": True, "logprobs": 1}):
        with pytest.raises(BadField):
            raw(**wrong)
    with pytest.raises(BadField, match="1024"):
        completions.read({"prompt": ["x"] * 20, "n": 100})
