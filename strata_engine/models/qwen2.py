"""Qwen2 and Qwen2.5, dense: llama with biases on q, k and v."""

from __future__ import annotations

from strata_engine.models.config import Traits
from strata_engine.models.llama import Llama


class Qwen2(Llama):
    """Qwen2ForCausalLM."""

    family = "qwen2"
    traits = Traits(qkv_bias=True)
