"""EAGLE-3 drafters: one layer that guesses the token after next from what three layers of the target left behind.

For position t the layer takes the embedding of token t + 1 beside a state: `fc` of the target's three residuals (taps)
of position t, or in a chain what the layer itself left for the guess before. Its output is logits, through a norm and a
head over a vocabulary that is mostly smaller than the target's: token of the target = id + d2t[id]. Unlike a draft head
of the target's own, the state is not normed between guesses. Source: arXiv 2503.01840, notes/speculative.md 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.memory.kv import KvMemory
from strata_engine.models.blocks import Attention, Linear, Mlp, add_linear
from strata_engine.models.dflash import Renamed
from strata_engine.models.eagle3_config import MIDDLE, TAPS, Eagle3Config, plain_name
from strata_engine.models.load import Store, read_tensors
from strata_engine.models.names import NOT_NEEDED, Wanted
from strata_engine.models.rotary import make_rotary
from strata_kernels.ops import Array, KvLayer, Ops, Rows, Weight

EMBEDDING, HEAD, OFFSETS, MASK = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
_INTEGERS = {"I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True)
class Eagle3:
    """A loaded drafter. `table`, `head`: its own, or the target's where it stores none.

    `targets` i32 [Vd]: the target's token of each of its ids, `ids` the same as an array of the ops, i32 [Vd, 1]; None:
    both count alike.
    """

    config: Eagle3Config
    table: Weight
    head: Weight
    targets: NDArray[np.int32] | None
    ids: Array | None
    fc: Linear
    embed_norm: Array
    attention: Attention
    mlp: Mlp
    norm: Array
    packed_bytes: int
    shared: tuple[str, ...] = ()

    def memory(self) -> KvMemory:
        """What it keeps of each token."""
        return KvMemory(self.config.kv_heads, self.config.head_width)

    @property
    def states_width(self) -> int:
        """Of the taps of a row together."""
        return TAPS * self.config.width

    def forward(
        self, ids: Array, states: Array, cache: KvLayer, rows: Rows, ops: Ops, pick: Array | None = None
    ) -> Array:
        """f32 [R, W]: what the layer leaves, in the workspace of the enclosing scope.

        `states` f32 [R, 3 W]: the target's taps, with `ids` i32 [R] the target's tokens that follow the rows; or
        f32 [R, W]: what an earlier call gave, with ids of the drafter's own vocabulary; it is written over. `pick` i32
        [n]: only these rows, [n, W]; the others end once their keys are stored.
        """
        count, x = states.shape[0], states
        if states.shape[1] != self.config.width:
            x = ops.take(count, self.config.width)
            ops.linear(states, [self.fc.weight], [x])
        elif self.ids is not None:
            own, ids = ids, ops.take(count, 1, dtype="i32")
            ops.gather(self.ids, own, ids)
            ids = ids.reshape(count)
        with ops.scope():
            both = self._both(ids, x, ops)
            add_linear(self.attention.mix(both, cache, rows, ops), self.attention.o, x, ops)
        if pick is not None:
            picked = ops.take(pick.shape[0], self.config.width)
            ops.gather(x, pick, picked)
            x = picked
        self.mlp.forward(x, ops)
        if self.config.norm_output:
            ops.rms_norm(x, self.norm, self.config.norm_eps, x)
        return x

    def _both(self, ids: Array, x: Array, ops: Ops) -> Array:
        """The normed embeddings and the normed states side by side, f32 [R, 2 W]."""
        count, width = x.shape
        parts, both = ops.take(2 * count, width), ops.take(count, 2 * width)
        ops.embed(ids, self.table, parts[:count])
        ops.rms_norm(parts[:count], self.embed_norm, self.config.norm_eps, parts[:count])
        ops.rms_norm(x, self.attention.norm, self.config.norm_eps, parts[count:])
        # seen as rows of W elements, those of the two halves take turns
        turns = np.arange(2 * count, dtype=np.int32).reshape(2, count).T.reshape(-1)
        ops.gather(parts, ops.constant(turns.copy()), both.reshape(2 * count, width))
        return both

    def logits(self, left: Array, ops: Ops, out: Array) -> None:
        """out f32 [R, Vd] of what `forward` gave."""
        with ops.scope():
            normed = left
            if not self.config.norm_output:
                normed = ops.take(*left.shape)
                ops.rms_norm(left, self.norm, self.config.norm_eps, normed)
            ops.linear(normed, [self.head], [out])


def eagle3_tensors(config: Eagle3Config, names: Mapping[str, Any]) -> list[Wanted]:
    """Every tensor of a drafter, in the order of use. `names`: those it has; embedding and head may be the target's."""
    width, inner = config.width, config.inner_width
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width

    def want(ours: str, shape: tuple[int, ...], stored: str, use: str = "matrix") -> Wanted:
        return Wanted(f"0.{ours}", shape, use, stored=f"{MIDDLE}{stored}.weight")

    found = [
        Wanted("fc", (width, TAPS * width), "matrix", stored="fc.weight"),
        want("embed_norm", (width,), "input_layernorm", "vector"),
        want("hidden_norm", (width,), "hidden_norm", "vector"),
        want("q", (queries, 2 * width), "self_attn.q_proj"),
        want("k", (keys, 2 * width), "self_attn.k_proj"),
        want("v", (keys, 2 * width), "self_attn.v_proj"),
        want("o", (width, queries), "self_attn.o_proj"),
        want("norm2", (width,), "post_attention_layernorm", "vector"),
        want("gate", (inner, width), "mlp.gate_proj"),
        want("up", (inner, width), "mlp.up_proj"),
        want("down", (width, inner), "mlp.down_proj"),
        Wanted("norm", (width,), "vector", stored="norm.weight"),
    ]
    if EMBEDDING in names:
        found.append(Wanted("embed", (config.vocab_size, width), "table", stored=EMBEDDING))
    if HEAD in names or config.draft_vocab_size != config.vocab_size:
        found.append(Wanted("head", (config.draft_vocab_size, width), "matrix", stored=HEAD))
    return found


def load_eagle3(
    source: WeightSource, config: Eagle3Config, target: Any, ops: Ops, mmap: bool = True, rest: str = "none"
) -> Eagle3:
    """A drafter for a loaded target (a Model with `ends`). `rest`: as load_model's.

    Raises CorruptFile naming what is missing, unknown or misshapen; UsageError.
    """
    shown = Renamed(source, plain_name)
    names = shown.tensors()
    if config.tied and EMBEDDING in names and HEAD not in names:
        raise UsageError(f"{config.where}: a head that is the drafter's own embedding again is not supported")
    store, _ = read_tensors(shown, eagle3_tensors(config, names), ops, mmap, rest=rest)
    _check_unused(config, store.unused)
    targets = _targets(config, shown)
    ends: tuple[Weight, Weight] = target.ends
    weights, vectors = store.weights, store.vectors
    shared = (("embedding", "embed.table"), ("head", "head"))
    return Eagle3(
        config=config,
        table=weights.get("embed.table", ends[0]),
        head=weights.get("head", ends[1]),
        targets=targets,
        ids=None if targets is None else ops.constant(targets.reshape(-1, 1)),
        fc=Linear(weights["fc"]),
        embed_norm=vectors["0.embed_norm"],
        attention=_attention(config, store),
        mlp=Mlp(vectors["0.norm2"], *(Linear(weights[f"0.{n}"]) for n in ("gate", "up", "down")), eps=config.norm_eps),
        norm=vectors["norm"],
        packed_bytes=store.packed_bytes,
        shared=tuple(what for what, name in shared if name not in weights),
    )


def _attention(config: Eagle3Config, store: Store) -> Attention:
    """The norm is that of the states; the embedding has its own."""
    q, k, v, o = (Linear(store.weights[f"0.{name}"]) for name in ("q", "k", "v", "o"))
    return Attention(
        norm=store.vectors["0.hidden_norm"],
        q=q,
        k=k,
        v=v,
        o=o,
        q_norm=None,
        k_norm=None,
        head_width=config.head_width,
        eps=config.norm_eps,
        rotary=make_rotary(config.rope),
    )


def _check_unused(config: Eagle3Config, names: list[str]) -> None:
    unknown = [name for name in names if name not in (OFFSETS, MASK) and not NOT_NEEDED.fullmatch(name)]
    if unknown:
        shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        text = f"{config.where}: {len(unknown)} tensors are not known to EAGLE-3 drafters: {shown}"
        raise CorruptFile(text, hint="is it another kind of drafter?", details={"unknown": unknown})


def _targets(config: Eagle3Config, source: WeightSource) -> NDArray[np.int32] | None:
    """The target's token of each of the drafter's ids; None where both count alike. Raises CorruptFile."""
    small, whole = config.draft_vocab_size, config.vocab_size
    meta = source.tensors().get(OFFSETS)
    if meta is None:
        if small != whole:
            text = f"{config.where}: {OFFSETS} is missing, and draft_vocab_size {small} is not vocab_size {whole}"
            raise CorruptFile(text, details={"missing": [OFFSETS]})
        return None
    if meta.shape != (small,) or meta.type not in _INTEGERS:
        stored = f"{meta.type} {list(meta.shape)}"
        raise CorruptFile(f"{config.where}: {OFFSETS} is {stored}, expected whole numbers [{small}]")
    offsets = np.frombuffer(bytes(source.read(OFFSETS)), _INTEGERS[meta.type]).astype(np.int64)
    found = offsets + np.arange(small)
    if found.min() < 0 or found.max() >= whole:
        text = (
            f"{config.where}: {OFFSETS} leads to tokens {found.min()} to {found.max()}, the model has 0 to {whole - 1}"
        )
        raise CorruptFile(text, details={"tensor": OFFSETS})
    if len(np.unique(found)) != small:
        raise CorruptFile(f"{config.where}: {OFFSETS} gives several of {small} ids the same token")
    _check_mask(config, source, found)
    return found.astype(np.int32)


def _check_mask(config: Eagle3Config, source: WeightSource, targets: NDArray[np.int64]) -> None:
    """The mask says the same as the offsets, where it is stored. Raises CorruptFile."""
    meta = source.tensors().get(MASK)
    if meta is None:
        return
    if meta.shape != (config.vocab_size,) or meta.type not in ("BOOL", "U8", "I8"):
        stored = f"{meta.type} {list(meta.shape)}"
        raise CorruptFile(f"{config.where}: {MASK} is {stored}, expected BOOL [{config.vocab_size}]")
    mask = np.frombuffer(bytes(source.read(MASK)), np.uint8) != 0
    if int(mask.sum()) != len(targets) or not mask[targets].all():
        text = (
            f"{config.where}: {MASK} marks {int(mask.sum())} tokens, {int(mask[targets].sum())} of the {len(targets)}"
        )
        raise CorruptFile(f"{text} that {OFFSETS} leads to", hint="d2t and t2d are not of the same drafter")
