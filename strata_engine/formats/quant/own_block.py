"""Our own types, which matrices of quantised safetensors are held in: I4 I8 F8, in blocks of 32 or 128 columns.

No file has them. Each block has an f32 scale and (not F8) a signed byte for its zero, so that nothing a GPTQ, AWQ, QQQ,
compressed-tensors or FP8 checkpoint says is rounded. Bytes: kernels/cpu/core/types.h.
"""

from __future__ import annotations

from strata_engine.formats.quant.base import QuantFormat

_HEADS = {"I4": (5, 4), "I8": (5, 8), "F8": (4, 8)}  # bytes of a block's head, bits of a code
BLOCKS = (128, 32)
FORMATS = tuple(
    QuantFormat(f"{kind}_{block}", block, head + block * bits // 8, packs=False)
    for kind, (head, bits) in _HEADS.items()
    for block in BLOCKS
)
NAMES = frozenset(storage.name for storage in FORMATS)


def type_for(kind: str, group_size: int, cols: int) -> str:
    """The type for `cols` columns in groups of `group_size` (-1: one group); F32 where no block size divides them.

    `kind`: I4 | I8 | F8.
    """
    group = cols if group_size == -1 or group_size >= cols else group_size
    return next((f"{kind}_{block}" for block in BLOCKS if not cols % block and not group % block), "F32")
