"""The draft head of Qwen3.8-Flash-Next: one more layer over the streams that guesses the token after next.

For position t it takes the model's streams (before they become one) and the embedding of token t+1. What it gives are
the streams of the next guess and, through a mixer of its own and the model's head, the logits of token t+2. The layer
has keys, values and index keys of its own, and no n-grams. Loaded on demand only. GGUF files do not hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strata_engine.formats.base import WeightSource
from strata_engine.memory.sparse import IndexedLayer, IndexedMemory
from strata_engine.models.blocks import Linear
from strata_engine.models.config import ModelConfig
from strata_engine.models.load import read_tensors
from strata_engine.models.mtp import DraftSource
from strata_engine.models.names import Wanted
from strata_engine.models.qsa import sparse_memory
from strata_engine.models.qwen4_exp import Qwen4Exp, StreamLayer, exp_of, layer_tensors, spelled
from strata_engine.models.streams import StreamReader, make_reader, reader_tensors, repeat_rows
from strata_kernels.ops import Array, Ops, Rows, Weight

_MIXER = {"norm": "hc_norm", "down": "input_mix_weight_down", "up": "input_mix_weight_up"}


@dataclass(frozen=True)
class StreamDraft:
    """One draft block with what it shares with the model. `hidden_norm` [S W]: over all streams as one vector."""

    config: ModelConfig
    table: Weight
    embed_norm: Array
    hidden_norm: Array
    embed: Linear
    hidden: Linear
    layer: StreamLayer
    mixer: StreamReader
    head: Weight
    packed_bytes: int

    def memory(self) -> IndexedMemory:
        """What it keeps of each token."""
        return sparse_memory(self.config, exp_of(self.config))

    @property
    def states_width(self) -> int:
        """Of the streams that it takes and gives, side by side."""
        return exp_of(self.config).streams * self.config.width

    def forward(
        self, ids: Array, streams: Array, cache: IndexedLayer, rows: Rows, ops: Ops, pick: Array | None = None
    ) -> Array:
        """f32 [R, S W]: the streams after the block, in the workspace of the enclosing scope.

        `ids` i32 [R]: the tokens that follow the rows; `streams` f32 [R, S W]: those of the model after its last layer,
        or what an earlier call gave. `pick` i32 [n]: only these rows, [n, S W]; the others end once their keys are
        stored.
        """
        count, width, eps = ids.shape[0], self.config.width, self.config.norm_eps
        embedded, first, normed = ops.take(count, width), ops.take(count, width), ops.take(*streams.shape)
        ops.embed(ids, self.table, embedded)
        ops.rms_norm(embedded, self.embed_norm, eps, embedded)
        ops.linear(embedded, [self.embed.weight], [first])
        x = repeat_rows(first, exp_of(self.config).streams, ops)
        ops.rms_norm(streams, self.hidden_norm, eps, normed)
        ops.linear(normed.reshape(-1, width), [self.hidden.weight], [x.reshape(-1, width)], add=True)
        self.layer.mix(x, cache, ids, rows, ops)
        if pick is not None:
            picked = ops.take(pick.shape[0], self.states_width)
            ops.gather(x.reshape(count, -1), pick, picked)
            x = picked.reshape(pick.shape[0], *x.shape[1:])
        self.layer.think(x, ops)
        return x.reshape(x.shape[0], -1)

    def logits(self, streams: Array, ops: Ops, out: Array) -> None:
        """out f32 [R, V] of streams that `forward` gave."""
        with ops.scope():
            x = streams.reshape(-1, exp_of(self.config).streams, self.config.width)
            mixed, _ = self.mixer.read(x, ops)
            ops.linear(mixed, [self.head], [out])


def stream_draft_tensors(config: ModelConfig, source: WeightSource) -> list[Wanted]:
    """The tensors of the draft block, in the order of use. `source`: as DraftSource shows it."""
    exp, n, width = exp_of(config), config.layers, config.width
    wide = exp.streams * width
    found = [
        Wanted(f"{n}.draft_embed_norm", (width,), "vector", change="plus one"),
        Wanted(f"{n}.draft_hidden_norm", (wide,), "vector", change="plus one"),
        Wanted("draft_fc_embed", (width, width), "matrix", stored="mtp.fc_embedding.weight"),
        Wanted("draft_fc_hidden", (width, width), "matrix", stored="mtp.fc_hidden.weight"),
        *layer_tensors(config, exp, n, source),
    ]
    for want in reader_tensors("mix_", exp.streams, width, exp.low_rank, inject=False):
        stored = f"mtp.hyper_connection_mixer.{_MIXER[want.name.removeprefix('mix_')]}.weight"
        found.append(replace(want, stored=stored))
    return [spelled(want) for want in found]


def load_stream_draft(source: WeightSource, model: Qwen4Exp, ops: Ops, mmap: bool = True) -> StreamDraft | None:
    """The draft head of a checkpoint whose model is loaded; None when it has none. Raises as load_model."""
    config, n = model.config, model.config.layers
    if "mtp.fc_embedding.weight" not in source.tensors():
        return None
    shown = DraftSource(source, n)
    store, _ = read_tensors(shown, stream_draft_tensors(config, shown), ops, mmap)
    weights, vectors = store.weights, store.vectors
    table, head = model.ends
    return StreamDraft(
        config=config,
        table=table,
        embed_norm=vectors[f"{n}.draft_embed_norm"],
        hidden_norm=vectors[f"{n}.draft_hidden_norm"],
        embed=Linear(weights["draft_fc_embed"]),
        hidden=Linear(weights["draft_fc_hidden"]),
        layer=model.layer(n, weights, vectors),
        mixer=make_reader("mix_", exp_of(config).streams, config.norm_eps, weights, vectors),
        head=head,
        packed_bytes=store.packed_bytes,
    )
