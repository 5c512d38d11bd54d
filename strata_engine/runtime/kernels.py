"""Which compiled kernels a model needs on a GPU, with neither the device nor the weights at hand.

Headers, or a config alone, say all shapes; the executor plans its steps on ops that only note what they would launch.
So the list is what a run launches, no more.
"""

from __future__ import annotations

from typing import Any

from strata_engine.config import EngineConfig
from strata_engine.core.batch import BatchLimits
from strata_engine.memory.memory import Memory
from strata_engine.models.load import load_model
from strata_engine.models.planned import open_or_plan
from strata_engine.registry.files import ModelFiles
from strata_engine.runtime.executor import Executor
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.planning import PlanOps


def needed_kernels(files: ModelFiles, config: EngineConfig) -> list[Variant]:
    """The variants that a model launches under `config`, each once. Raises what loading a model raises."""
    source = open_or_plan(files)
    try:
        ops: Any = PlanOps()
        loaded = load_model(source, ops, rest=config.quantize_rest)
        rows, drafts = max(config.batch_rows, config.max_sequences), config.spec.most_drafts
        with_logits = min(rows, config.max_sequences * (1 + drafts))
        limits = BatchLimits(rows, config.max_sequences, rows, with_logits)
        layers, pages = loaded.model.memory(), -(-rows // config.page_tokens)
        memory = Memory(layers, pages, config.page_tokens, config.kv_type, ops.zeros, config.max_sequences, drafts)
        executor = Executor(loaded.model, ops, memory, limits)
        with ops.planning() as variants:
            executor.plan()
        return list(variants)
    finally:
        source.close()
