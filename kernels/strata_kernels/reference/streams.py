"""Residual streams, hashed n-grams and block-sparse attention in plain torch f32, one row at a time (see dense.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from strata_kernels.ops import Array, KvLayer, Rows, Weight
from strata_kernels.ops_streams import IndexLayer, IndexNorm, Ngrams, Sparse
from strata_kernels.reference.dense import require_file_layout, require_inside, rope
from strata_kernels.reference.quant import unpack
from strata_kernels.reference.tensors import tensor


def stream_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """out = x * rsqrt(mean(x^2) + eps) * weight, each stream of x [R, S, W] alone."""
    for row, target in zip(x, out, strict=True):
        for stream, factor, to in zip(row, weight, target, strict=True):
            one = stream.clone()
            to.copy_(one * torch.rsqrt(one.square().mean() + eps) * factor)


def silu_scaled(x: Tensor, scale: float, out: Tensor) -> None:
    """out = silu(scale x)."""
    for row, target in zip(x, out, strict=True):
        target.copy_(torch.nn.functional.silu(row * scale))


def stream_mix(x: Tensor, gate: Tensor, out: Tensor) -> None:
    """out[R, W] = mean over the streams of sigmoid(gate) * x."""
    for row, factor, target in zip(x, gate, out, strict=True):
        target.copy_((torch.sigmoid(factor.clone()) * row).mean(0))


def stream_add(y: Tensor, gate: Tensor, out: Tensor) -> None:
    """out[R, S, W] += 2 sigmoid(gate / S) * y."""
    for row, factor, target in zip(y, gate, out, strict=True):
        weights = 2 * torch.sigmoid(factor / len(factor))
        target += weights[:, None] * row


def stream_gate(key: Tensor, query: Tensor, value: Tensor, out: Tensor) -> None:
    """out[R, S, W] = sigmoid(sign(a) sqrt(max(|a|, 1e-6))) * value, a = key . query / sqrt(W)."""
    for k, q, v, target in zip(key, query, value, out, strict=True):
        for stream in range(k.shape[0]):
            a = torch.dot(k[stream].clone(), q[stream].clone()) / math.sqrt(k.shape[1])
            target[stream] = torch.sigmoid(a.abs().clamp_min(1e-6).sqrt() * a.sign()) * v


def ngram_rows(ids: Tensor, ngrams: Ngrams, past: Tensor, rows: Rows, out: Tensor) -> None:
    """out i32 [R, J]: the table's rows of each token; `past` takes up the new tokens."""
    slots, ring = _slots(rows, past.shape[0]), past.shape[1]
    for r, (token, position) in enumerate(zip(ids.tolist(), tensor(rows.positions).tolist(), strict=True)):
        slot = past[slots[r]]
        before = [position - back for back in range(1, ngrams.history + 1)]
        history = [int(slot[p % ring]) if p >= 0 else ngrams.eos for p in before]
        out[r] = torch.tensor(hash_token([token, *history], ngrams), dtype=torch.int32)
        slot[position % ring] = token


def hash_token(tokens: list[int], ngrams: Ngrams) -> list[int]:
    """Rows of one token; `tokens`: itself, then its predecessors, the latest first."""
    found, key, cut = [], tokens[0] * ngrams.multipliers[0], False
    each = len(ngrams.sizes) // ngrams.history
    for order in range(1, ngrams.history + 1):
        cut = cut or tokens[order] == ngrams.eos
        key ^= (ngrams.eos if cut else tokens[order]) * ngrams.multipliers[order]
        heads = range((order - 1) * each, order * each)
        found += [key % ngrams.sizes[j] + ngrams.offsets[j] for j in heads]
    return found


def _slots(rows: Rows, count: int) -> list[int]:
    """State slot of each row. Raises IndexError, ValueError without states."""
    if rows.states is None:
        raise ValueError("ngram_rows: the rows have no state slots")
    slots = tensor(rows.states)[tensor(rows.sequences).long()]
    require_inside(slots, count, "ngram_rows: a state slot lies outside the memory")
    return slots.tolist()


def shard_rows(index: Tensor, shards: tuple[Weight, ...], out: Tensor) -> None:
    """out[n, W] = rows of the shards one after the other, dequantised."""
    each = shards[0].rows
    for shard in shards:
        require_file_layout(shard)
    require_inside(index, each * len(shards), "shard_rows: a row lies outside the table")
    for number, target in zip(index.tolist(), out, strict=True):
        shard = shards[number // each]
        target.copy_(unpack(shard.type, tensor(shard.data)[number % each : number % each + 1])[0])


def index_store(keys: Tensor, norm: IndexNorm, cache: IndexLayer, rows: Rows) -> None:
    """Store raw keys, then make the keys of the completed blocks."""
    raw, blocks, size, g = tensor(cache.raw), tensor(cache.blocks), cache.page_tokens, cache.block_tokens
    slots = tensor(rows.slots).long()
    require_inside(slots, raw.shape[0] * size, "index_store: a slot lies outside the cache")
    raw[slots // size, slots % size] = keys
    for position, slot in zip(tensor(rows.positions).tolist(), slots.tolist(), strict=True):
        if (position + 1) % g:
            continue
        page, last = slot // size, slot % size
        mean = raw[page, last - g + 1 : last + 1].mean(0)
        made = mean * torch.rsqrt(mean.square().mean() + norm.eps) * tensor(norm.weight)
        rope(made.reshape(1, 1, -1), torch.tensor([position + 1 - g]), norm.rotary)
        blocks[page, last // g] = made


def index_select(q: Tensor, cache: IndexLayer, rows: Rows, sparse: Sparse, chosen: Tensor, near: Tensor) -> None:
    """chosen [R, blocks], near [R] as `StreamOps.index_select` says."""
    blocks, table = tensor(cache.blocks), tensor(rows.pages)
    in_page = blocks.shape[1]
    for r, (position, sequence) in enumerate(_places(rows)):
        if position < sparse.dense_tokens:
            near[r] = position
            continue
        complete = (position + 1) // sparse.block_tokens
        pages = table[sequence, : -(-complete // in_page)].long()
        require_inside(pages, blocks.shape[0], "index_select: a page number lies outside the cache")
        keys = blocks[pages].flatten(0, 1)[:complete]
        scores = torch.relu(keys @ q[r].T.clone()).sum(-1) / math.sqrt(q.shape[-1])
        best = torch.argsort(scores, descending=True, stable=True)[: sparse.blocks]
        chosen[r] = torch.sort(best).values.int()
        near[r] = 0


def sparse_attention(q: Tensor, chosen: Tensor, cache: KvLayer, rows: Rows, sparse: Sparse, out: Tensor) -> None:
    """Softmax attention over the chosen blocks and the tail, for rows that are not dense."""
    keys, values, table = tensor(cache.keys), tensor(cache.values), tensor(rows.pages)
    size, g = cache.page_tokens, sparse.block_tokens
    for r, (position, sequence) in enumerate(_places(rows)):
        if position < sparse.dense_tokens:
            continue
        complete = (position + 1) // g
        picked = (chosen[r].long()[:, None] * g + torch.arange(g)).flatten()
        tokens = torch.cat([picked, torch.arange(complete * g, position + 1)])
        require_inside(tokens, position + 1, "sparse_attention: a chosen block is not visible")
        pages, offsets = table[sequence].long()[tokens // size], tokens % size
        k, v = keys[pages, :, offsets].float(), values[pages, :, offsets].float()  # [n, K, D]
        grouped = q[r].reshape(k.shape[1], -1, q.shape[-1]).clone()
        scores = torch.bmm(grouped, k.permute(1, 2, 0)) * q.shape[-1] ** -0.5
        out[r] = torch.bmm(torch.softmax(scores, -1), v.transpose(0, 1)).reshape(q[r].shape)


def _places(rows: Rows) -> list[tuple[int, int]]:
    """(position, sequence) of each row."""
    return list(zip(tensor(rows.positions).tolist(), tensor(rows.sequences).tolist(), strict=True))


class _Doer(Protocol):
    def _do(self, call: Callable[[], None]) -> None: ...


class ReferenceStreamOps:
    """These operations as a part of ReferenceOps."""

    def stream_norm(self: _Doer, x: Array, weight: Array, eps: float, out: Array) -> None:
        """See StreamOps."""
        self._do(partial(stream_norm, tensor(x), tensor(weight), eps, tensor(out)))

    def silu_scaled(self: _Doer, x: Array, scale: float, out: Array) -> None:
        """See StreamOps."""
        self._do(partial(silu_scaled, tensor(x), scale, tensor(out)))

    def stream_mix(self: _Doer, x: Array, gate: Array, out: Array) -> None:
        """See StreamOps."""
        self._do(partial(stream_mix, tensor(x), tensor(gate), tensor(out)))

    def stream_add(self: _Doer, y: Array, gate: Array, out: Array) -> None:
        """See StreamOps."""
        self._do(partial(stream_add, tensor(y), tensor(gate), tensor(out)))

    def stream_gate(self: _Doer, key: Array, query: Array, value: Array, out: Array) -> None:
        """See StreamOps."""
        self._do(partial(stream_gate, tensor(key), tensor(query), tensor(value), tensor(out)))

    def ngram_rows(self: _Doer, ids: Array, ngrams: Ngrams, past: Array, rows: Rows, out: Array) -> None:
        """See StreamOps."""
        self._do(partial(ngram_rows, tensor(ids), ngrams, tensor(past), rows, tensor(out)))

    def shard_rows(self: _Doer, index: Array, shards: tuple[Weight, ...], out: Array) -> None:
        """See StreamOps."""
        self._do(partial(shard_rows, tensor(index), shards, tensor(out)))

    def index_store(self: _Doer, keys: Array, norm: IndexNorm, cache: IndexLayer, rows: Rows) -> None:
        """See StreamOps."""
        self._do(partial(index_store, tensor(keys), norm, cache, rows))

    def index_select(
        self: _Doer, q: Array, cache: IndexLayer, rows: Rows, sparse: Sparse, chosen: Array, near: Array
    ) -> None:
        """See StreamOps."""
        self._do(partial(index_select, tensor(q), cache, rows, sparse, tensor(chosen), tensor(near)))

    def sparse_attention(
        self: _Doer, q: Array, chosen: Array, cache: KvLayer, rows: Rows, sparse: Sparse, out: Array
    ) -> None:
        """See StreamOps."""
        self._do(partial(sparse_attention, tensor(q), tensor(chosen), cache, rows, sparse, tensor(out)))
