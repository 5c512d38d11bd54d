"""Speculation in words: which drafters were loaded, and what their drafts did in one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_engine.events import Drafts, Finish
from strata_engine.units import format_bytes


def drafter_lines(speculation: Mapping[str, Any]) -> list[str]:
    """A line for each drafter of Report.speculation: its size, what was checked, how many drafts at most."""
    found = []
    for name, facts in speculation.get("drafters", {}).items():
        parts = [_fact(each, value) for each, value in facts.items() if each != "most"]
        found.append(f"drafter {name}: {', '.join([*parts, _depth(facts, speculation)])}")
    return found


def _depth(facts: Mapping[str, Any], speculation: Mapping[str, Any]) -> str:
    limits = [n for n in (facts.get("most"), speculation.get("n_max")) if n]
    return f"up to {min(limits)} drafts a step" if limits else "drafts of any length"


def _fact(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{name.removesuffix('_bytes')} {format_bytes(value)}"
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
