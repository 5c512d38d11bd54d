"""DFlash drafters: a few layers that guess a whole block of tokens in one pass over what the target left behind.

Two ways through the same layers. *Context*: for each token the target has computed, residuals of some of its layers
(taps) become one vector, and that vector's keys and values go into the drafter's pages; nothing else happens to it, so
context rows may come in any order and any chunks. *Block*: the newest token and masks after it are ordinary rows that
attend to the context and, in most drafters, to each other both ways. Their keys and values lie in the sequence's pages
where its next tokens will overwrite them. Embedding and head are the target's. Source: arXiv 2602.06036.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.memory.kv import KvMemory, LayerMemory
from strata_engine.models.blocks import Attention, Linear, Mlp
from strata_engine.models.dflash2 import Selector, WithConvolutions, convolutions, second_tensors, selector
from strata_engine.models.dflash_config import DFlashConfig, check_target, is_second
from strata_engine.models.load import read_tensors
from strata_engine.models.names import NOT_NEEDED, RowSplit, Wanted
from strata_engine.models.rotary import make_rotary
from strata_kernels.ops import Array, KvLayer, Ops, Rotary, Rows, Weight

_ALIASES = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
_HEADS = ("markov", "domino", "confidence")  # of relatives: their backbone drafts without them
PREFIX = "model."


@dataclass(frozen=True)
class BlockRows:
    """Where the rows of a step's blocks sit, by what layers see: (window, causal) -> rows."""

    by_view: Mapping[tuple[int, bool], Rows]


@dataclass(frozen=True)
class Layer:
    """A layer of the drafter on block rows."""

    attention: Attention
    mlp: Mlp

    def forward(self, x: Array, cache: KvLayer, rows: Rows, ops: Ops) -> None:
        """x [R, W] goes through the layer."""
        self.attention.forward(x, cache, rows, ops)
        self.mlp.forward(x, ops)


@dataclass(frozen=True)
class DFlash:
    """A loaded drafter with what it shares with the target. `selector`: of version 2."""

    config: DFlashConfig
    table: Weight
    head: Weight
    fc: Linear
    context_norm: Array
    layers: tuple[Layer | WithConvolutions, ...]
    norm: Array
    packed_bytes: int
    selector: Selector | None = None
    notes: tuple[str, ...] = ()

    def memory(self) -> list[LayerMemory | None]:
        """A key and a value for each kv head in every layer."""
        return [KvMemory(self.config.kv_heads, self.config.head_width)] * self.config.layers

    def context(self, features: Array, caches: tuple[Any, ...], rows: Rows, ops: Ops) -> None:
        """Keys and values of all layers for tokens whose taps are `features` f32 [R, taps * W]."""
        count, config = features.shape[0], self.config
        with ops.scope():
            x = ops.take(count, config.width)
            ops.linear(features, [self.fc.weight], [x])
            ops.rms_norm(x, self.context_norm, config.norm_eps, x)
            kept = [layer.attention for layer in self.layers]
            shape = (count, config.kv_heads * config.head_width)
            made = [(ops.take(*shape), ops.take(*shape)) for _ in kept]
            # one call, so that the rows are quantised once
            weights = [linear.weight for attention in kept for linear in (attention.k, attention.v)]
            ops.linear(x, weights, [out for pair in made for out in pair])
            for attention, pair, cache in zip(kept, made, caches, strict=True):
                k, v = (part.reshape(count, config.kv_heads, config.head_width) for part in pair)
                attention.keep(k, v, cache, rows, ops)

    def block(self, ids: Array, caches: tuple[Any, ...], rows: BlockRows, ops: Ops) -> Array:
        """f32 [R, W]: what the head multiplies, of block rows `ids` i32 [R], in the workspace of the enclosing scope.

        The rows of one block stand together, the anchor's first.
        """
        x = ops.take(ids.shape[0], self.config.width)
        ops.embed(ids, self.table, x)
        for layer, view, cache in zip(self.layers, self.config.views, caches, strict=True):
            layer.forward(x, cache, rows.by_view[view.window, view.causal], ops)
        ops.rms_norm(x, self.norm, self.config.norm_eps, x)
        return x

    def logits(self, hidden: Array, ops: Ops, out: Array) -> None:
        """out f32 [R, V] of states that `block` gave."""
        ops.linear(hidden, [self.head], [out])


def plain_name(name: str) -> str:
    """A DFlash tensor's name without the prefix, aliases resolved."""
    bare = name.removeprefix(PREFIX)
    return next((plain for plain, alias in _ALIASES.items() if alias == bare), bare)


class Renamed:
    """A drafter's checkpoint under its plain names, as `plain` gives them."""

    def __init__(self, inner: WeightSource, plain: Callable[[str], str] = plain_name) -> None:
        self._inner = inner
        self.kind, self.paths = inner.kind, inner.paths
        self._stored = {plain(name): name for name in inner.tensors()}
        if len(self._stored) != len(inner.tensors()):
            raise CorruptFile(f"{self.paths[0]}: tensors are stored twice, under different names")
        shown = {bare: replace(inner.tensors()[name], name=bare) for bare, name in self._stored.items()}
        self._tensors: dict[str, TensorMeta] = shown

    def metadata(self) -> Mapping[str, Any]:
        """As the inner source's."""
        return self._inner.metadata()

    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors by plain name."""
        return self._tensors

    def read(self, name: str) -> memoryview:
        """The bytes of a stored tensor."""
        return self._inner.read(self._stored[name])

    def close(self) -> None:
        """Close the inner source."""
        self._inner.close()


def dflash_tensors(config: DFlashConfig, names: Mapping[str, Any]) -> list[Wanted]:
    """Every tensor of a drafter, in the order of use. `names`: those it has, to see which projections are fused."""
    width = config.width
    found = [
        Wanted("fc", (width, len(config.taps) * width), "matrix", stored="fc.weight"),
        Wanted("context_norm", (width,), "vector", stored="hidden_norm.weight"),
    ]
    for layer in range(config.layers):
        found += _layer_tensors(config, layer, names)
    if config.second is not None:
        found += second_tensors(config, config.second)
    return [*found, Wanted("norm", (width,), "vector", stored="norm.weight")]


def _layer_tensors(config: DFlashConfig, n: int, names: Mapping[str, Any]) -> list[Wanted]:
    width, inner = config.width, config.inner_width
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width

    def want(ours: str, shape: tuple[int, ...], stored: str, use: str = "matrix") -> Wanted:
        return Wanted(f"{n}.{ours}", shape, use, stored=f"layers.{n}.{stored}.weight")

    fused = f"layers.{n}.self_attn.qkv_proj"
    if any(name.startswith(fused) for name in names):
        runs = tuple((f"{n}.{part}", rows) for part, rows in (("q", queries), ("k", keys), ("v", keys)))
        mixers = [replace(want("qkv", (queries + 2 * keys, width), "self_attn.qkv_proj"), split=RowSplit(1, runs))]
    else:
        mixers = [
            want("q", (queries, width), "self_attn.q_proj"),
            want("k", (keys, width), "self_attn.k_proj"),
            want("v", (keys, width), "self_attn.v_proj"),
        ]
    return [
        want("norm1", (width,), "input_layernorm", "vector"),
        *mixers,
        want("q_norm", (config.head_width,), "self_attn.q_norm", "vector"),
        want("k_norm", (config.head_width,), "self_attn.k_norm", "vector"),
        want("o", (width, queries), "self_attn.o_proj"),
        want("norm2", (width,), "post_attention_layernorm", "vector"),
        want("gate", (inner, width), "mlp.gate_proj"),
        want("up", (inner, width), "mlp.up_proj"),
        want("down", (width, inner), "mlp.down_proj"),
    ]


def load_dflash(
    source: WeightSource, config: DFlashConfig, target: Any, ops: Ops, mmap: bool = True, rest: str = "none"
) -> DFlash:
    """A drafter for a loaded target (a Model with `ends`). `rest`: as load_model's.

    Raises CorruptFile, UsageError naming what does not fit.
    """
    check_target(config, target.config)
    if is_second(source) and config.second is None:
        raise CorruptFile(
            f"{config.where}: the drafter calls itself DFlash2 but lacks conv_kernel_size and selector_rank",
            details={"key": "selector_rank"},
        )
    shown = Renamed(source)
    if config.second is None and any("candidate_selector" in name or "_conv." in name for name in shown.tensors()):
        text = f"{config.where}: the tensors are those of DFlash2, config.json is that of DFlash"
        raise UsageError(text, hint="take the config.json that belongs to the weights")
    store, _ = read_tensors(shown, dflash_tensors(config, shown.tensors()), ops, mmap, rest=rest)
    notes = _check_unused(config, store.unused)
    weights, vectors = store.weights, store.vectors
    (table, head), rotary = target.ends, make_rotary(config.rope)
    return DFlash(
        config=config,
        table=table,
        head=head,
        fc=Linear(weights["fc"]),
        context_norm=vectors["context_norm"],
        layers=tuple(_layer(config, n, weights, vectors, rotary) for n in range(config.layers)),
        norm=vectors["norm"],
        packed_bytes=store.packed_bytes,
        selector=selector(config, weights),
        notes=notes,
    )


def _check_unused(config: DFlashConfig, names: list[str]) -> tuple[str, ...]:
    unused = [name for name in names if not NOT_NEEDED.fullmatch(name)]
    unknown = [name for name in unused if not any(word in name for word in _HEADS)]
    if unknown:
        shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        text = f"{config.where}: {len(unknown)} tensors are not known to DFlash drafters: {shown}"
        raise CorruptFile(text, hint="is it another kind of drafter?", details={"unknown": unknown})
    return (f"{len(unused)} tensors of further heads are not used, such as {unused[0]}",) if unused else ()


def _layer(
    config: DFlashConfig, n: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array], rotary: Rotary
) -> Layer | WithConvolutions:
    def linear(name: str) -> Linear:
        return Linear(weights[f"{n}.{name}"])

    attention = Attention(
        norm=vectors[f"{n}.norm1"],
        q=linear("q"),
        k=linear("k"),
        v=linear("v"),
        o=linear("o"),
        q_norm=vectors[f"{n}.q_norm"],
        k_norm=vectors[f"{n}.k_norm"],
        head_width=config.head_width,
        eps=config.norm_eps,
        rotary=rotary,
    )
    mlp = Mlp(vectors[f"{n}.norm2"], linear("gate"), linear("up"), linear("down"), eps=config.norm_eps)
    if config.second is None:
        return Layer(attention, mlp)
    return WithConvolutions(attention, mlp, *convolutions(config.second, n, weights, vectors))
