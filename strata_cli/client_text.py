"""RemoteTokenizer: a served model's tokenizer over /tokenize and /detokenize, for clients that print token texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


class RemoteTokenizer:
    """The Tokenizer of text/base.py. `ask` posts a body to a path; pieces are kept once known."""

    def __init__(self, ask: Ask, model: str, facts: dict[str, Any]) -> None:
        self._ask, self._model = ask, model
        self.vocab_size: int = facts["vocab_size"]
        self.bos_id: int | None = facts["bos_id"]
        self.eos_ids: frozenset[int] = frozenset(facts["eos_ids"])
        self.add_bos: bool = facts["add_bos"]
        self._known: dict[int, tuple[bytes, bool]] = {}

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids without BOS."""
        body = {"model": self._model, "content": text, "parse_special": special, "add_special": False}
        return self._ask("/tokenize", body)["tokens"]

    def least_tokens(self, chars: int) -> int:
        """0: only the server knows its vocabulary."""
        return 0

    def piece(self, token_id: int) -> bytes:
        """The exact bytes of one id."""
        return self._look(token_id)[0]

    def is_control(self, token_id: int) -> bool:
        """True for tokens that are not shown."""
        return self._look(token_id)[1]

    def decode(self, ids: Sequence[int], control: bool = True) -> str:
        """Text of ids."""
        self._learn(ids)
        data = b"".join(self._known[i][0] for i in ids if control or not self._known[i][1])
        return data.decode("utf-8", "replace")

    def _look(self, token_id: int) -> tuple[bytes, bool]:
        self._learn([token_id])
        return self._known[token_id]

    def _learn(self, ids: Sequence[int]) -> None:
        new = sorted({i for i in ids if i not in self._known})
        if not new:
            return
        found = self._ask("/detokenize", {"model": self._model, "tokens": new, "with_pieces": True})
        for item in found["pieces"]:
            piece = item["piece"]
            self._known[item["id"]] = (piece.encode() if isinstance(piece, str) else bytes(piece), item["control"])
