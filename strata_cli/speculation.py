"""Speculation in words: which drafters were loaded, and what their drafts did in one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_engine.events import Drafts, Finish
from strata_engine.units import format_bytes

_SIZES = ("packed_bytes", "weights_bytes", "bytes")
_SHAPE = ("kind", "layers", "block", "layout", "layout_from", "taps")


def drafter_lines(speculation: Mapping[str, Any]) -> list[str]:
    """A line for each drafter of Report.speculation: its size and shape, what was checked, how many drafts at most."""
    return [
        f"drafter {name}: {', '.join([*_facts(name, facts, speculation), _depth(facts, speculation)])}"
        for name, facts in speculation.get("drafters", {}).items()
    ]


def _facts(name: str, facts: Mapping[str, Any], speculation: Mapping[str, Any]) -> list[str]:
    size = next((facts[each] for each in _SIZES if facts.get(each)), 0)
    if not size:
        return ["no weights"]
    parts = [format_bytes(size), *(_fact(each, facts[each]) for each in _SHAPE if facts.get(each) is not None)]
    checked = [("vocabulary", "vocabulary"), *([] if name == "draft" else [("hidden_size", "hidden size")])]
    known = [f"{words} {speculation[each]}" for each, words in checked if speculation.get(each)]
    return [*parts, f"fits {' and '.join(known)}"] if known else parts


def _depth(facts: Mapping[str, Any], speculation: Mapping[str, Any]) -> str:
    limits = [n for n in (facts.get("most"), speculation.get("n_max")) if n]
    return f"up to {min(limits)} drafts a step" if limits else "drafts of any length"


def _fact(name: str, value: Any) -> str:
    shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{name.replace('_', ' ')} {shown}"


def drafts_line(finish: Finish) -> str:
    """Drafted, accepted, rate, accept length both ways, kept by position, gain against plain steps measured here."""
    drafts = finish.drafts or Drafts()
    if not drafts.rounds:
        return f"drafts: none in {drafts.steps} steps"
    n, steps = finish.usage.completion_tokens, drafts.steps
    first, second = drafts.lengths(n)
    counts = f"n {n} tokens, N {steps} steps, {drafts.rounds} with drafts"
    kept = " ".join(f"{place}:{count}" for place, count in enumerate(drafts.by_position, 1))
    gain = drafts.gain(finish.timings.decode_s)
    parts = [
        f"drafts: {drafts.accepted} of {drafts.drafted} accepted ({100 * drafts.rate:.0f} %)",
        f"accept length (n-1)/N {first:.2f}, n/N {second:.2f} ({counts})",
        f"kept by position {kept or 'none'}",
        "plain speed not measured yet" if gain is None else f"{gain:.2f} times plain speed",
    ]
    return " | ".join(parts)
