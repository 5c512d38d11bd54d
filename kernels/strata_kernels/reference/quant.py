"""Stored weight blocks to f32 and, for the simple formats, back: plain torch, one function a storage type.

Bytes are u8 tensors [.., n * block bytes] in file layout; values are f32 [.., n * block elements]. The order of the
floating-point operations is that of the public reference decoders, so results agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """One storage type: elements and bytes of a block, decoder, and encoder where there is a simple one."""

    elements: int
    nbytes: int
    unpack: Callable[[Tensor], Tensor]
    pack: Callable[[Tensor], Tensor] | None = None


def unpack(type_name: str, data: Tensor) -> Tensor:
    """Values of stored bytes: u8 [.., bytes] -> f32 [.., elements]. Raises KeyError, ValueError."""
    block = BLOCKS[type_name]
    if data.dtype != torch.uint8 or data.shape[-1] % block.nbytes:
        raise ValueError(f"{type_name} rows are u8 in blocks of {block.nbytes} bytes, got {data.dtype} {data.shape}")
    blocks = data.reshape(-1, block.nbytes)
    elements = data.shape[-1] // block.nbytes * block.elements
    return block.unpack(blocks).reshape(*data.shape[:-1], elements)


def pack(type_name: str, values: Tensor) -> Tensor:
    """Stored bytes of values: f32 [.., elements] -> u8 [.., bytes]. Raises KeyError, ValueError (shape, no encoder)."""
    block = BLOCKS[type_name]
    if block.pack is None:
        raise ValueError(f"there is no encoder for {type_name}")
    if values.shape[-1] % block.elements:
        raise ValueError(f"{type_name} rows are blocks of {block.elements} elements, got {values.shape[-1]}")
    blocks = values.to(torch.float32).reshape(-1, block.elements)
    return block.pack(blocks).reshape(*values.shape[:-1], values.shape[-1] // block.elements * block.nbytes)


def row_bytes(type_name: str, cols: int) -> int:
    """Bytes of one matrix row. Raises ValueError when `cols` is not whole blocks."""
    block = BLOCKS[type_name]
    if cols % block.elements:
        raise ValueError(f"{type_name} rows are blocks of {block.elements} elements, got {cols}")
    return cols // block.elements * block.nbytes


def _half(data: Tensor, at: int) -> Tensor:
    """The f16 at byte `at` of each block, as f32 [n, 1]."""
    return data[:, at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def _half_bytes(values: Tensor) -> Tensor:
    """f32 [n, 1] -> its f16 bytes [n, 2]."""
    return values.to(torch.float16).view(torch.uint8).reshape(-1, 2)


def _nibbles(data: Tensor) -> Tensor:
    """u8 [n, m] -> [n, 2m]: all low halves, then all high halves."""
    return torch.cat([data & 15, data >> 4], 1)


def _nibble_bytes(codes: Tensor) -> Tensor:
    """Inverse of `_nibbles`."""
    half = codes.shape[1] // 2
    return codes[:, :half] | codes[:, half:] << 4


def _bits(data: Tensor) -> Tensor:
    """u8 [n, m] -> bits [n, 8m], lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((data[:, :, None] >> shifts) & 1).reshape(data.shape[0], -1)


def _bit_bytes(bits: Tensor) -> Tensor:
    """Inverse of `_bits`."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (bits.reshape(bits.shape[0], -1, 8) << shifts).sum(-1, dtype=torch.uint8)


def _unpack_float(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda data: data.contiguous().view(dtype).to(torch.float32)


def _pack_float(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda values: values.to(dtype).contiguous().view(torch.uint8)


def _unpack_q4_0(data: Tensor) -> Tensor:
    return _half(data, 0) * (_nibbles(data[:, 2:]).to(torch.float32) - 8)


def _unpack_q4_1(data: Tensor) -> Tensor:
    return _half(data, 0) * _nibbles(data[:, 4:]).to(torch.float32) + _half(data, 2)


def _unpack_q5_0(data: Tensor) -> Tensor:
    codes = _nibbles(data[:, 6:]) | _bits(data[:, 2:6]) << 4
    return _half(data, 0) * (codes.to(torch.float32) - 16)


def _unpack_q5_1(data: Tensor) -> Tensor:
    codes = _nibbles(data[:, 8:]) | _bits(data[:, 4:8]) << 4
    return _half(data, 0) * codes.to(torch.float32) + _half(data, 2)


def _unpack_q8_0(data: Tensor) -> Tensor:
    return _half(data, 0) * data[:, 2:].contiguous().view(torch.int8).to(torch.float32)


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, 0 where scale is 0."""
    return torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)


def _signed_codes(values: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """(scale, codes 0..levels-1) of formats whose value is scale * (code - levels / 2): the extreme maps to code 0."""
    extreme = values.gather(1, values.abs().argmax(1, keepdim=True))
    scale = extreme / -(levels // 2)
    codes = (values * _inverse(scale) + (levels // 2 + 0.5)).floor().clamp(0, levels - 1)
    return scale, codes.to(torch.uint8)


def _offset_codes(values: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """(scale, minimum, codes 0..levels-1) of formats whose value is scale * code + minimum."""
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    scale = (high - low) / (levels - 1)
    codes = ((values - low) * _inverse(scale) + 0.5).floor().clamp(0, levels - 1)
    return scale, low, codes.to(torch.uint8)


def _pack_q4_0(values: Tensor) -> Tensor:
    scale, codes = _signed_codes(values, 16)
    return torch.cat([_half_bytes(scale), _nibble_bytes(codes)], 1)


def _pack_q4_1(values: Tensor) -> Tensor:
    scale, low, codes = _offset_codes(values, 16)
    return torch.cat([_half_bytes(scale), _half_bytes(low), _nibble_bytes(codes)], 1)


def _pack_q5_0(values: Tensor) -> Tensor:
    scale, codes = _signed_codes(values, 32)
    return torch.cat([_half_bytes(scale), _bit_bytes(codes >> 4), _nibble_bytes(codes & 15)], 1)


def _pack_q5_1(values: Tensor) -> Tensor:
    scale, low, codes = _offset_codes(values, 32)
    return torch.cat([_half_bytes(scale), _half_bytes(low), _bit_bytes(codes >> 4), _nibble_bytes(codes & 15)], 1)


def _pack_q8_0(values: Tensor) -> Tensor:
    scale = values.abs().amax(1, keepdim=True) / 127
    scaled = values * _inverse(scale)
    codes = (scaled.abs() + 0.5).floor() * scaled.sign()  # halves away from zero, as the format's writers do
    return torch.cat([_half_bytes(scale), codes.to(torch.int8).view(torch.uint8)], 1)


def _scales_6bit(data: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes -> eight 6-bit scales and eight 6-bit minimums, f32 [n, 8] each."""
    first, second, third = data[:, 0:4], data[:, 4:8], data[:, 8:12]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6) << 4], 1)
    minimums = torch.cat([second & 63, (third >> 4) | (second >> 6) << 4], 1)
    return scales.to(torch.float32), minimums.to(torch.float32)


def _sub_block_nibbles(data: Tensor) -> Tensor:
    """128 bytes -> 4-bit codes [n, 8, 32]: each 32 bytes hold two sub-blocks, the even one in the low halves."""
    quarters = data.reshape(-1, 4, 1, 32)
    return torch.cat([quarters & 15, quarters >> 4], 2).reshape(-1, 8, 32)


def _affine_256(data: Tensor, codes: Tensor) -> Tensor:
    """d * scale * code - dmin * minimum over eight sub-blocks of 32."""
    scales, minimums = _scales_6bit(data[:, 4:16])
    step, offset = _half(data, 0) * scales, _half(data, 2) * minimums
    return (step[:, :, None] * codes.to(torch.float32) - offset[:, :, None]).reshape(-1, 256)


def _unpack_q4_k(data: Tensor) -> Tensor:
    return _affine_256(data, _sub_block_nibbles(data[:, 16:]))


def _unpack_q5_k(data: Tensor) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8).reshape(1, 8, 1)
    high = (data[:, None, 16:48] >> shifts) & 1
    return _affine_256(data, _sub_block_nibbles(data[:, 48:]) | high << 4)


def _unpack_q6_k(data: Tensor) -> Tensor:
    low = data[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat([low & 15, low >> 4], 2).reshape(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).reshape(1, 1, 4, 1)
    high = (data[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = (low | high << 4).to(torch.float32).reshape(-1, 16, 16) - 32
    scales = data[:, 192:208].contiguous().view(torch.int8).to(torch.float32)
    return ((_half(data, 208) * scales)[:, :, None] * codes).reshape(-1, 256)


BLOCKS: dict[str, Block] = {
    "F32": Block(1, 4, _unpack_float(torch.float32), _pack_float(torch.float32)),
    "F16": Block(1, 2, _unpack_float(torch.float16), _pack_float(torch.float16)),
    "BF16": Block(1, 2, _unpack_float(torch.bfloat16), _pack_float(torch.bfloat16)),
    "Q8_0": Block(32, 34, _unpack_q8_0, _pack_q8_0),
    "Q4_0": Block(32, 18, _unpack_q4_0, _pack_q4_0),
    "Q4_1": Block(32, 20, _unpack_q4_1, _pack_q4_1),
    "Q5_0": Block(32, 22, _unpack_q5_0, _pack_q5_0),
    "Q5_1": Block(32, 24, _unpack_q5_1, _pack_q5_1),
    "Q4_K": Block(256, 144, _unpack_q4_k),
    "Q5_K": Block(256, 176, _unpack_q5_k),
    "Q6_K": Block(256, 210, _unpack_q6_k),
}
