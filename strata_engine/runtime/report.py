"""The Report of an engine: its choices, its memory by use, its speed so far."""

from __future__ import annotations

from typing import Any

from strata_engine.runtime.api import Report
from strata_engine.runtime.meters import Meters
from strata_engine.runtime.opening import Opened, choice_record
from strata_engine.runtime.speculation import Speculation


def make_report(parts: Opened, meters: Meters, spec: Speculation) -> Report:
    """All values are plain JSON data; bytes and seconds. `spec` adds the notices since the model was opened."""
    memory = {
        "weights_packed_bytes": parts.loaded.packed_bytes,
        "weights_mapped_bytes": parts.loaded.mapped_bytes,
        "kv_bytes": parts.memory.total_bytes - parts.memory.state_bytes,
        "state_bytes": parts.memory.state_bytes,
        "kv_used_bytes": parts.memory.used_bytes,
        "prefix_kept_bytes": parts.memory.kept_bytes,  # free for whoever needs it
        "prefix_state_bytes": parts.memory.copied_bytes,
        "workspace_bytes": parts.priced.workspace_bytes,
        "estimated_bytes": parts.priced.total_bytes,
        "free_at_load_bytes": parts.priced.free_bytes,
    }
    speed = meters.speed() | {
        "recorded_steps": float(parts.executor.recorded),
        "preemptions": float(parts.scheduler.preemptions),
    }
    choices = tuple(choice_record(c) for c in parts.choices)
    return Report(choices, memory, speed, (*parts.notices, *spec.notices), _speculation(parts, spec))


def _speculation(parts: Opened, spec: Speculation) -> dict[str, Any]:
    """What the drafters are and did, and what of the target they were checked against; {} without any."""
    found, config = spec.report(), parts.loaded.model.config
    return {**found, "vocabulary": config.vocab_size, "hidden_size": config.width} if found else {}
