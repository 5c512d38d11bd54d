"""How many bytes a matrix takes once the native kernels have packed it: what kernels/cpu/core/types.h says, in Python.

For estimates made before anything is loaded: no torch, no library. A test compares it with the library for every type.
"""

from __future__ import annotations

_GROUP = 16  # output rows interleaved in a packed group
_BLOCK = 32

_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# type -> elements of a file block; of a packed group: bits of a quant, scale bytes before each 32 columns, bytes before
# each file block
_LAYOUTS = {
    "Q4_0": (32, 4, 32, 0), "Q4_1": (32, 4, 64, 0), "Q5_0": (32, 5, 32, 0), "Q5_1": (32, 5, 64, 0),
    "Q8_0": (32, 8, 32, 0), "Q1_0": (128, 1, 0, 32), "Q2_0": (64, 2, 0, 32),
    "Q2_K": (256, 2, 32, 64), "Q3_K": (256, 3, 32, 32), "Q4_K": (256, 4, 32, 64), "Q5_K": (256, 5, 32, 64),
    "Q6_K": (256, 6, 32, 32), "IQ1_S": (256, 3, 16, 32), "IQ1_M": (256, 3, 16, 32), "IQ2_XXS": (256, 3, 16, 32),
    "IQ2_XS": (256, 3, 16, 32), "IQ2_S": (256, 3, 16, 32), "IQ3_XXS": (256, 4, 16, 32), "IQ3_S": (256, 4, 16, 32),
    "IQ4_NL": (32, 4, 32, 0), "IQ4_XS": (256, 4, 16, 32), "MXFP4": (32, 4, 16, 0), "NVFP4": (64, 4, 32, 0),
    "TQ1_0": (256, 2, 0, 32), "TQ2_0": (256, 2, 0, 32),
    "I4_32": (32, 4, 0, 80), "I4_128": (128, 4, 0, 80), "I8_32": (32, 8, 0, 80), "I8_128": (128, 8, 0, 80),
    "F8_32": (32, 8, 0, 64), "F8_128": (128, 8, 0, 64),
}  # fmt: skip


def packed_bytes(type_name: str, rows: int, cols: int) -> int | None:
    """Bytes of a packed [rows, cols] matrix; None for a type the native kernels lack or columns of part blocks."""
    groups = -(-rows // _GROUP)
    if type_name in _ELEMENT_BYTES:
        return groups * _GROUP * cols * _ELEMENT_BYTES[type_name]
    if type_name not in _LAYOUTS:
        return None
    block, bits, scale_bytes, head_bytes = _LAYOUTS[type_name]
    if cols % block:
        return None
    return groups * (cols // _BLOCK * (scale_bytes + bits * _BLOCK * _GROUP // 8) + cols // block * head_bytes)
