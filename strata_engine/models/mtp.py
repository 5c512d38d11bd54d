"""Draft heads (multi-token prediction): one more layer that guesses the token after next. Loaded on demand only.

For position t the head takes the model's hidden state after the final norm and the embedding of token t+1; its output,
normed, gives logits of token t+2 through the model's own head, and is the hidden state of the next guess. The layer
attends over keys and values of its own. Its rotary positions may be t or t+1, as long as it is the same for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_engine.errors import UsageError
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.memory.kv import KvMemory
from strata_engine.models.blocks import Linear
from strata_engine.models.config import ModelConfig
from strata_engine.models.llama import Inner, Llama, Mixer, attention_tensors
from strata_engine.models.load import half_names, read_tensors
from strata_engine.models.names import Wanted, stored_name
from strata_engine.models.qwen3_5 import Qwen35, spelled
from strata_kernels.ops import Array, KvLayer, Ops, Rows, Weight


class DraftSource:
    """A checkpoint with the layer of its draft head as one layer more of the model."""

    def __init__(self, inner: WeightSource, layers: int) -> None:
        self._inner = inner
        self.kind = inner.kind
        self.paths: tuple[Path, ...] = inner.paths
        first = f"model.layers.{layers}."
        self._tensors = {name.replace("mtp.layers.0.", first): meta for name, meta in inner.tensors().items()}

    def metadata(self) -> Mapping[str, Any]:
        """As the inner source's."""
        return self._inner.metadata()

    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors; the metas keep the stored names."""
        return self._tensors

    def read(self, name: str) -> memoryview:
        """The bytes of a stored tensor."""
        return self._inner.read(name)

    def close(self) -> None:
        """Close the inner source."""
        self._inner.close()


@dataclass(frozen=True)
class DraftHead:
    """One draft block with what it shares with the model. `left` multiplies the embedding, `right` the hidden state."""

    config: ModelConfig
    table: Weight
    embed_norm: Array
    hidden_norm: Array
    left: Linear
    right: Linear
    mixer: Mixer
    inner: Inner
    norm: Array
    head: Weight
    packed_bytes: int

    def memory(self) -> KvMemory:
        """What it keeps of each token."""
        return KvMemory(self.config.kv_heads, self.config.head_width)

    @property
    def states_width(self) -> int:
        """Of the states that it takes and gives."""
        return self.config.width

    def forward(
        self, ids: Array, hidden: Array, cache: KvLayer, rows: Rows, ops: Ops, pick: Array | None = None
    ) -> Array:
        """f32 [R, W]: the hidden states after its norm, in the workspace of the enclosing scope.

        `ids` i32 [R]: the tokens that follow the rows; `hidden` f32 [R, W]: the model's states after its final norm, or
        what an earlier call gave. `pick` i32 [n]: only these rows, [n, W]; the others end once their keys are stored.
        """
        eps, x = self.config.norm_eps, ops.take(*hidden.shape)
        with ops.scope():
            part = ops.take(*hidden.shape)
            ops.embed(ids, self.table, part)
            ops.rms_norm(part, self.embed_norm, eps, part)
            ops.linear(part, [self.left.weight], [x])
            ops.rms_norm(hidden, self.hidden_norm, eps, part)
            ops.linear(part, [self.right.weight], [x], add=True)
        self.mixer.forward(x, cache, rows, ops)
        if pick is not None:
            picked = ops.take(pick.shape[0], x.shape[1])
            ops.gather(x, pick, picked)
            x = picked
        self.inner.forward(x, ops)
        ops.rms_norm(x, self.norm, eps, x)
        return x

    def logits(self, hidden: Array, ops: Ops, out: Array) -> None:
        """out f32 [R, V] of states that `forward` gave."""
        ops.linear(hidden, [self.head], [out])


def draft_tensors(model: Llama, source: WeightSource) -> list[Wanted]:
    """The tensors of the first draft block, in the order of use. `source`: as DraftSource shows it."""
    config = model.config
    n, width, vocab = config.layers, config.width, config.vocab_size
    found = [Wanted(f"{n}.draft_{name}", (width,), "vector") for name in ("embed_norm", "hidden_norm")]
    found.append(Wanted(f"{n}.draft", (width, 2 * width), "halves"))
    found += [*attention_tensors(config, n), *model.inner_tensors(config, n, source)]
    found.append(Wanted(f"{n}.draft_norm", (width,), "vector"))
    own = (Wanted(f"{n}.draft_embed", (vocab, width), "table"), Wanted(f"{n}.draft_head", (vocab, width), "matrix"))
    found += [want for want in own if stored_name(want.name, source.kind) in source.tensors()]
    return [spelled(want, source.kind) for want in found]


def load_draft(source: WeightSource, model: Llama, ops: Ops, mmap: bool = True) -> DraftHead | None:
    """The draft head of a checkpoint whose model is loaded; None when it has none. Raises as load_model."""
    config = model.config
    if not config.draft_layers:
        return None
    if not isinstance(model, Qwen35):
        where = source.paths[0] if source.paths else source.kind
        raise UsageError(f"{where}: draft heads of {config.architecture} are not supported")
    n, shown = config.layers, DraftSource(source, config.layers)
    store, _ = read_tensors(shown, draft_tensors(model, shown), ops, mmap)
    weights, vectors = store.weights, store.vectors
    table, head = model.ends
    left, right = (Linear(weights[name]) for name in half_names(f"{n}.draft"))
    return DraftHead(
        config=config,
        table=weights.get(f"{n}.draft_embed.table", table),
        embed_norm=vectors[f"{n}.draft_embed_norm"],
        hidden_norm=vectors[f"{n}.draft_hidden_norm"],
        left=left,
        right=right,
        mixer=model.mixer(n, weights, vectors),
        inner=model.inner(n, weights, vectors),
        norm=vectors[f"{n}.draft_norm"],
        head=weights.get(f"{n}.draft_head", head),
        packed_bytes=store.packed_bytes,
    )
