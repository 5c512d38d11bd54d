"""What the engine and the front ends need from a model's text rules: Tokenizer, ChatFormat, ReplyReader. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strata_engine.chat import ChatRequest
from strata_engine.events import Notice, Reasoning, Text, Token


class Tokenizer(Protocol):
    """Text <-> ids. Byte-exact: the bytes of all ids joined are the text."""

    vocab_size: int
    bos_id: int | None
    eos_ids: frozenset[int]  # every id that ends a turn
    add_bos: bool

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids without BOS. `special`: control tokens spelled in the text become their ids; else they stay text."""
        ...

    def least_tokens(self, chars: int) -> int:
        """No text of so many characters gives fewer ids. Cheap; 0 when nothing can be said."""
        ...

    def piece(self, token_id: int) -> bytes:
        """The exact bytes of one id; of a control token its spelling."""
        ...

    def is_control(self, token_id: int) -> bool:
        """True for tokens that are not shown (<|im_end|>); False for user-defined ones (<think>)."""
        ...

    def decode(self, ids: Sequence[int], control: bool = True) -> str:
        """Text of ids, invalid bytes as U+FFFD. `control`: spell control tokens too."""
        ...


@dataclass(frozen=True)
class Rendered:
    """A prompt ready to run. `state`: answer | thinking | maybe-thinking (where the reply starts)."""

    ids: tuple[int, ...]
    text: str
    stop_ids: frozenset[int]
    state: str = "answer"
    notices: tuple[Notice, ...] = ()


class ReplyReader(Protocol):
    """Generated tokens -> events, independent of how the token stream is cut."""

    @property
    def stopped(self) -> str | None:
        """The stop string that matched; nothing more is to be fed then."""
        ...

    def feed(self, tokens: Sequence[Token]) -> list[Text | Reasoning]:
        """Text that may leave now. Tokens whose text is held back ride on the next event."""
        ...

    def close(self) -> tuple[list[Text | Reasoning], tuple[Token, ...]]:
        """The rest at the end of generation (held-back text is released), and tokens that never gave text."""
        ...


class ChatFormat(Protocol):
    """A model's conversation rules."""

    def render(self, request: ChatRequest) -> Rendered:
        """Raises RequestRefused when the conversation cannot be rendered."""
        ...

    def reader(self, state: str, stop: Sequence[str] = (), include_stop: bool = False) -> ReplyReader:
        """A reader for one reply. Stop strings apply to the answer, not to the thinking."""
        ...


@dataclass(frozen=True)
class TextRules:
    """Everything textual about one model. `tokenizer` None: token-id prompts only (no tokenizer in it)."""

    tokenizer: Tokenizer | None
    chat: ChatFormat | None
    template_source: str = ""
    notices: tuple[Notice, ...] = field(default_factory=tuple)
