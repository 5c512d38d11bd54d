"""Stop strings over a stream of text: nothing of a stop string leaves before it is sure not to be one."""

from __future__ import annotations

from collections.abc import Sequence

from strata_engine.text.hold import held_length


class StopFilter:
    """Cuts the text at the stop string that is complete first; of those complete at one place the longest counts.

    Empty stop strings are ignored. `matched` is the one found; nothing may be fed after that.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(s for s in stops if s))
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that may leave now."""
        if not self._stops:
            return text
        text = self._held + text
        found = self._first(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[: start + len(self.matched)] if self._include else text[:start]
        keep = len(text) - held_length(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def close(self) -> str:
        """The text held back, at the end of the stream."""
        rest, self._held = self._held, ""
        return rest

    def _first(self, text: str) -> tuple[int, str] | None:
        places = [(at + len(s), at, s) for s in self._stops if (at := text.find(s)) >= 0]
        return min(places)[1:] if places else None
