"""Paged key/value store and softmax attention in plain torch f32, one row at a time (see dense.py for why)."""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.ops import Array, KvLayer, Rows
from strata_kernels.reference.dense import require_inside
from strata_kernels.reference.tensors import tensor

LEAST_ACTIVATION = 1e-30  # as in kernels/cpu/core/types.h
_BLOCK, _BLOCK_BYTES = 32, 20  # values of 4 bits: elements, bytes of a block


def kv_store(k: Tensor, v: Tensor, cache: KvLayer, rows: Rows) -> None:
    """Write k, v [R, K, D] into the slots of each row, converted to the cache's types."""
    slots = tensor(rows.slots).long()
    require_inside(slots, cache.keys.shape[0] * cache.page_tokens, "kv_store: a slot lies outside the cache")
    pages, offsets = slots // cache.page_tokens, slots % cache.page_tokens
    for rows_of, stored, scales in ((k, cache.keys, cache.key_scales), (v, cache.values, cache.value_scales)):
        out = tensor(stored)
        if out.dtype is torch.uint8:
            out[pages, :, offsets] = pack_values(rows_of)
        elif scales is None:
            out[pages, :, offsets] = rows_of.to(out.dtype)
        else:
            out[pages, :, offsets], tensor(scales)[pages, :, offsets] = quantise(rows_of)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes i8 [..., D] and scales f32 [...] of x, as ops.KvLayer states them."""
    most = x.abs().amax(-1, keepdim=True)
    inverse = torch.where(most >= LEAST_ACTIVATION, torch.full_like(most, 127.0) / most, torch.zeros_like(most))
    codes = torch.nan_to_num((x * inverse).round(), nan=0.0).clamp(-127, 127).to(torch.int8)
    wrong = (x * 0).sum(-1)  # NaN where a row is not finite
    return codes, most.squeeze(-1) * torch.tensor(1 / 127, dtype=torch.float32) + wrong


def pack_values(x: Tensor) -> Tensor:
    """x f32 [..., D] as blocks of 4 bits, u8 [..., value_row_bytes(D)], as ops.KvLayer states them."""
    lacking = -x.shape[-1] % _BLOCK
    filled = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], lacking)], -1) if lacking else x
    blocks = filled.reshape(*x.shape[:-1], -1, _BLOCK)
    finite = (blocks * 0).sum(-1, keepdim=True) == 0
    least, most = blocks.amin(-1, keepdim=True) + 0.0, blocks.amax(-1, keepdim=True)  # + 0.0: no -0
    scale = torch.where(finite, (most - least) * torch.tensor(1 / 15, dtype=torch.float32), torch.nan).half()
    start = torch.where(finite, least, 0.0).half()
    read = scale.float()
    inverse = torch.where(read > 0, torch.ones_like(read) / read, torch.zeros_like(read))
    codes = torch.nan_to_num(((blocks - start.float()) * inverse).round(), nan=0.0).clamp(0, 15).to(torch.uint8)
    half = _BLOCK // 2
    packed = codes[..., :half] | codes[..., half:] << 4
    return torch.cat([scale.view(torch.uint8), start.view(torch.uint8), packed], -1).flatten(-2)


def unpack_values(stored: Tensor, width: int) -> Tensor:
    """The f32 [..., width] that `pack_values` stored."""
    blocks = stored.reshape(*stored.shape[:-1], -1, _BLOCK_BYTES)
    scale, start = (blocks[..., at : at + 2].contiguous().view(torch.float16).float() for at in (0, 2))
    codes = torch.cat([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], -1)
    return (codes * scale + start).flatten(-2)[..., :width]


def attention(q: Tensor, cache: KvLayer, rows: Rows, scale: float, out: Tensor) -> None:
    """out[R, H, D] = softmax(scale q k^T) v over the visible positions of the row's sequence (ops.Rows)."""
    positions, sequences, table = tensor(rows.last), tensor(rows.sequences), tensor(rows.pages)
    firsts = torch.zeros_like(positions) if rows.first is None else tensor(rows.first)
    all_keys, all_values = tensor(cache.keys), tensor(cache.values)
    message = "attention: a position, sequence or page number lies outside the cache"
    require_inside(positions, table.shape[1] * cache.page_tokens, message)
    require_inside(sequences, table.shape[0], message)
    require_inside(positions - firsts, table.shape[1] * cache.page_tokens, message)
    require_inside(firsts, table.shape[1] * cache.page_tokens, message)
    each = zip(positions.tolist(), sequences.tolist(), firsts.tolist(), strict=True)
    for row, (position, sequence, first) in enumerate(each):
        visible = position + 1
        pages = table[sequence, : -(-visible // cache.page_tokens)].long()
        require_inside(pages, all_keys.shape[0], message)
        keys = _gather(all_keys, cache.key_scales, pages, visible, q.shape[-1])
        values = _gather(all_values, cache.value_scales, pages, visible, q.shape[-1])
        out[row] = _attend(q[row], keys[:, first:], values[:, first:], scale)


def _gather(cache: Tensor, scales: Array | None, pages: Tensor, visible: int, width: int) -> Tensor:
    """The first `visible` tokens of a sequence as contiguous f32 [K, visible, width]."""
    tokens = cache[pages].transpose(0, 1).flatten(1, 2)[:, :visible]
    tokens = unpack_values(tokens, width) if cache.dtype is torch.uint8 else tokens.to(torch.float32)
    if scales is not None:
        tokens = tokens * tensor(scales)[pages].transpose(0, 1).flatten(1, 2)[:, :visible, None]
    return tokens.contiguous()


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One row: q [H, D], keys and values [K, n, D] -> [H, D]."""
    kv_heads, _, width = keys.shape
    grouped = q.reshape(kv_heads, -1, width).clone()
    scores = torch.bmm(grouped, keys.transpose(1, 2)) * scale
    return torch.bmm(torch.softmax(scores, dim=-1), values).reshape(q.shape)
