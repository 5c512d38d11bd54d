"""Paged key/value store and softmax attention in plain torch f32, one row at a time (see dense.py for why)."""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.ops import KvLayer, Rows
from strata_kernels.reference.dense import require_inside


def kv_store(k: Tensor, v: Tensor, cache: KvLayer, rows: Rows) -> None:
    """Write k, v [R, K, D] into the slots of each row, converted to the cache's type."""
    slots = rows.slots.long()
    require_inside(slots, cache.keys.shape[0] * cache.page_tokens, "kv_store: a slot lies outside the cache")
    pages, offsets = slots // cache.page_tokens, slots % cache.page_tokens
    cache.keys[pages, :, offsets] = k.to(cache.keys.dtype)
    cache.values[pages, :, offsets] = v.to(cache.values.dtype)


def attention(q: Tensor, cache: KvLayer, rows: Rows, scale: float, out: Tensor) -> None:
    """out[R, H, D] = softmax(scale q k^T) v over positions 0..positions[r] of the row's sequence."""
    positions, sequences = rows.positions.tolist(), rows.sequences.tolist()
    message = "attention: a position, sequence or page number lies outside the cache"
    require_inside(rows.positions, rows.pages.shape[1] * cache.page_tokens, message)
    require_inside(rows.sequences, rows.pages.shape[0], message)
    for row in range(q.shape[0]):
        visible = positions[row] + 1
        pages = rows.pages[sequences[row], : -(-visible // cache.page_tokens)].long()
        require_inside(pages, cache.keys.shape[0], message)
        keys, values = _gather(cache.keys, pages, visible), _gather(cache.values, pages, visible)
        out[row] = _attend(q[row], keys, values, scale)


def _gather(cache: Tensor, pages: Tensor, visible: int) -> Tensor:
    """The first `visible` tokens of a sequence as contiguous f32 [K, visible, D]."""
    tokens = cache[pages].transpose(0, 1).flatten(1, 2)[:, :visible]
    return tokens.to(torch.float32).contiguous()


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One row: q [H, D], keys and values [K, n, D] -> [H, D]."""
    kv_heads, _, width = keys.shape
    grouped = q.reshape(kv_heads, -1, width).clone()
    scores = torch.bmm(grouped, keys.transpose(1, 2)) * scale
    return torch.bmm(torch.softmax(scores, dim=-1), values).reshape(q.shape)
