"""Generated tokens -> Text and Reasoning events: UTF-8, then the thinking split, then stop strings on the answer.

Works token by token, so the concatenated texts and the token where a stop string ends do not depend on how many tokens
a call brings. Holds back only an unfinished character, tag or stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata_engine.events import Reasoning, Text, Token
from strata_engine.text.detokenize import Utf8Decoder
from strata_engine.text.reasoning import ThinkSplitter
from strata_engine.text.stop import StopFilter


class StreamReader:
    """The ReplyReader of strata_engine.text.base.

    `hidden` says which ids are not shown, `piece` gives an id's bytes. When a stop string is found, tokens of the same
    call after the one that completed it are not part of the reply: no event has them, nor does close().
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        hidden: Callable[[int], bool],
        splitter: ThinkSplitter,
        stops: StopFilter,
    ) -> None:
        self._piece = piece
        self._hidden = hidden
        self._decoder = Utf8Decoder()
        self._splitter = splitter
        self._stops = stops
        self._pending: list[Token] = []

    @property
    def stopped(self) -> str | None:
        """The stop string that matched."""
        return self._stops.matched

    def feed(self, tokens: Sequence[Token]) -> list[Text | Reasoning]:
        """Text that may leave now, at most one event of a kind in a row."""
        events: list[Text | Reasoning] = []
        for token in tokens:
            if self._stops.matched is not None:
                break
            self._pending.append(token)
            if not self._hidden(token.id):
                text = self._decoder.feed(self._piece(token.id))
                if text:
                    self._read(text, events)
        return events

    def close(self) -> tuple[list[Text | Reasoning], tuple[Token, ...]]:
        """What was held back, and the tokens that never gave text."""
        events: list[Text | Reasoning] = []
        if self.stopped is None:
            text = self._decoder.close()
            if text:
                self._read(text, events)
            self._share(self._splitter.close(), events)
        if self.stopped is None:
            self._send(Text, self._stops.close(), events)
        rest, self._pending = tuple(self._pending), []
        return events, rest

    def _read(self, text: str, events: list[Text | Reasoning]) -> None:
        if self._splitter.answering:
            self._send(Text, self._stops.feed(text), events)
        else:
            self._share(self._splitter.feed(text), events)

    def _share(self, parts: list[tuple[bool, str]], events: list[Text | Reasoning]) -> None:
        for thinking, part in parts:
            self._send(Reasoning if thinking else Text, part if thinking else self._stops.feed(part), events)

    def _send(self, kind: type[Text] | type[Reasoning], text: str, events: list[Text | Reasoning]) -> None:
        if not text:
            return
        tokens = tuple(self._pending)
        self._pending.clear()
        if events and type(events[-1]) is kind:
            last = events.pop()
            text, tokens = last.text + text, last.tokens + tokens
        events.append(kind(text, tokens))
