"""Qwen3.8-Flash-Next (qwen4_exp): four residual streams in place of norms, delta nets and block-sparse attention over
them, a mixture of experts in every layer, and hashed n-gram embeddings before one layer.

Norms of a Hugging Face checkpoint are centred on zero (1 is added while loading), except that of the delta net's heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from strata_engine.core.batch import Batch, Hidden
from strata_engine.errors import CorruptFile
from strata_engine.formats.base import WeightSource
from strata_engine.memory.kv import LayerMemory
from strata_engine.models.blocks import Linear, apply_linears, keep_final, keep_tap, pick_rows
from strata_engine.models.config import ModelConfig, Traits, read_config
from strata_engine.models.delta import DeltaNet, delta_memory, delta_tensors, make_delta
from strata_engine.models.exp_config import ExpConfig, gguf_exp, hf_exp
from strata_engine.models.fields import Fields
from strata_engine.models.mixture import mixture_tensors
from strata_engine.models.names import Wanted
from strata_engine.models.ple import NgramEmbedding, make_ngrams, ngram_memory, table_tensors
from strata_engine.models.qsa import SparseAttention, make_sparse, sparse_memory, sparse_tensors
from strata_engine.models.qwen3_moe import SharedExpert, make_experts, make_shared
from strata_engine.models.rotary import make_rotary
from strata_engine.models.streams import StreamReader, make_reader, reader_tensors, repeat_rows
from strata_kernels.ops import Array, Experts, Ops, Rows, Weight

_CENTRED = ("hc1_norm", "hc2_norm", "mix_norm", "q_norm", "k_norm", "index_q_norm", "index_k_norm")
_CENTRED_TABLE = ("ple_norm_key", "ple_norm_query", "ple_norm_conv")


@dataclass(frozen=True)
class StreamMixture:
    """The experts of a layer, and the one that works on every row."""

    router: Linear
    experts: Experts
    shared: SharedExpert | None

    def apply(self, x: Array, ops: Ops) -> Array:
        """experts(x) for x [R, W], in workspace."""
        out, shared = ops.take(*x.shape), self.shared
        if shared is None:
            (logits,) = apply_linears(x, (self.router,), ops)
            ops.experts(x, logits, self.experts, out)
            return out
        linears = (self.router, shared.router, shared.gate, shared.up)
        logits, scale, gate, up = apply_linears(x, linears, ops)
        ops.experts(x, logits, self.experts, out)
        shared.add_to(out, scale, (gate, up), ops)
        return out


Tap = Callable[[Array], None]


@dataclass(frozen=True)
class StreamLayer:
    """One layer over the streams."""

    ngrams: NgramEmbedding | None
    before_mixer: StreamReader
    mixer: DeltaNet | SparseAttention
    before_experts: StreamReader
    experts: StreamMixture

    def mix(self, x: Array, cache: object, ids: Array, rows: Rows, ops: Ops, tap: Tap | None = None) -> None:
        """x [R, S, W] += its n-grams, then the mixer's result. `tap` sees what the mixer reads of the streams."""
        own = cache
        if self.ngrams is not None:
            self.ngrams.add_to(x, ids, cache, rows, ops)  # type: ignore[arg-type]
            own = cache.inner  # type: ignore[attr-defined]
        with ops.scope():
            mixed, weights = self.before_mixer.read(x, ops)
            if tap is not None:
                tap(mixed)
            values = self.mixer.mix(mixed, own, rows, ops)  # type: ignore[arg-type]
            (result,) = apply_linears(values, (self.mixer.out,), ops)
            _inject(result, weights, x, ops)

    def think(self, x: Array, ops: Ops) -> None:
        """x [R, S, W] += the experts' result."""
        with ops.scope():
            mixed, weights = self.before_experts.read(x, ops)
            _inject(self.experts.apply(mixed, ops), weights, x, ops)


def _inject(result: Array, weights: Array | None, x: Array, ops: Ops) -> None:
    assert weights is not None, "only the last reader has no weights"
    ops.stream_add(result, weights, x)


class Qwen4Exp:
    """Qwen4ExpForCausalLM, and the text part of Qwen4ExpForConditionalGeneration."""

    family = "qwen4_exp"
    sees = False
    traits = Traits(
        qk_norm=True,
        mixture=True,
        renormalise=True,
        delta=True,
        tiled_gguf=True,
        gated_attention=True,
        partial_rotary=0.25,
    )

    @classmethod
    def configure(cls, source: WeightSource) -> ModelConfig:
        """Read the config of a checkpoint. Raises CorruptFile, UsageError."""
        config = read_config(source, cls.family, cls.traits)
        where = str(source.paths[0]) if source.paths else source.kind
        if config.mixture is None or config.mixture.dense_layers or config.delta is None:
            raise CorruptFile(f"{where}: every layer of a {cls.family} model has experts, and some are delta nets")
        if source.kind == "gguf":
            fields = Fields(source.metadata(), where)
            prefix = fields.text("general.architecture")
            ratios = fields.whole_numbers(f"{prefix}.attention.compress_ratios")
            recurrent = frozenset(n for n in range(config.layers) if n < len(ratios) and not ratios[n])
            delta = replace(config.delta, layers=recurrent, activation="sigmoid")
            return replace(config, delta=delta, exp=gguf_exp(source, fields, prefix))
        fields = Fields(source.metadata().get("config") or {}, where)
        return replace(config, exp=hf_exp(source, fields))

    @classmethod
    def wanted(cls, config: ModelConfig, source: WeightSource) -> list[Wanted]:
        """Every tensor, in the order of use."""
        exp = exp_of(config)
        found = [Wanted("embed", (config.vocab_size, config.width), "table")]
        for layer in range(config.layers):
            found += layer_tensors(config, exp, layer, source)
        found += reader_tensors("mix_", exp.streams, config.width, exp.low_rank, inject=False)
        found.append(Wanted("embed" if config.tied else "head", (config.vocab_size, config.width), "matrix"))
        return [spelled(want) if source.kind == "safetensors" else want for want in found]

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> None:
        self.config = config
        self._exp = exp_of(config)
        self._table = weights["embed.table"]
        self._head = Linear(weights["embed" if config.tied else "head"])
        self._rotary = make_rotary(config.rope)
        self._layers = [self.layer(n, weights, vectors) for n in range(config.layers)]
        self._last = make_reader("mix_", self._exp.streams, config.norm_eps, weights, vectors)

    @property
    def ends(self) -> tuple[Weight, Weight]:
        """The table of embeddings and the head's matrix, which a draft head shares."""
        return self._table, self._head.weight

    @property
    def final_width(self) -> int:
        """A draft head takes the streams."""
        return self._exp.streams * self.config.width

    def layer(self, n: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> StreamLayer:
        """A layer from the loaded tensors; one beyond the last is that of a draft head."""
        config, exp, mixture, delta = self.config, self._exp, self.config.mixture, self.config.delta
        assert mixture is not None and delta is not None, "configure checks it"
        eps, table = config.norm_eps, exp.table(n)
        if n in delta.layers:
            mixer = make_delta(n, delta, eps, weights, vectors)
        else:
            mixer = make_sparse(n, config, exp, self._rotary, weights, vectors)
        return StreamLayer(
            ngrams=table and make_ngrams(n, table, exp.streams, eps, weights, vectors),
            before_mixer=make_reader(f"{n}.hc1_", exp.streams, eps, weights, vectors),
            mixer=mixer,
            before_experts=make_reader(f"{n}.hc2_", exp.streams, eps, weights, vectors),
            experts=StreamMixture(
                Linear(weights[f"{n}.router"]), make_experts(n, mixture, weights), make_shared(n, mixture, weights)
            ),
        )

    def memory(self) -> list[LayerMemory | None]:
        """States of the delta nets, keys, values and index keys of the others, and what the n-gram parts keep."""
        return [self._memory_of(n) for n in range(self.config.layers)]

    def _memory_of(self, n: int) -> LayerMemory:
        config, exp, delta, table = self.config, self._exp, self.config.delta, self._exp.table(n)
        own = delta_memory(delta) if delta and n in delta.layers else sparse_memory(config, exp)
        return own if table is None else ngram_memory(table, exp.streams, config.width, own)

    def forward(self, batch: Batch, ops: Ops) -> Hidden:
        """The streams after the last layer of the rows that want logits, f32 [n, S W]; of all for drafters.

        A tap after a layer is what the next layer's mixer reads of the streams: one vector as wide as the model.
        """
        width, streams = self.config.width, self._exp.streams
        embedded = ops.take(batch.count, width)
        ops.embed(batch.ids, self._table, embedded)
        x = repeat_rows(embedded, streams, ops)
        last = len(self._layers) - 1
        for n, (layer, cache) in enumerate(zip(self._layers, batch.caches, strict=True)):
            tap = partial(keep_tap, layer=n - 1, batch=batch, ops=ops)
            layer.mix(x, cache, batch.ids, batch.rows, ops, tap)
            if n == last and not batch.whole:  # nobody reads what follows for the other rows
                x = pick_rows(x.reshape(batch.count, -1), batch, ops).reshape(-1, streams, width)
            layer.think(x, ops)
        wide = x.reshape(-1, streams * width)
        keep_final(wide, batch, ops)
        if last in batch.tap_layers:
            with ops.scope():
                keep_tap(self._last.read(x, ops)[0], last, batch, ops)
        return Hidden(wide, picked=not batch.whole)

    def logits(self, hidden: Hidden, rows: Array, ops: Ops, out: Array) -> None:
        """out f32 [len(rows), V] = head of the gated mean of the streams."""
        with ops.scope():
            picked = hidden.rows
            if not hidden.picked:
                picked = ops.take(rows.shape[0], self.final_width)
                ops.gather(hidden.rows, rows, picked)
            x = picked.reshape(-1, self._exp.streams, self.config.width)
            mixed, _ = self._last.read(x, ops)
            ops.linear(mixed, [self._head.weight], [out])


def exp_of(config: ModelConfig) -> ExpConfig:
    """The numbers of this family, which `configure` sets."""
    assert config.exp is not None, "configure sets it"
    return config.exp


def layer_tensors(config: ModelConfig, exp: ExpConfig, n: int, source: WeightSource) -> list[Wanted]:
    """The tensors of one layer, in the order of use."""
    delta, mixture, table = config.delta, config.mixture, exp.table(n)
    assert delta is not None and mixture is not None, "configure checks it"
    found: list[Wanted] = []
    if table is not None:
        found += table_tensors(n, table, exp.streams, config.width, source)
    found += reader_tensors(f"{n}.hc1_", exp.streams, config.width, exp.low_rank)
    if n in delta.layers:
        found += delta_tensors(n, delta, config.width, source, fused=False)
    else:
        found += sparse_tensors(config, exp, n, source.kind)
    found += reader_tensors(f"{n}.hc2_", exp.streams, config.width, exp.low_rank)
    return found + mixture_tensors(n, mixture, config.width, source)


def spelled(want: Wanted) -> Wanted:
    """With the 1 that checkpoints leave out of their norms."""
    name = want.name.rpartition(".")[2]
    return replace(want, change="plus one") if name in (*_CENTRED, *_CENTRED_TABLE) else want
