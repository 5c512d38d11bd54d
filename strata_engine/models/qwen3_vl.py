"""Qwen3-VL's decoder: qwen3 whose rows may be image features, with positions in time, height and width."""

from __future__ import annotations

from strata_engine.models.config import Traits
from strata_engine.models.llama import Llama


class Qwen3Vl(Llama):
    """Qwen3VLForConditionalGeneration. Without an image tower it is a text model."""

    family = "qwen3_vl"
    sees = True
    traits = Traits(qk_norm=True)
