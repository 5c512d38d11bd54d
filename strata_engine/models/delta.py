"""The gated delta net (arXiv 2412.06464): projections, short convolution, recurrence, gated norm.

A layer of this kind keeps no keys and values: a matrix for each value head stands for all of the past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_engine.formats.base import WeightSource
from strata_engine.memory.state import StateMemory
from strata_engine.models.blocks import Linear, add_linear, apply_linears
from strata_engine.models.delta_config import DeltaConfig
from strata_engine.models.names import RowSplit, Wanted, stored_name
from strata_kernels.ops import Array, DeltaRule, Ops, Rows, StateLayer, Weight


@dataclass(frozen=True)
class DeltaNet:
    """One recurrent layer. `conv` f32 [C, kernel]; `state_norm` f32 [Dv] is shared by the heads."""

    norm: Array
    qkv: Linear
    z: Linear
    alpha: Linear
    beta: Linear
    conv: Array
    rule: DeltaRule
    state_norm: Array
    out: Linear
    eps: float
    activation: str

    def forward(self, x: Array, cache: StateLayer, rows: Rows, ops: Ops) -> None:
        """x [R, W] += delta_net(norm(x)); the rows' state is taken up on the way."""
        with ops.scope():
            normed = ops.take(*x.shape)
            ops.rms_norm(x, self.norm, self.eps, normed)
            add_linear(self.mix(normed, cache, rows, ops), self.out, x, ops)

    def mix(self, normed: Array, cache: StateLayer, rows: Rows, ops: Ops) -> Array:
        """What `out` projects, f32 [R, values], in the workspace of the enclosing scope."""
        rule, count = self.rule, normed.shape[0]
        qkv, z, a, b = apply_linears(normed, (self.qkv, self.z, self.alpha, self.beta), ops)
        mixed, values = ops.take(*qkv.shape), ops.take(count, rule.value_heads, rule.value_width)
        ops.short_conv(qkv, self.conv, cache.conv, rows, mixed)
        ops.delta_rule(mixed, a, b, rule, cache.state, rows, values, cache.pending)
        ops.gated_norm(values, self.state_norm, z.reshape(*values.shape), self.eps, self.activation, values)
        return values.reshape(count, -1)


def delta_tensors(layer: int, delta: DeltaConfig, width: int, source: WeightSource, fused: bool) -> list[Wanted]:
    """The tensors of a recurrent layer without its first norm. `fused`: a checkpoint has qkvz and ba (Qwen3-Next)."""
    n, kind = layer, source.kind
    gguf = kind == "gguf"
    conv = (delta.channels, delta.kernel) if gguf else (delta.channels, 1, delta.kernel)
    return [
        *_inputs(layer, delta, width, source, fused),
        Wanted(f"{n}.conv", conv, "vector"),
        Wanted(f"{n}.decay", (delta.value_heads,), "vector", change="" if gguf else "decay"),
        Wanted(f"{n}.dt_bias", (delta.value_heads,), "vector"),
        Wanted(f"{n}.state_norm", (delta.value_width,), "vector"),
        Wanted(f"{n}.out", (width, delta.values), "matrix"),
    ]


def _inputs(layer: int, delta: DeltaConfig, width: int, source: WeightSource, fused: bool) -> list[Wanted]:
    """Projections of the input. Fused ones are grouped by key head and cut into rows while loading."""
    n, per = layer, delta.value_heads // delta.key_heads

    def is_fused(name: str) -> bool:
        return stored_name(f"{n}.{name}", source.kind) in source.tensors() if source.kind == "gguf" else fused

    found: list[Wanted] = []
    if is_fused("qkvz"):
        sizes = (("qkv", delta.key_width), ("qkv", delta.key_width), ("qkv", per * delta.value_width))
        runs = (*sizes, ("z", per * delta.value_width))
        split = RowSplit(delta.key_heads, tuple((f"{n}.{name}", size) for name, size in runs))
        found.append(Wanted(f"{n}.qkvz", (delta.channels + delta.values, width), "matrix", split=split))
    else:
        found.append(Wanted(f"{n}.qkv", (delta.channels, width), "matrix"))
        found.append(Wanted(f"{n}.z", (delta.values, width), "matrix"))
    if is_fused("ba"):
        split = RowSplit(delta.key_heads, ((f"{n}.beta", per), (f"{n}.alpha", per)))
        return [*found, Wanted(f"{n}.ba", (2 * delta.value_heads, width), "matrix", split=split)]
    return found + [Wanted(f"{n}.{name}", (delta.value_heads, width), "matrix") for name in ("alpha", "beta")]


def make_delta(
    layer: int, delta: DeltaConfig, eps: float, weights: Mapping[str, Weight], vectors: Mapping[str, Array]
) -> DeltaNet:
    """The layer from the loaded tensors. Its first norm may be absent from `vectors` where `mix` alone is used."""

    def vector(name: str) -> Array:
        return vectors[f"{layer}.{name}"]

    rule = DeltaRule(
        decay=vector("decay"),
        dt_bias=vector("dt_bias"),
        key_heads=delta.key_heads,
        value_heads=delta.value_heads,
        key_width=delta.key_width,
        value_width=delta.value_width,
        tiled=delta.tiled,
    )
    linears = {name: Linear(weights[f"{layer}.{name}"]) for name in ("qkv", "z", "alpha", "beta", "out")}
    return DeltaNet(
        norm=vectors.get(f"{layer}.norm1", vector("state_norm")),
        conv=vector("conv").reshape(delta.channels, delta.kernel),
        rule=rule,
        state_norm=vector("state_norm"),
        eps=eps,
        activation=delta.activation,
        **linears,
    )


def delta_memory(delta: DeltaConfig) -> StateMemory:
    """What a recurrent layer keeps of a sequence."""
    return StateMemory(delta.kernel - 1, delta.channels, delta.value_heads, delta.key_width, delta.value_width)
