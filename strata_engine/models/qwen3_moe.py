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
class SharedExpert:
    """An expert that works on every row; `router` [1, W] makes the number whose sigmoid weighs it."""

    router: Linear
    gate: Linear
    up: Linear
    down: Linear

    def add_to(self, x: Array, scale: Array, products: tuple[Array, Array], ops: Ops) -> None:
        """x [R, W] += sigmoid(scale) * down(silu(gate) * up); `products`: gate and up of the rows."""
        gate, up = products
        ops.silu_mul(gate, up, gate)
        (result,) = apply_linears(gate, (self.down,), ops)
        ops.add_scaled(result, scale, x)


@dataclass(frozen=True)
class MixtureMlp:
    """The weighted sum of the experts that the router chose for each row, and of the shared one if there is one."""

    norm: Array
    router: Linear
    experts: Experts
    eps: float
    shared: SharedExpert | None = None

    def forward(self, x: Array, ops: Ops) -> None:
        """x [R, W] += experts(norm(x))."""
        with ops.scope():
            normed = ops.take(*x.shape)
            ops.rms_norm(x, self.norm, self.eps, normed)
            self.add_to(x, normed, ops)

    def add_to(self, x: Array, normed: Array, ops: Ops) -> None:
        """x [R, W] += experts(normed)."""
        shared = self.shared
        if shared is None:
            (logits,) = apply_linears(normed, (self.router,), ops)
            ops.experts(normed, logits, self.experts, x, add=True)
            return
        linears = (self.router, shared.router, shared.gate, shared.up)
        logits, scale, gate, up = apply_linears(normed, linears, ops)
        ops.experts(normed, logits, self.experts, x, add=True)
        shared.add_to(x, scale, (gate, up), ops)


def make_experts(layer: int, mixture: MixtureConfig, weights: Mapping[str, Weight]) -> Experts:
    """The experts of a layer from the loaded matrices."""
    parts = [tuple(weights[expert_name(layer, e, p)] for e in range(mixture.count)) for p in PROJECTIONS]
    return Experts(*parts, top_k=mixture.used, renormalise=mixture.renormalise)


def make_shared(layer: int, mixture: MixtureConfig, weights: Mapping[str, Weight]) -> SharedExpert | None:
    """The shared expert of a layer, where there is one."""
    if not mixture.shared_width:
        return None
    parts = {name: Linear(weights[f"{layer}.shared_{name}"]) for name in ("router", "gate", "up", "down")}
    return SharedExpert(**parts)


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
        shared = make_shared(layer, mixture, weights)
        return MixtureMlp(norm, router, make_experts(layer, mixture, weights), self.config.norm_eps, shared)
