"""Variants that stand for all GPU kernels: what models of each kind launch, and products of other storage types."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from strata_engine.config import EngineConfig
from strata_engine.formats.quant import FORMATS
from strata_engine.registry.local import config_only
from strata_engine.runtime.kernels import needed_kernels
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.planning import PlanOps
from tests.support.published_configs import config_of

SHAPE = (2048, 4096)  # outputs and inputs of the products
# one of each way that values lie in cells.py
TYPES = ("BF16", "Q4_0", "Q4_K", "Q6_K", "Q8_0", "I4_128", "IQ3_S", "IQ2_XS", "MXFP4", "Q2_0")


def gallery() -> list[Variant]:
    """Each once, in an order that is always the same."""
    return list(dict.fromkeys([*products(), *models()]))


def products() -> list[Variant]:
    """Products of one, four and many rows, and rows of a table."""
    ops = PlanOps()
    rows, cols = SHAPE
    with ops.planning() as variants:
        for name in TYPES:
            weight = ops.blank(name, rows, cols, FORMATS[name].row_bytes(cols), packed=True)
            for count in (1, 64) if name != "Q4_K" else (1, 4, 64):
                with ops.scope():
                    ops.linear(ops.take(count, cols), [weight], [ops.take(count, rows)])
    return list(variants)


def models() -> list[Variant]:
    """What a dense model and a hybrid mixture launch, a few layers of each; by their configs alone."""
    found: list[Variant] = []
    for name, layers in (("qwen3-8b", 1), ("qwen3.5-35b-a3b", 4)):
        with TemporaryDirectory() as folder:
            config = {**config_of(name, "int4"), "num_hidden_layers": layers}
            if "layer_types" in config:
                config["layer_types"] = config["layer_types"][:layers]
            Path(folder, "config.json").write_text(json.dumps(config))
            files = config_only(folder)
            if files is None:
                raise FileNotFoundError(folder)
            found += needed_kernels(files, EngineConfig(max_sequences=4, batch_rows=256)).variants
    return found
