"""Qwen3-Next (80B-A3B): as the Qwen3.5 mixtures, with the delta net's projections fused and grouped by key head.

Its GGUF files keep the value heads in the checkpoint's order; some have the fused projection, newer ones its parts.
"""

from __future__ import annotations

from dataclasses import replace

from strata_engine.models.qwen3_5 import Qwen35
from strata_engine.models.qwen3_moe import Qwen3Moe


class Qwen3Next(Qwen35, Qwen3Moe):
    """Qwen3NextForCausalLM."""

    family = "qwen3_next"
    traits = replace(Qwen35.traits, mixture=True, renormalise=True, tiled_gguf=False)
    fused_delta = True
