"""Qwen3.5, 3.6 and 3.8: three of four layers are gated delta nets, the fourth is attention with an output gate.

Norms of a Hugging Face checkpoint are centred on zero (1 is added while loading), except that of the delta net's heads.
Rows may be image features, as in Qwen3-VL; the text part is the same with and without an image tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from strata_engine.formats.base import WeightSource
from strata_engine.memory.kv import KvMemory, LayerMemory
from strata_engine.models.config import ModelConfig, Traits
from strata_engine.models.delta import delta_memory, delta_tensors, make_delta
from strata_engine.models.llama import Llama, Mixer, attention_tensors
from strata_engine.models.names import Wanted
from strata_engine.models.qwen3_moe import Qwen3Moe
from strata_kernels.ops import Array, Weight

_CENTRED = ("norm", "norm1", "norm2", "q_norm", "k_norm", "draft_embed_norm", "draft_hidden_norm", "draft_norm")


class Qwen35(Llama):
    """Qwen3_5ForCausalLM, and the text part of Qwen3_5ForConditionalGeneration."""

    family = "qwen3_5"
    sees = True
    traits = Traits(qk_norm=True, delta=True, tiled_gguf=True, gated_attention=True, partial_rotary=0.25)
    fused_delta = False  # checkpoints have qkvz and ba in place of their parts

    @classmethod
    def wanted(cls, config: ModelConfig, source: WeightSource) -> list[Wanted]:
        """Every tensor, in the order of use."""
        return [spelled(want, source.kind) for want in super().wanted(config, source)]

    @classmethod
    def mixer_tensors(cls, config: ModelConfig, layer: int, source: WeightSource) -> list[Wanted]:
        """Both norms of a layer, and its attention or its delta net."""
        attention = attention_tensors(config, layer)
        if config.delta is None or layer not in config.delta.layers:
            return attention
        norms = [want for want in attention if want.name in (f"{layer}.norm1", f"{layer}.norm2")]
        return norms + delta_tensors(layer, config.delta, config.width, source, cls.fused_delta)

    def mixer(self, n: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> Mixer:
        """The part of layer `n` that mixes rows."""
        delta = self.config.delta
        if delta is None or n not in delta.layers:
            return super().mixer(n, weights, vectors)
        return make_delta(n, delta, self.config.norm_eps, weights, vectors)

    def memory(self) -> list[LayerMemory | None]:
        """A state for each recurrent layer, keys and values for the others."""
        config, delta = self.config, self.config.delta
        recurrent = frozenset() if delta is None else delta.layers
        kv = KvMemory(config.kv_heads, config.head_width)
        return [delta_memory(delta) if delta and n in recurrent else kv for n in range(config.layers)]


def spelled(want: Wanted, kind: str) -> Wanted:
    """The tensor as this family's checkpoints have it: zero-centred norms, another name of the second norm."""
    layer, _, name = want.name.rpartition(".")
    if kind == "safetensors" and name in _CENTRED:
        return replace(want, change="plus one")
    if kind == "gguf" and name == "norm2":
        return replace(want, stored=f"blk.{layer}.post_attention_norm.weight")
    return want


class Qwen35Moe(Qwen35, Qwen3Moe):
    """Qwen3_5MoeForCausalLM: experts and a shared one in place of the MLP. Chosen weights always sum to 1."""

    family = "qwen3_5_moe"
    traits = replace(Qwen35.traits, mixture=True, renormalise=True)

    @classmethod
    def configure(cls, source: WeightSource) -> ModelConfig:
        """Read the config of a checkpoint; its norm_topk_prob has no effect in this family."""
        config = super().configure(source)
        mixture = config.mixture and replace(config.mixture, renormalise=True)
        return replace(config, mixture=mixture)
