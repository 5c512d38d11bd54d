"""From a request to ids: what is refused before any text is cut into tokens."""

from __future__ import annotations

import pytest

from strata_engine.chat import ChatRequest, Message, TokenRequest
from strata_engine.errors import ContextExceeded
from strata_engine.runtime.prompt import Limits, make_prompt
from strata_engine.text.base import TextRules
from strata_engine.text.template import ChatTemplate
from strata_engine.text.tokenizer import from_gguf
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, tokenizer_metadata

LIMITS = Limits(frozenset(), 300, 64)


@pytest.fixture(scope="module")
def tokenizer():
    made = from_gguf(tokenizer_metadata(300))
    assert made is not None
    return made


@pytest.fixture
def rules(tokenizer):
    return TextRules(tokenizer, ChatTemplate(CHAT_TEMPLATE, tokenizer))


def chat(*texts: str) -> ChatRequest:
    return ChatRequest(tuple(Message.of("assistant" if n % 2 else "user", text) for n, text in enumerate(texts)))


@pytest.mark.parametrize("form", [chat, lambda text: TokenRequest(text=text)], ids=["chat", "raw"])
def test_a_hopelessly_long_text_is_refused_before_it_is_tokenised(tokenizer, rules, form, monkeypatch):
    def never(*args):
        raise AssertionError("tokenised")

    monkeypatch.setattr(tokenizer, "_encode_plain", never)
    longest = max(len(tokenizer.piece(i)) for i in range(300))
    with pytest.raises(ContextExceeded, match=f"at least {LIMITS.context_tokens} tokens") as caught:
        make_prompt(form("x" * (LIMITS.context_tokens * longest)), rules, LIMITS)
    assert caught.value.details == {"n_prompt_tokens": LIMITS.context_tokens, "n_ctx": LIMITS.context_tokens}


def test_text_that_a_template_may_drop_does_not_count(rules):
    blanks = " " * 10_000
    assert make_prompt(chat("a", "thoughts " * 2000, f"{blanks}b{blanks}"), rules, LIMITS).ids


@pytest.mark.parametrize("text", ["the the the", "x", "", "é😀", "user assistant system " * 40, "\u0301" * 9])
def test_the_bound_is_never_above_the_count(tokenizer, text):
    assert tokenizer.least_tokens(len(text)) <= len(tokenizer.encode(text))
    assert tokenizer.least_tokens(10_000) > 0


@pytest.mark.parametrize("size", [2047, 2048, 9000])
def test_long_texts_give_the_ids_of_short_ones(tokenizer, size):
    text = ("the user, in the end: 12 é😀\n" * 400)[:size]
    assert tokenizer.encode(text) == tokenizer._core.encode(text, add_special_tokens=False).ids
