"""Stored weight blocks to f32 and, for the simple formats, back: plain torch, one function a storage type.

Bytes are u8 tensors [.., n * block bytes] in file layout; values are f32 [.., n * block elements]. The order of the
floating-point operations is that of the public reference decoders, so results agree bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.reference import quant_i, quant_k, quant_own, quant_plain, quant_table
from strata_kernels.reference.blocks import Block

BLOCKS: dict[str, Block] = {
    **quant_plain.BLOCKS, **quant_k.BLOCKS, **quant_i.BLOCKS, **quant_table.BLOCKS, **quant_own.BLOCKS
}  # fmt: skip


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
