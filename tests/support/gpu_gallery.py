"""Variants that stand for all GPU kernels: what models of each kind launch, and products of each storage type."""

from __future__ import annotations

from pathlib import Path

from strata_engine.config import EngineConfig
from strata_engine.formats.quant import FORMATS
from strata_engine.registry.local import local_model
from strata_engine.runtime.kernels import needed_kernels
from strata_kernels.gpu.cells import CELLS, FLOATS
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.planning import PlanOps

TOY = Path(__file__).parents[1] / "fixtures" / "toy"
SHAPE = (2048, 4096)  # outputs and inputs of the products


def gallery() -> list[Variant]:
    """Each once, in an order that is always the same."""
    found: dict[Variant, None] = {}
    for variant in [*products(), *models()]:
        found.setdefault(variant)
    return list(found)


def products() -> list[Variant]:
    """A product of one and of many rows with each storage type, and rows of a table."""
    ops = PlanOps()
    rows, cols = SHAPE
    with ops.planning() as variants:
        for name in [*FLOATS, *CELLS]:
            weight = ops.blank(name, rows, cols, FORMATS[name].row_bytes(cols), packed=True)
            for count in (1, 64):
                with ops.scope():
                    ops.linear(ops.take(count, cols), [weight], [ops.take(count, rows)])
            with ops.scope():
                ops.embed(ops.take(1, dtype="i32"), weight, ops.take(1, cols))
    return list(variants)


def models() -> list[Variant]:
    """What the toy launches, as safetensors and as GGUF."""
    return [
        variant
        for path in (TOY, TOY / "toy-Q8_0.gguf")
        for variant in needed_kernels(local_model(str(path)), EngineConfig(max_sequences=4, batch_rows=256))
    ]
