"""Inputs and oracles of the shared operation tests: weights of every storage type, paged rows, f64 formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gguf
import numpy as np
import torch
from torch import Tensor

from benches.random_blocks import chunks
from strata_kernels.gpu.core import FEW_ROWS
from strata_kernels.ops import KvLayer, Ops, Rows, Weight
from strata_kernels.reference.attention import pack_values, quantise, unpack_values
from strata_kernels.reference.quant import BLOCKS, unpack
from tests.support.tiny_gguf import ENCODED, encode

FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
TABLE_TYPES = ("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4")
SMALL_TYPES = ("Q1_0", "Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0")
CODEBOOK_TYPES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
BYTE_FLOAT_TYPES = ("F8_32", "F8_128")
OWN_TYPES = ("I4_32", "I4_128", "I8_32", "I8_128", *BYTE_FLOAT_TYPES)
_GGUF_TYPES = (*FLOAT_TYPES, *BLOCK_TYPES, "Q4_K", "Q5_K", "Q6_K", *TABLE_TYPES, *SMALL_TYPES, *CODEBOOK_TYPES)
ALL_TYPES = (*_GGUF_TYPES, *OWN_TYPES)
BLOCK = {name: BLOCKS[name].elements for name in ALL_TYPES}
SUPER_TYPES = tuple(name for name in ALL_TYPES if BLOCK[name] > 32)  # K must be a multiple of 64, 128 or 256
KV_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int8)
NIBBLES = torch.uint8  # stands for keys in f16 with values in blocks of 4 bits


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal f32 values that depend on shape and seed only."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def make_weight(type_name: str, rows: int, cols: int, seed: int = 0) -> Weight:
    """A random matrix stored as `type_name`, in file layout; blocks of random codes where there is no encoder."""
    if type_name not in ENCODED:
        pieces = list(chunks(np.random.default_rng(seed), type_name, rows * cols, cols**-0.5))
        return Weight(type_name, rows, cols, torch.from_numpy(np.concatenate(pieces)).reshape(rows, -1))
    stored = encode(random(rows, cols, seed=seed, scale=cols**-0.5).numpy(), type_name)
    return Weight(type_name, rows, cols, torch.from_numpy(stored.view(np.uint8).reshape(rows, -1)))


def values_of(weight: Weight) -> Tensor:
    """The stored matrix as f64 [N, K], decoded by the gguf package, or by us where it cannot."""
    if weight.type in ("Q1_0", "Q2_0", *OWN_TYPES):
        return unpack(weight.type, weight.data).double()
    kind = gguf.GGMLQuantizationType[weight.type]
    stored = weight.data.numpy()
    if weight.type in ("F32", "F16"):
        stored = stored.view(np.float32 if weight.type == "F32" else np.float16)
    return torch.from_numpy(np.array(gguf.quants.dequantize(stored, kind))).double()


def rounded(x: Tensor, bits: int) -> Tensor:
    """x [R, K] after the contract's activation rounding: blocks of 32, scale max|x|/most in f32, nearest even; f64."""
    top = 127 if bits == 8 else 32512
    blocks = x.reshape(x.shape[0], -1, 32)
    most = blocks.abs().amax(-1, keepdim=True)
    # a true division: torch turns scalar / tensor into a product with the reciprocal
    inverse = torch.where(most > 0, torch.full_like(most, top) / most, torch.zeros_like(most))
    codes = (blocks * inverse).round()
    scale = most * torch.tensor(1 / top, dtype=torch.float32)
    return (codes.double() * scale.double()).reshape(x.shape)


def seen_by(ops: Ops, weight: Weight, x: Tensor) -> Tensor:
    """The activations as `ops` multiplies them with this weight, f64; a GPU's rounding is in product_share."""
    if ops.name == "native" and weight.type not in (*FLOAT_TYPES, *BYTE_FLOAT_TYPES):
        return rounded(x, ops.bits_for(weight))
    return x.double()


def alike_rows(ops: Ops) -> int:
    """How many rows a product may have before a row's bits may change; 33 where they never do.

    A GPU sums up to 16 rows in one order; more go through matrix units.
    """
    return FEW_ROWS if ops.name == "triton" else 33


def product_share(ops: Ops, weight: Weight, rows: int) -> float:
    """The largest error of a product as a share of the sizes summed.

    f32 sums of K products: a few units in the last place. Matrix units of a GPU take both sides rounded to f16, half a
    unit of 2^-11 each; what is small beside the largest of its row or matrix loses more, but counts less.
    """
    return 5.5e-4 if ops.name == "triton" and rows > FEW_ROWS and weight.type != "F32" else 3e-6


def run(ops: Ops, *calls: Callable[[], None]) -> None:
    """Record the calls as one step and run it once."""
    ops.begin()
    for call in calls:
        call()
    ops.end().run()


def assert_close(got: Tensor, wanted: Tensor, magnitude: Tensor | float, share: float) -> None:
    """|got - wanted| <= share * magnitude everywhere. `magnitude`: the size of what was summed, not of the sum."""
    error = (got.double() - wanted.double()).abs()
    limit = torch.as_tensor(magnitude, dtype=torch.float64) * share + 1e-30
    worst = (error / limit).max().item() if error.numel() else 0.0
    assert worst <= 1, f"error is {worst:.2f} times the limit"


def linear(ops: Ops, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """One matrix product in a step of its own."""
    out = torch.empty(x.shape[0], weight.rows)
    run(ops, lambda: ops.linear(x, [weight], [out], None if bias is None else [bias]))
    return out


@dataclass(frozen=True)
class Paged:
    """A cache of several sequences whose pages are shuffled, and what is in it in plain order."""

    cache: KvLayer
    pages: Tensor  # i32 [B, most pages]
    keys: list[Tensor]  # per sequence f64 [length, K, D], as stored
    values: list[Tensor]


def paged(
    lengths: Sequence[int], kv_heads: int, width: int, page_tokens: int, dtype: torch.dtype, seed: int = 0
) -> Paged:
    """Sequences of these lengths, filled. Page 0 and unused slots hold large values that nothing may read."""
    counts = [-(-length // page_tokens) for length in lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)) + 1
    shape = (sum(counts) + 1, kv_heads, page_tokens, width)
    scaled = dtype is torch.int8
    most = torch.full(shape, 99.0 if scaled else 3e4).to(key_type(dtype))
    scales = [torch.full(shape[:3], 3e4) if scaled else None for _ in range(2)]
    cache = KvLayer(most, pack_values(most.float()) if dtype is NIBBLES else most.clone(), *scales)
    pages = torch.zeros(len(lengths), max(counts) + 1, dtype=torch.int32)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    taken = 0
    for sequence, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        own = order[taken : taken + count]
        taken += count
        pages[sequence, :count] = own.int()
        tokens = torch.arange(length)
        page, offset = own[tokens // page_tokens], tokens % page_tokens
        for first, stored, its_scales, kept in (
            (10, cache.keys, cache.key_scales, keys),
            (50, cache.values, cache.value_scales, values),
        ):
            x = random(length, kv_heads, width, seed=seed + first + sequence)
            kind = dtype if stored is cache.values else key_type(dtype)
            if kind is NIBBLES:
                stored[page, :, offset] = pack_values(x)
            elif its_scales is not None:
                stored[page, :, offset], its_scales[page, :, offset] = quantise(x)
            else:
                stored[page, :, offset] = x.to(kind)
            kept.append(seen_in_cache(x, kind))
    return Paged(cache, pages, keys, values)


def key_type(dtype: torch.dtype) -> torch.dtype:
    """The type of the keys beside values of this type."""
    return torch.float16 if dtype is NIBBLES else dtype


def seen_in_cache(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., D] as a cache of this type gives them back, f64."""
    if dtype is NIBBLES:
        return unpack_values(pack_values(x), x.shape[-1]).double()
    if dtype is not torch.int8:
        return x.to(dtype).double()
    codes, scales = quantise(x)
    return codes.double() * scales[..., None].double()


def rows_at(pages: Tensor, page_tokens: int, places: Sequence[tuple[int, int]]) -> Rows:
    """Rows for (sequence, position) pairs."""
    sequences = torch.tensor([sequence for sequence, _ in places], dtype=torch.int32)
    positions = torch.tensor([position for _, position in places], dtype=torch.int32)
    page = pages[sequences.long(), (positions // page_tokens).long()]
    return Rows(positions, sequences, page * page_tokens + positions % page_tokens, pages)


def attention_oracle(q: Tensor, filled: Paged, places: Sequence[tuple[int, int]], scale: float) -> Tensor:
    """Softmax attention of each row in f64."""
    out = torch.empty(q.shape, dtype=torch.float64)
    for row, (sequence, position) in enumerate(places):
        k, v = filled.keys[sequence][: position + 1], filled.values[sequence][: position + 1]
        group = q.shape[1] // k.shape[1]
        for head in range(q.shape[1]):
            scores = k[:, head // group] @ q[row, head].double() * scale
            out[row, head] = torch.softmax(scores, 0) @ v[:, head // group]
    return out
