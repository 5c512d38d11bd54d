"""What compiled kernels must not exceed, checked without a device: the gates of .ci/gpu-gates.

A spill in an inner loop costs more than anything tuned there, a product of many rows without matrix instructions runs
at a tenth, and on every device of targets.py a product of few rows is bound by memory only as long as a weight takes
no more than about four vector operations (roofline: 8 on gfx1100, 9.5 on gfx1201, 5.5 on M1000).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.targets import Target

# products of many rows: without matrix instructions something went wrong
MATRIX = frozenset({"gemm_cells", "gemm_floats"})
SHARED_LIMIT = 64 << 10
PER_WEIGHT = 4.0  # vector operations for a weight of 4 bits at one row, on AMD's devices
KNOWN = {"parts": 4.2}  # by LOW in cells.py: Q4_K has a scale and a least value in two parts each; may not get worse
# kernels of few rows -> constants whose product is the weights that a program takes up in a turn of its loop
_TURN = {"gemv_cells": ("OUTS", "GROUPS")}
_GROUP = 32


def vectors_per_weight(variant: Variant, target: Target, figures: Mapping[str, Any]) -> float | None:
    """Vector operations a weight in the loop of a product of few rows; None of other kernels, or where not counted."""
    names, loops = _TURN.get(variant.kernel), figures.get("loops")
    if names is None or not loops:
        return None
    given = dict(variant.constants)
    weights = _GROUP
    for name in names:
        weights *= int(given[name])
    most = max(vectors for vectors, _ in loops)
    return most * variant.warps * target.lanes / weights


def faults(variant: Variant, target: Target, shared: int, figures: Mapping[str, Any]) -> list[str]:
    """What is wrong with a compiled variant, in words; empty: nothing."""
    found: list[str] = []
    for name in ("spills", "scratch_bytes"):
        if figures.get(name):
            found.append(f"{figures[name]} {name.replace('_', ' ')}")
    if shared > min(SHARED_LIMIT, target.shared_limit):
        found.append(f"{shared} bytes of local memory, {min(SHARED_LIMIT, target.shared_limit)} are allowed")
    if variant.kernel in MATRIX and dot_is_f16(variant) and not figures.get("matrix", 1):
        found.append("no matrix instructions")
    cost = vectors_per_weight(variant, target, figures)
    most = KNOWN.get(str(dict(variant.constants).get("LOW")), PER_WEIGHT)
    if cost is not None and cost > most and target.backend == "hip" and four_bits(variant):
        found.append(f"{cost:.1f} vector operations a weight, {most:g} are allowed")
    return found


def dot_is_f16(variant: Variant) -> bool:
    """Are its inputs of a type that matrix units take?"""
    return "*fp32" not in variant.types[:1]


def four_bits(variant: Variant) -> bool:
    """Is it a product of one row with plain codes of 4 bits?"""
    given = dict(variant.constants)
    return given.get("BITS") == 4 and given.get("VALUE") == "affine" and given.get("ROWS") == 1
