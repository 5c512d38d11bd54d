"""Bytes, seconds and counts, in and out."""

from __future__ import annotations

import re

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_TIMES = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def format_bytes(count: float) -> str:
    """Decimal units, three significant digits: 98.4 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB" if value < 999.5 else f"{value:.0f} TB"


def parse_bytes(text: str) -> int:
    """'1GiB', '500M', '2.5 gb' or a plain number of bytes. Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?|)b?\s*", text.lower())
    if not match:
        raise ValueError(f"not a size: {text!r} (examples: 500M, 1GiB)")
    return int(float(match[1]) * _SIZES[match[2]])


def format_seconds(seconds: float) -> str:
    """Short: 0.42 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def parse_seconds(text: str) -> float:
    """'30', '30s', '5m', '1h30m', '250ms'; -1 means for ever (inf). Raises ValueError."""
    stripped = text.strip().lower()
    if stripped in ("-1", "-1s", "inf"):
        return float("inf")
    pieces = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)", stripped)
    if not pieces or "".join(number + unit for number, unit in pieces) != stripped:
        raise ValueError(f"not a duration: {text!r} (examples: 30s, 5m, 1h30m, -1)")
    return sum(float(number) * _TIMES[unit] for number, unit in pieces)
