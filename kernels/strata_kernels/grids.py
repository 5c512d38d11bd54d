"""The codebooks of the IQ types, from the gguf package (they are data of the format); numpy, without torch."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_OWNERS = {"IQ1_M": "IQ1_S"}  # a type that uses another's codebook
_WITH_CODEBOOK = ("IQ1", "IQ2", "IQ3")


@cache
def codebook(type_name: str) -> NDArray[np.int8] | None:
    """Points that a type's blocks name by number, i8 [points, 4 or 8]; None for a type without a codebook.

    Never to be written to.
    """
    if not type_name.startswith(_WITH_CODEBOOK):
        return None
    import gguf

    kind = getattr(gguf.quants, _OWNERS.get(type_name, type_name))
    kind.init_grid()
    return np.ascontiguousarray(kind.grid, dtype=np.int8).reshape(kind.grid_shape)
