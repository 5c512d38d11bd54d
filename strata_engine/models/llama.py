"""The llama family: pre-norm decoder with grouped-query attention and a gated MLP. Qwen2 and Qwen3 build on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import numpy as np

from strata_engine.core.batch import Batch, Hidden
from strata_engine.formats.base import WeightSource
from strata_engine.memory.kv import KvMemory, LayerMemory
from strata_engine.models.blocks import Attention, Linear, Mlp, keep_tap, pick_rows
from strata_engine.models.config import ModelConfig, Traits, read_config
from strata_engine.models.names import RowSplit, Wanted
from strata_engine.models.rotary import make_rotary
from strata_engine.models.vision.features import add_deepstack, put_features
from strata_kernels.ops import Array, Ops, Rotary, Rows, Weight


class Mixer(Protocol):
    """What mixes the rows of a sequence in a layer; adds its result to the residual stream."""

    def forward(self, x: Array, cache: Any, rows: Rows, ops: Ops) -> None:
        """x [R, W] += its result. `cache`: of the kind that the layer's memory makes."""
        ...


class Inner(Protocol):
    """What follows attention in a layer; adds its result to the residual stream."""

    def forward(self, x: Array, ops: Ops) -> None:
        """x [R, W] += its result."""
        ...


class Llama:
    """LlamaForCausalLM, and MistralForCausalLM without a sliding window (the same maths)."""

    family = "llama"
    sees: ClassVar[bool] = False
    traits = Traits(adjacent_gguf=True)

    @classmethod
    def configure(cls, source: WeightSource) -> ModelConfig:
        """Read the config of a checkpoint. Raises CorruptFile, UsageError."""
        return read_config(source, cls.family, cls.traits)

    @classmethod
    def wanted(cls, config: ModelConfig, source: WeightSource) -> list[Wanted]:
        """Every tensor, in the order of use."""
        found = [Wanted("embed", (config.vocab_size, config.width), "table")]
        if "rope_freqs.weight" in source.tensors():
            found.append(Wanted("rope_factors", (config.rope.dims // 2,), "vector"))
        for layer in range(config.layers):
            found += [*cls.mixer_tensors(config, layer, source), *cls.inner_tensors(config, layer, source)]
        found.append(Wanted("norm", (config.width,), "vector"))
        # a tied head is the embedding matrix again, packed for multiplying
        found.append(Wanted("embed" if config.tied else "head", (config.vocab_size, config.width), "matrix"))
        return found

    @classmethod
    def mixer_tensors(cls, config: ModelConfig, layer: int, source: WeightSource) -> list[Wanted]:
        """Both norms of a layer and the part that mixes rows."""
        return attention_tensors(config, layer)

    @classmethod
    def inner_tensors(cls, config: ModelConfig, layer: int, source: WeightSource) -> list[Wanted]:
        """The tensors of the part after attention, without its norm."""
        return mlp_tensors(config, layer)

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> None:
        self.config = config
        self._table = weights["embed.table"]
        self._head = Linear(weights["embed" if config.tied else "head"])
        self._norm = vectors["norm"]
        factors = vectors.get("rope_factors")
        self._rotary = make_rotary(config.rope, None if factors is None else np.asarray(factors))
        self._layers = [self._layer(n, weights, vectors) for n in range(config.layers)]

    def _layer(self, n: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> tuple[Mixer, Inner]:
        return self.mixer(n, weights, vectors), self.inner(n, weights, vectors)

    def mixer(self, n: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> Mixer:
        """The part of layer `n` that mixes rows."""

        def linear(name: str) -> Linear:
            return Linear(weights[f"{n}.{name}"], vectors.get(f"{n}.{name}_bias"))

        config = self.config
        return Attention(
            norm=vectors[f"{n}.norm1"],
            q=linear("q"),
            k=linear("k"),
            v=linear("v"),
            o=linear("o"),
            q_norm=vectors.get(f"{n}.q_norm"),
            k_norm=vectors.get(f"{n}.k_norm"),
            head_width=config.head_width,
            eps=config.norm_eps,
            rotary=self._rotary,
            gate=linear("q_gate") if config.gated_attention else None,
        )

    def inner(self, layer: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> Inner:
        """The part after attention."""
        names = (f"{layer}.{projection}" for projection in ("gate", "up", "down"))
        parts = (Linear(weights[name], vectors.get(f"{name}_bias")) for name in names)
        return Mlp(vectors[f"{layer}.norm2"], *parts, eps=self.config.norm_eps)

    @property
    def ends(self) -> tuple[Weight, Weight]:
        """The embedding table and the output head, which a draft head shares."""
        return self._table, self._head.weight

    @property
    def rotary(self) -> Rotary:
        """How queries and keys are rotated."""
        return self._rotary

    def final_norm(self, x: Array, ops: Ops, out: Array) -> None:
        """out = what the head multiplies, for rows of the last residual stream. out may be x."""
        ops.rms_norm(x, self._norm, self.config.norm_eps, out)

    @property
    def final_width(self) -> int:
        """A draft head takes rows after the final norm."""
        return self.config.width

    def memory(self) -> list[LayerMemory | None]:
        """One key and one value for each kv head in every layer."""
        return [KvMemory(self.config.kv_heads, self.config.head_width)] * self.config.layers

    def forward(self, batch: Batch, ops: Ops) -> Hidden:
        """The residual stream after the last layer of the rows that want logits, f32 [n, W]; of all for drafters."""
        x = ops.take(batch.count, self.config.width)
        ops.embed(batch.ids, self._table, x)
        put_features(x, batch, ops)
        last = len(self._layers) - 1
        for n, ((mixer, inner), cache) in enumerate(zip(self._layers, batch.caches, strict=True)):
            mixer.forward(x, cache, batch.rows, ops)
            if n == last and not batch.whole:  # nobody reads what follows for the other rows
                x = pick_rows(x, batch, ops)
            inner.forward(x, ops)
            if n != last:
                add_deepstack(x, batch, n, ops)
            keep_tap(x, n, batch, ops)
        if batch.final is not None:
            self.final_norm(x, ops, batch.final)
        return Hidden(x, picked=not batch.whole)

    def logits(self, hidden: Hidden, rows: Array, ops: Ops, out: Array) -> None:
        """out f32 [len(rows), V] = head(norm(hidden[rows]))."""
        with ops.scope():
            normed = ops.take(rows.shape[0], self.config.width)
            if not hidden.picked:
                ops.gather(hidden.rows, rows, normed)
            ops.rms_norm(hidden.rows if hidden.picked else normed, self._norm, self.config.norm_eps, normed)
            ops.linear(normed, [self._head.weight], [out])


def attention_tensors(config: ModelConfig, layer: int) -> list[Wanted]:
    """Norms and attention of a layer. With gates the rows of q are q and gate of the first head, of the second, ..."""
    width = config.width
    q_rows, kv_rows = config.heads * config.head_width, config.kv_heads * config.head_width
    q = Wanted("q", (q_rows, width), "matrix")
    if config.gated_attention:
        runs = ((f"{layer}.q", config.head_width), (f"{layer}.q_gate", config.head_width))
        q = Wanted("q", (2 * q_rows, width), "matrix", split=RowSplit(config.heads, runs))
    found = [
        Wanted("norm1", (width,), "vector"),
        q,
        Wanted("k", (kv_rows, width), "matrix"),
        Wanted("v", (kv_rows, width), "matrix"),
        Wanted("o", (width, q_rows), "matrix"),
        Wanted("norm2", (width,), "vector"),
    ]
    optional = {
        "q_bias": (q_rows, config.qkv_bias),
        "k_bias": (kv_rows, config.qkv_bias),
        "v_bias": (kv_rows, config.qkv_bias),
        "o_bias": (width, config.output_bias),
        "q_norm": (config.head_width, config.qk_norm),
        "k_norm": (config.head_width, config.qk_norm),
    }
    return _of_layer(layer, found, optional)


def mlp_tensors(config: ModelConfig, layer: int) -> list[Wanted]:
    """The gated MLP of a layer, without its norm."""
    width, inner = config.width, config.inner_width
    found = [
        Wanted("gate", (inner, width), "matrix"),
        Wanted("up", (inner, width), "matrix"),
        Wanted("down", (width, inner), "matrix"),
    ]
    sizes = {"gate_bias": inner, "up_bias": inner, "down_bias": width}
    return _of_layer(layer, found, {name: (size, config.mlp_bias) for name, size in sizes.items()})


def _of_layer(layer: int, found: list[Wanted], optional: Mapping[str, tuple[int, bool]]) -> list[Wanted]:
    """With the layer's number in the names, and the vectors that are there."""
    vectors = [Wanted(name, (size,), "vector") for name, (size, there) in optional.items() if there]
    return [replace(want, name=f"{layer}.{want.name}") for want in found + vectors]
