"""Sequences of a model with a tokenizer: chat, raw text, stop strings, and the ids behind the text."""

from __future__ import annotations

import pytest

from strata_engine.chat import ChatRequest, Message, Part, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.errors import RequestRefused
from strata_engine.events import Reasoning, Text
from tests.support.engines import finish_of, ids_of, tiny_engine
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import gguf_metadata, gguf_tensors, tiny_model

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=24)
QUESTION = ChatRequest((Message.of("user", "the thing in a"),))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    model = tiny_model("llama", vocab_size=300)
    path = tmp_path_factory.mktemp("talking") / "talking.gguf"
    write_gguf(path, "llama", gguf_metadata(model), gguf_tensors(model, "llama"), tokenizer=True)
    with tiny_engine(path) as opened:
        yield opened
        opened.check()


def text_of(events) -> str:
    return "".join(e.text for e in events if isinstance(e, Text))


def test_a_chat_is_its_rendered_prompt_run_as_ids(engine):
    rendered = engine.parts.rules.chat.render(QUESTION)
    chat = ids_of(list(engine.submit(QUESTION, GREEDY)))
    assert chat == ids_of(list(engine.submit(TokenRequest(ids=rendered.ids), GREEDY)))
    assert len(chat) == 24


def test_the_text_is_that_of_the_ids_and_every_id_comes_once(engine):
    events = list(engine.submit(TokenRequest(text="the thing"), GREEDY))
    tokenizer = engine.parts.rules.tokenizer
    assert text_of(events) == tokenizer.decode(ids_of(events), control=False)
    assert len(ids_of(events)) == finish_of(events).usage.completion_tokens == 24


def test_raw_text_is_tokenised_with_its_control_tokens(engine):
    text = "<|im_start|>user\nthe"
    ids = engine.parts.rules.tokenizer.encode(text, special=True)
    assert ids[0] == 1
    by_text = list(engine.submit(TokenRequest(text=text), GREEDY))
    assert ids_of(by_text) == ids_of(list(engine.submit(TokenRequest(ids=tuple(ids)), GREEDY)))
    assert finish_of(by_text).usage.prompt_tokens == len(ids)


def test_an_empty_text_starts_from_the_start_token(engine):
    assert finish_of(list(engine.submit(TokenRequest(text=""), GREEDY))).usage.prompt_tokens == 1


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_answer_where_it_stands(engine, include):
    whole = text_of(list(engine.submit(TokenRequest(text="the thing"), GREEDY)))
    stop = whole[7:10]
    at = whole.index(stop)
    wanted = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=24, stop=("never", stop), include_stop=include)
    events = list(engine.submit(TokenRequest(text="the thing"), wanted))
    assert text_of(events) == whole[: at + len(stop) * include]
    assert (finish_of(events).reason, finish_of(events).stop_match) == ("stop", stop)
    assert engine.load_numbers().kv_pages_used == 0


def test_text_held_back_for_a_stop_string_is_released_at_the_end(engine):
    whole = text_of(list(engine.submit(TokenRequest(text="the thing"), GREEDY)))
    unfinished = whole[-2:] + "never comes"
    wanted = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=24, stop=(unfinished,))
    events = list(engine.submit(TokenRequest(text="the thing"), wanted))
    assert text_of(events) == whole
    assert finish_of(events).reason == "length"


def test_thinking_tokens_are_counted_apart(engine):
    """The prompt opens the thought, so everything the tiny model writes is thinking."""
    thinking = "{% for m in messages %}{{ m['content'] }}{% endfor %}<think>\n"
    path = engine.parts.files.files[0].path
    with tiny_engine(path, chat_template=thinking) as other:
        events = list(other.submit(QUESTION, GREEDY))
    thoughts = [e for e in events if isinstance(e, Reasoning)]
    assert thoughts and text_of(events) == ""
    assert 0 < finish_of(events).usage.reasoning_tokens <= 24


def test_an_image_is_refused(engine):
    with pytest.raises(RequestRefused, match="no vision"):
        engine.submit(ChatRequest((Message("user", (Part("text", "look"), Part("image", data=b"x"))),)), GREEDY)


def test_a_model_with_a_template_can_chat(engine):
    from strata_engine.runtime.service import _describe

    assert _describe(engine).capabilities == ("completion", "chat")
