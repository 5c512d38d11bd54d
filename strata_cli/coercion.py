"""Values of flags as numbers and texts without pydantic, whose import costs a tenth of a start.

Typer turns each value into its type with a pydantic adapter, also where nothing was given and where text stays text.
Those cases and plain decimal numbers are answered here; everything else, errors too, goes to typer as ever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


class _Quick:
    """Stands before typer's own coercion of one parameter; `own` makes that, and is called only when it is needed."""

    def __init__(self, descriptor: Any, own: Callable[[], Any]) -> None:
        info = descriptor.parameter_info
        self._kind = None if info.parser is not None or descriptor.is_path else descriptor.annotation
        self._least = -math.inf if info.min is None else info.min
        self._most = math.inf if info.max is None else info.max
        self._own = own

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """What typer's `RuntimeParam.coerce` gives."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._kind is str and _is_text(value):
            return value
        if self._kind == list[str] and isinstance(value, (list, tuple)) and all(map(_is_text, value)):
            return list(value)
        number = _number(self._kind, value)
        if number is not None and self._least <= number <= self._most:
            return number
        return self._own().coerce(value, param=param, ctx=ctx)


def _number(kind: Any, value: Any) -> int | float | None:
    """A value of that kind of number, or plain digits that spell one; None for everything else."""
    if kind is int and (type(value) is int or (type(value) is str and _WHOLE.fullmatch(value))):
        return int(value)
    if kind is float and (type(value) is float or (type(value) is str and _DECIMAL.fullmatch(value))):
        return float(value)
    return None


def _is_text(value: Any) -> bool:
    """A string that UTF-8 can spell: bytes of a command line that are not UTF-8 come as halves of surrogate pairs."""
    return type(value) is str and (value.isascii() or not re.search("[\ud800-\udfff]", value))


def quicken(parameter: Any) -> Any:
    """The same parameter, made to take the short way. One without typer's coercion is left as it is."""
    own, descriptor = getattr(parameter, "get_runtime_param", None), getattr(parameter, "type_descriptor", None)
    if own is not None and descriptor is not None:
        quick = _Quick(descriptor, own)
        parameter.get_runtime_param = lambda: quick
    return parameter
