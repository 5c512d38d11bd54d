"""Qwen3 mixtures (30B-A3B): qwen3 with a router and experts in place of the MLP, in all layers or some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_engine.formats.base import WeightSource
from strata_engine.models.blocks import Linear, apply_linears
from strata_engine.models.config import ModelConfig, Traits
from strata_engine.models.llama import Inner, Llama, mlp_tensors
from strata_engine.models.mixture import PROJECTIONS, MixtureConfig, expert_name, mixture_tensors
from strata_engine.models.names import Wanted
from strata_kernels.ops import Array, Experts, Ops, Weight


@dataclass(frozen=True)
class MixtureMlp:
    """The weighted sum of the experts that the router chose for each row."""

    norm: Array
    router: Linear
    experts: Experts
    eps: float

    def forward(self, x: Array, ops: Ops) -> None:
        """x [R, W] += experts(norm(x))."""
        with ops.scope():
            normed = ops.take(*x.shape)
            ops.rms_norm(x, self.norm, self.eps, normed)
            (logits,) = apply_linears(normed, (self.router,), ops)
            ops.experts(normed, logits, self.experts, x, add=True)


def make_experts(layer: int, mixture: MixtureConfig, weights: Mapping[str, Weight]) -> Experts:
    """The experts of a layer from the loaded matrices."""
    parts = [tuple(weights[expert_name(layer, e, p)] for e in range(mixture.count)) for p in PROJECTIONS]
    return Experts(*parts, top_k=mixture.used, renormalise=mixture.renormalise)


class Qwen3Moe(Llama):
    """Qwen3MoeForCausalLM."""

    family = "qwen3_moe"
    traits = Traits(qk_norm=True, mixture=True)

    @classmethod
    def inner_tensors(cls, config: ModelConfig, layer: int, source: WeightSource) -> list[Wanted]:
        """The router and experts of a layer, or its MLP."""
        if config.mixture is None or layer in config.mixture.dense_layers:
            return mlp_tensors(config, layer)
        return mixture_tensors(layer, config.mixture, config.width, source)

    def inner(self, layer: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> Inner:
        """The part after attention."""
        mixture = self.config.mixture
        if mixture is None or layer in mixture.dense_layers:
            return super().inner(layer, weights, vectors)
        router, norm = Linear(weights[f"{layer}.router"]), vectors[f"{layer}.norm2"]
        return MixtureMlp(norm, router, make_experts(layer, mixture, weights), self.config.norm_eps)
