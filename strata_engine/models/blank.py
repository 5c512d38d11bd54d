"""The matrices that loading for a device makes of a checkpoint, without their bytes: from headers or a config alone.

For planning: which kernels a model needs is known from this, with the weights still elsewhere (load.py reads tensors).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from strata_engine.formats.quant import FORMATS
from strata_engine.formats.quant.logical import LogicalWeight
from strata_engine.models.mixture import expert_names
from strata_engine.models.names import Wanted, half_names
from strata_engine.models.rest import eligible, requantised_type
from strata_kernels.ops import Weight


@dataclass(frozen=True)
class Blank:
    """A matrix as it will be kept. `packed`: laid out for products; else its rows stay as in the file."""

    name: str
    type: str
    rows: int
    cols: int
    packed: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in file layout."""
        return FORMATS[self.type].row_bytes(self.cols)


def blanks(want: Wanted, weight: LogicalWeight, rest: str) -> Iterator[Blank]:
    """What becomes of a wanted matrix; `rest` as in load_model. Nothing of a vector."""
    if want.use == "vector":
        return
    cols, kind = want.shape[-1], weight.held
    if want.use in ("table", "mapped"):
        packed = want.use == "table" or weight.layout is not None
        yield Blank(want.name + ".table", kind, want.shape[0], cols, packed)
    elif want.split is not None:
        for name in want.split.names:
            yield _packed(name, kind, want.split.rows_of(name), cols, rest)
    elif want.use == "halves":
        for name in half_names(want.name):
            yield _packed(name, kind, want.shape[0], cols // 2, rest)
    elif want.use == "experts":
        for name, rows in expert_names(want):
            yield _packed(name, kind, rows, cols, rest)
    elif weight.layout is not None:
        yield Blank(want.name, kind, want.shape[0], cols, True)  # it is quantised already
    else:
        yield _packed(want.name, kind, want.shape[0], cols, rest)


def _packed(name: str, kind: str, rows: int, cols: int, rest: str) -> Blank:
    if eligible(rest, name, Weight(kind, rows, cols, cast("Any", None))):
        kind = requantised_type(rest, name)
    return Blank(name, kind, rows, cols, True)
