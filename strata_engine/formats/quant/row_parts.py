"""Some rows of a quantised matrix: the piece of each stored part that holds them, so that a matrix is relaid in pieces.

A piece begins at a multiple of STEP rows: words of packed codes, tiles of outputs and blocks of scales end there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from strata_engine.formats.quant.awq import AwqLayout
from strata_engine.formats.quant.compressed import IntLayout, PackedLayout
from strata_engine.formats.quant.fp8 import Fp8Layout
from strata_engine.formats.quant.gptq import GptqLayout
from strata_engine.formats.quant.layout import Layout
from strata_engine.formats.quant.qqq import QqqLayout

Parts = Mapping[str, NDArray[Any]]
STEP = 256
_PIECE_ELEMENTS = 1 << 22


def pieces(layout: Layout, parts: Parts, rows: int, cols: int) -> Iterator[Parts]:
    """The parts of runs of rows, in order; some 4 million elements each, at least STEP rows."""
    step = max(1, _PIECE_ELEMENTS // cols // STEP) * STEP
    if not _divisible(layout):
        step = rows
    cut = _CUTS[type(layout)]
    for first in range(0, rows, step):
        yield cut(layout, parts, first, min(rows, first + step))


def _divisible(layout: Layout) -> bool:
    return not isinstance(layout, Fp8Layout) or layout.block is None or STEP % layout.block[0] == 0


def _gptq(layout: GptqLayout, parts: Parts, first: int, last: int) -> Parts:
    found = {**parts, "qweight": parts["qweight"][:, first:last], "scales": parts["scales"][:, first:last]}
    if "qzeros" in parts:
        found["qzeros"] = parts["qzeros"][:, first * layout.bits // 32 : -(-last * layout.bits // 32)]
    return found


def _awq(layout: AwqLayout, parts: Parts, first: int, last: int) -> Parts:
    found = {**parts, "qweight": parts["qweight"][:, first // 8 : last // 8], "scales": parts["scales"][:, first:last]}
    if "qzeros" in parts:
        found["qzeros"] = parts["qzeros"][:, first // 8 : last // 8]
    return found


def _qqq(layout: QqqLayout, parts: Parts, first: int, last: int) -> Parts:
    found = {**parts, "B": parts["B"][:, 2 * first : 2 * last], "s_channel": parts["s_channel"][:, first:last]}
    if layout.group_size != -1:
        found["s_group"] = parts["s_group"][:, first:last]
    return found


def _packed(layout: PackedLayout, parts: Parts, first: int, last: int) -> Parts:
    found = {**parts, **{name: parts[name][first:last] for name in ("weight_packed", "weight_scale")}}
    zeros = parts.get("weight_zero_point")
    if zeros is not None and zeros.dtype.itemsize == 1:
        found["weight_zero_point"] = zeros[first:last]
    elif zeros is not None:
        found["weight_zero_point"] = zeros[first * layout.bits // 32 : -(-last * layout.bits // 32)]
    return found


def _integers(layout: IntLayout, parts: Parts, first: int, last: int) -> Parts:
    rows = parts["weight"].shape[0]
    shared = {name: _of_rows(part, rows, first, last) for name, part in parts.items() if name != "weight"}
    return {**shared, "weight": parts["weight"][first:last]}


def _byte_floats(layout: Fp8Layout, parts: Parts, first: int, last: int) -> Parts:
    scale = parts[layout.scale]
    if layout.block is None:
        scale = _of_rows(scale, parts["weight"].shape[0], first, last)
    else:
        scale = scale[first // layout.block[0] : -(-last // layout.block[0])]
    return {**parts, "weight": parts["weight"][first:last], layout.scale: scale}


def _of_rows(part: NDArray[Any], rows: int, first: int, last: int) -> NDArray[Any]:
    """Of a part with something for each row its own; one number for all of them stays."""
    return part[first:last] if part.ndim and part.shape[0] == rows else part


_CUTS: dict[type, Callable[[Any, Parts, int, int], Parts]] = {
    GptqLayout: _gptq,
    AwqLayout: _awq,
    QqqLayout: _qqq,
    PackedLayout: _packed,
    IntLayout: _integers,
    Fp8Layout: _byte_floats,
}
