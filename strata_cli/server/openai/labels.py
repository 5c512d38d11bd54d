"""How a token is written in log probabilities: its text, its exact bytes, or `token_id:N` without a tokenizer."""

from __future__ import annotations

from typing import Any

from strata_engine.events import Token
from strata_engine.text.base import Tokenizer

_FLOOR = -9999.0  # JSON has no minus infinity


class Labels:
    """Token texts of one model."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def data(self, token_id: int) -> bytes | None:
        """The bytes a token adds to the visible text; None for control tokens and without a tokenizer."""
        if self._tokenizer is None or self._tokenizer.is_control(token_id):
            return None
        return self._tokenizer.piece(token_id)

    def text(self, token_id: int) -> str:
        """The token's text; invalid bytes become U+FFFD."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.piece(token_id).decode("utf-8", "replace")

    def key(self, token_id: int) -> str:
        """Like text, but parts of characters stay apart: bytes:\\xe6\\x97."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        data = self._tokenizer.piece(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def entry(self, token: Token) -> dict[str, Any]:
        """One item of a chat reply's logprobs.content."""
        top = [self._item(number, value) for number, value in token.top]
        return {**self._item(token.id, token.logprob), "top_logprobs": top}

    def _item(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        data = self.data(token_id)
        return {
            "id": token_id,
            "token": self.text(token_id),
            "logprob": finite(logprob),
            "bytes": None if data is None else list(data),
        }


def finite(logprob: float | None) -> float:
    """A value JSON can hold."""
    return _FLOOR if logprob is None or not logprob > _FLOOR else logprob
