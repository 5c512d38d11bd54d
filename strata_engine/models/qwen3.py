"""Qwen3, dense: llama with a norm over each q and k head before the rotation, and a head width of its own."""

from __future__ import annotations

from strata_engine.models.config import Traits
from strata_engine.models.llama import Llama


class Qwen3(Llama):
    """Qwen3ForCausalLM."""

    family = "qwen3"
    traits = Traits(qk_norm=True)
