"""From a request to what the scheduler and the reader need: ids, ids that end the answer, and where the reply starts.

Runs in the caller's thread: rendering a long conversation must not hold up the sequences that are being generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.core.pictures import Pictures
from strata_engine.errors import ContextExceeded, RequestRefused
from strata_engine.events import Notice, Reasoning, Text, Token
from strata_engine.runtime.sight import Eye
from strata_engine.text.base import ReplyReader, TextRules, Tokenizer
from strata_engine.text.reader import StreamReader
from strata_engine.text.reasoning import ThinkSplitter
from strata_engine.text.stop import StopFilter


@dataclass(frozen=True)
class Prompt:
    """Ids to run and ids that end the answer. `state` as in text.base.Rendered; None for a raw prompt."""

    ids: tuple[int, ...]
    eos: frozenset[int]
    state: str | None = None
    notices: tuple[Notice, ...] = ()
    pictures: Pictures | None = None


@dataclass(frozen=True)
class Limits:
    """Of one loaded model: the checkpoint's own end ids, rows of its output head, longest sequence."""

    eos: frozenset[int]
    vocab_size: int
    context_tokens: int


def make_prompt(
    request: ChatRequest | TokenRequest, rules: TextRules, limits: Limits, eye: Eye | None = None
) -> Prompt:
    """`eye`: of a model that sees.

    Raises RequestRefused; ContextExceeded only for what costs much to make ready: a text that is hopelessly long
    (before it is tokenised), images with too many tokens (before their pixels are read).
    """
    eos, vocab_size = limits.eos, limits.vocab_size
    _refuse_hopeless(request, rules.tokenizer, limits.context_tokens)
    if isinstance(request, ChatRequest):
        return _chat_prompt(request, rules, limits, eye)
    ids = _raw_ids(request, rules.tokenizer)
    wrong = next((i for i in ids if not 0 <= i < vocab_size), None)
    if wrong is not None:
        text = f"token id {wrong} is outside the vocabulary (0..{vocab_size - 1})"
        raise RequestRefused(text, details={"token": wrong, "vocab_size": vocab_size})
    if not ids:
        raise RequestRefused("the prompt is empty and the model has no start token", hint="give at least one token")
    return Prompt(tuple(ids), eos)


def _refuse_hopeless(request: ChatRequest | TokenRequest, tokenizer: Tokenizer | None, context_tokens: int) -> None:
    """Tokenising 30 MB takes half a minute: refuse a text that cannot fit even if every token were the longest one."""
    if isinstance(request, TokenRequest):
        chars = len(request.text or "")
    else:  # what every template keeps: blanks around a message and thoughts of earlier replies may be dropped
        kept = [m for m in request.messages if m.role != "assistant"]
        chars = sum(len(part.text.strip()) for m in kept for part in m.parts)
    if tokenizer is None or chars < context_tokens:
        return
    least = tokenizer.least_tokens(chars)
    if least >= context_tokens:
        raise ContextExceeded(
            f"the prompt of {chars} characters has at least {least} tokens, the context holds {context_tokens}",
            hint="shorten the prompt or load the model with a larger context (--ctx)",
            details={"n_prompt_tokens": least, "n_ctx": context_tokens},
        )


def _chat_prompt(request: ChatRequest, rules: TextRules, limits: Limits, eye: Eye | None) -> Prompt:
    images = [part for message in request.messages for part in message.parts if part.kind == "image"]
    if images and eye is None:
        raise RequestRefused("the request holds an image, and this model has no vision", hint="send text only")
    if rules.chat is None:
        lack = "no tokenizer" if rules.tokenizer is None else "no chat template"
        raise RequestRefused(
            f"the model has {lack}, so it cannot chat",
            hint="send a completion with token ids"
            if rules.tokenizer is None
            else "send a completion, or give a template",
        )
    rendered = rules.chat.render(request)
    if not rendered.ids:
        raise RequestRefused("the conversation renders to an empty prompt")
    ids, pictures = rendered.ids, None
    if eye and images:
        ids, pictures = eye.place(rendered.ids, images, limits.context_tokens)
    return Prompt(tuple(ids), rendered.stop_ids | limits.eos, rendered.state, rendered.notices, pictures)


def _raw_ids(request: TokenRequest, tokenizer: Tokenizer | None) -> Sequence[int]:
    if (request.text is None) == (request.ids is None):
        raise RequestRefused("a raw prompt is either text or token ids, exactly one of them")
    if request.ids is not None:
        return request.ids
    if tokenizer is None:
        raise RequestRefused("the model has no tokenizer, so it takes token ids only")
    ids = tokenizer.encode(request.text or "", special=True)
    bos = tokenizer.bos_id
    if bos is not None and ((tokenizer.add_bos and ids[:1] != [bos]) or not ids):
        ids = [bos, *ids]
    return ids


class IdReader:
    """The ReplyReader of a model without a tokenizer: every token leaves at once, as an empty text."""

    stopped: str | None = None

    def feed(self, tokens: Sequence[Token]) -> list[Text | Reasoning]:
        """One event a call."""
        return [Text("", tuple(tokens))] if tokens else []

    def close(self) -> tuple[list[Text | Reasoning], tuple[Token, ...]]:
        """Nothing is ever held back."""
        return [], ()


def make_reader(prompt: Prompt, rules: TextRules, params: SamplingParams) -> ReplyReader:
    """A reader for the answer to `prompt`. Raises RequestRefused for stop strings without a tokenizer."""
    tokenizer = rules.tokenizer
    if tokenizer is None:
        if any(params.stop):
            raise RequestRefused("stop strings need a tokenizer, and the model has none", hint="use stop_token_ids")
        return IdReader()
    if prompt.state is not None and rules.chat is not None:
        return rules.chat.reader(prompt.state, params.stop, params.include_stop)
    stops = StopFilter(params.stop, params.include_stop)
    return StreamReader(tokenizer.piece, tokenizer.is_control, ThinkSplitter(tags=False), stops)
