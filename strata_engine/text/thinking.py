"""The thinking switch of a request as values for one template, and where the reply to a prompt starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata_engine.errors import UsageError
from strata_engine.events import Notice
from strata_engine.text.marks import Found
from strata_engine.text.reasoning import ANSWER, CLOSE, MAYBE_THINKING, OPEN, THINKING
from strata_engine.text.sandbox import Compiled

_OFF, _ON = ("none", "off", "false", "no"), ("on", "true", "yes", "auto")
# Names in use for efforts -> ours. The strongest one is called xhigh by some templates and high by others.
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_TAIL_CHARS = 40


def thinking_values(
    thinking: bool | str | None, template: Compiled, knows: bool
) -> tuple[dict[str, Any], list[Notice]]:
    """Template values for `thinking` (None: the model's default). Raises UsageError for an unknown effort."""
    if thinking is None:
        return {}, []
    effort = "" if isinstance(thinking, bool) else _effort(thinking)
    on = thinking if isinstance(thinking, bool) else effort != "off"
    switches = template.variables & {"enable_thinking", "thinking"}
    values: dict[str, Any] = dict.fromkeys(switches, on)
    leveled = "reasoning_effort" in template.variables
    notices: list[Notice] = []
    if effort in _EFFORTS.values():
        if leveled:
            values["reasoning_effort"] = "xhigh" if effort == "high" and "xhigh" in template.source else effort
        else:
            notices.append(
                Notice("effort-ignored", f"the chat template knows no thinking effort; {thinking!r} is ignored")
            )
    if not on and not switches and (knows or leveled):
        notices.append(
            Notice("thinking-switch", "the chat template has no switch for thinking; the model may still think")
        )
    if on and not switches and not leveled and not knows:
        notices.append(
            Notice("thinking-unknown", "this model's chat template knows no thinking; the switch is ignored")
        )
    return values, notices


def start_state(text: str, found: Sequence[Found], knows: bool, continued: bool) -> str:
    """Where the reply starts, from the end of the prompt. Tags in message text do not count."""
    tags = [f for f in found if f.spelling in (OPEN, CLOSE) and not f.plain]
    last = tags[-1] if tags else None
    if last is not None:
        after = text[last.start + len(last.spelling) :]
        near = len(text.rstrip()) - last.start <= _TAIL_CHARS
        if last.spelling == OPEN and (near or continued):
            return THINKING
        if last.spelling == CLOSE and not after.strip():
            return ANSWER
    if continued:
        return ANSWER
    return MAYBE_THINKING if knows else ANSWER


def _effort(name: str) -> str:
    """ours | off | on"""
    lowered = name.strip().lower()
    if lowered in _OFF:
        return "off"
    if lowered in _ON:
        return "on"
    if lowered not in _EFFORTS:
        raise UsageError(f"unknown thinking effort {name!r}", f"one of: none, {', '.join(_EFFORTS)}")
    return _EFFORTS[lowered]
