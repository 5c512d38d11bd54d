"""What one rendering may spend: loop turns, seconds, and the size of what it makes.

A template comes with a model file and is not trusted: the checks run before the work, so that no operation allocates
much more than the limits say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from strata_engine.errors import RequestRefused

MAX_NUMBER = 1_000_000  # largest width or repeat count
_MAX_PRODUCT = 1 << 27  # characters that one operation may make on the way
_MAX_BITS = 4096
_WIDE = re.compile(r"\d{7,}")
_COMPUTED_WIDTH = re.compile(r"%[-#0 +]*\*|\{[^{}]*:[^{}]*\{")


class Budget:
    """Limits of one rendering. `limit_chars` bounds its text, `turns` its loop turns and macro calls."""

    def __init__(
        self,
        limit_chars: int,
        turns: int = 100_000,
        seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_chars = limit_chars
        self._turns = turns
        self._seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def tick(self) -> None:
        """One loop turn or macro call."""
        self._turns -= 1
        if self._turns < 0:
            _stop("loops too often")
        if self._turns % 256 == 0 and self._clock() > self._end:
            _stop(f"takes longer than {self._seconds:.0f} s")

    def sized(self, length: int) -> None:
        """A text or list of this length is about to be made."""
        if length > self._limit_chars:
            _stop(f"makes a text of more than {self._limit_chars} characters")

    def printed(self, value: Any) -> Any:
        """The value, if its text is not too long."""
        if not isinstance(value, str):
            self.sized(self._measure(value))
        return value

    def concat(self, *values: Any) -> str:
        """Join as the `~` operator does."""
        texts = [str(self.printed(v)) for v in values]
        self.sized(sum(map(len, texts)))
        return "".join(texts)

    def binary(self, operator: str, left: Any, right: Any) -> None:
        """Look at `left operator right` before it is computed."""
        if operator == "+" and _sequence(left) and _sequence(right):
            self.sized(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            self.spread((left, right))
        elif operator == "*":
            self._product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._bits(left.bit_length() * abs(right))

    def spread(self, values: Iterable[Any]) -> None:
        """Look at the arguments of something that repeats or widens text."""
        product, numbers = 1, [0]
        for value in values:
            if isinstance(value, str) and ("%" in value or "{" in value) and _widens(value):
                _stop("formats with a computed width, or one of more than six digits")
            if isinstance(value, int):
                numbers.append(abs(value))
            else:
                size = self._measure(value)
                self.sized(size)
                product *= 1 + size
        if max(numbers) > MAX_NUMBER:
            _stop(f"uses the number {max(numbers)} as a size")
        if product * max(1, *numbers) > _MAX_PRODUCT:
            _stop(f"makes a text of more than {_MAX_PRODUCT} characters")

    def _product(self, left: Any, right: Any) -> None:
        for one, other in ((left, right), (right, left)):
            if isinstance(other, int) and _sequence(one):
                self.sized(len(one) * other)
        if isinstance(left, int) and isinstance(right, int):
            self._bits(left.bit_length() + right.bit_length())

    def _measure(self, value: Any) -> int:
        """About how many characters the value prints as; stops counting beyond the limit."""
        total, open_values = 0, [value]
        while open_values and total <= self._limit_chars:
            value = open_values.pop()
            if isinstance(value, str):
                total += len(value)
            elif isinstance(value, dict):
                open_values += value.keys()
                open_values += value.values()
                total += 4 * len(value)
            elif isinstance(value, list | tuple):
                open_values += value
                total += 8
            else:
                total += 8
        return total

    @staticmethod
    def _bits(bits: int) -> None:
        if bits > _MAX_BITS:
            _stop("makes a number too large")


def _widens(text: str) -> bool:
    return _WIDE.search(text) is not None or _COMPUTED_WIDTH.search(text) is not None


def _sequence(value: Any) -> bool:
    return isinstance(value, str | list | tuple)


def _stop(what: str) -> NoReturn:
    raise RequestRefused(f"the chat template {what}; it was stopped", "another template (--chat-template)")
