"""Which compiled kernels a model needs on a GPU, with neither the device nor the weights at hand.

Headers, or a config alone, say all shapes; the executor and the drafters plan their steps on ops that only note what
they would launch. So the list is what a run launches, no more. An image tower is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_engine.config import EngineConfig
from strata_engine.core.batch import BatchLimits
from strata_engine.draft.base import DraftContext
from strata_engine.formats.base import WeightSource
from strata_engine.memory.memory import Memory
from strata_engine.models.load import Loaded, load_model
from strata_engine.models.planned import open_or_plan
from strata_engine.registry.files import ModelFiles
from strata_engine.runtime.drafters import Drafting, open_drafters
from strata_engine.runtime.executor import Executor
from strata_engine.runtime.opening import bind_drafters, make_rules
from strata_engine.runtime.speculation import wants_of
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.planning import PlanOps


@dataclass(frozen=True)
class Needed:
    """The variants that a model launches, each once, and what was said on the way (a drafter that is not there)."""

    variants: tuple[Variant, ...]
    notices: tuple[str, ...] = ()


def needed_kernels(files: ModelFiles, config: EngineConfig) -> Needed:
    """What `files` needs under `config`. Raises what loading a model and opening a drafter raise."""
    source = open_or_plan(files)
    try:
        ops: Any = PlanOps()
        loaded = load_model(source, ops, rest=config.quantize_rest)
        drafting = _drafting(files, config, source, loaded, ops)
        own, most = loaded.model.memory(), drafting.most
        layers = [*own, *(layer for drafter in drafting.drafters for layer in drafter.memory())]
        rows = max(config.batch_rows, config.max_sequences)
        limits = BatchLimits(rows, config.max_sequences, rows, min(rows, config.max_sequences * (1 + most)))
        size = config.page_tokens
        memory = Memory(layers, -(-rows // size), size, config.kv_type, ops.zeros, config.max_sequences, most)
        seen = loaded.tower.config.feature_width if loaded.tower else 0
        executor = Executor(loaded.model, ops, memory, limits, seen, wants_of(drafting.drafters))
        bind_drafters(drafting, memory, executor, len(own))
        with ops.planning() as variants:
            executor.plan()
            for drafter in drafting.drafters:
                drafter.plan()
        return Needed(tuple(variants), tuple(notice.message for notice in drafting.notices))
    finally:
        source.close()


def _drafting(files: ModelFiles, config: EngineConfig, source: WeightSource, loaded: Loaded, ops: Any) -> Drafting:
    if config.spec.method == "none":
        return Drafting()
    rules, _ = make_rules(files, config, source)
    path = None if config.spec.draft is None else Path(config.spec.draft)
    return open_drafters(DraftContext(loaded.model, source, ops, config, rules, path))
