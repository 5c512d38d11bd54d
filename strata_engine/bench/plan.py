"""What is to be measured: test shapes, and lists and ranges of numbers as people type them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strata_engine.errors import UsageError

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
_MOST = 1000


@dataclass(frozen=True)
class SpeedTest:
    """`prompt_tokens` in as few steps as fit, then `generate_tokens` one by one, behind `depth_tokens` of context."""

    prompt_tokens: int
    generate_tokens: int
    depth_tokens: int = 0

    @property
    def name(self) -> str:
        """pp512, tg128, pp512+tg128."""
        parts = [f"pp{self.prompt_tokens}"] if self.prompt_tokens else []
        parts += [f"tg{self.generate_tokens}"] if self.generate_tokens else []
        return "+".join(parts)

    @property
    def key(self) -> str:
        """The name with its depth, as machines read it: pp512@d0."""
        return f"{self.name}@d{self.depth_tokens}"

    @property
    def label(self) -> str:
        """The name with its depth, as people read it: pp512, tg128 @ d4096."""
        return f"{self.name} @ d{self.depth_tokens}" if self.depth_tokens else self.name

    @property
    def tokens(self) -> int:
        """Tokens counted for the speed."""
        return self.prompt_tokens + self.generate_tokens


def numbers(text: str, what: str) -> list[int]:
    """`128,512`, `1-8`, `1-8+2`, `1-64*2`, mixed; in order, without repeats. Raises UsageError naming `what`."""
    found: list[int] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or len(match[1]) > 9:
            raise UsageError(
                f"{what} {text}: {piece.strip() or 'an empty part'!r} is no number or range", "128,512 or 1-64*2"
            )
        found += _range(match, what, text)
        if len(found) > _MOST:
            raise UsageError(f"{what} {text}: more than {_MOST} values")
    return list(dict.fromkeys(found))


def _range(match: re.Match[str], what: str, text: str) -> list[int]:
    first = int(match[1])
    if match[2] is None:
        return [first]
    last, sign, step = int(match[2]), match[3] or "+", int(match[4] or 1)
    endless = step == 0 if sign == "+" else step < 2 or first == 0
    if last < first or endless:
        raise UsageError(
            f"{what} {text}: the range {match[0]} never ends", "FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR"
        )
    values = []
    while first <= last and len(values) <= _MOST:
        values.append(first)
        first = first + step if sign == "+" else first * step
    return values


def pairs(texts: list[str]) -> list[tuple[int, int]]:
    """`--pg 512,128` (repeatable). Raises UsageError."""
    found = []
    for text in texts:
        match = re.fullmatch(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*", text)
        if match is None:
            raise UsageError(f"--pg {text}: not PROMPT,GENERATE", "--pg 512,128")
        found.append((int(match[1]), int(match[2])))
    return found


def combine(
    prompts: list[int], generations: list[int], both: list[tuple[int, int]], depths: list[int]
) -> list[SpeedTest]:
    """All combinations, tests without tokens left out. Raises UsageError when nothing remains."""
    shapes = [(p, 0) for p in prompts] + [(0, g) for g in generations] + both
    found = [SpeedTest(p, g, d) for d in depths for p, g in shapes if p + g > 0]
    if not found:
        raise UsageError("nothing to measure: no prompt and no generated tokens", "-p 512 -n 128")
    return list(dict.fromkeys(found))
