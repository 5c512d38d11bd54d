"""Re-quantising what a checkpoint left in floats (--quantize-rest): matrices only, as they are loaded, errors kept.

int8: blocks of 32 with one scale (Q8_0). int4: blocks of 32 with scale and minimum (Q4_1); heads take 8 bits all the
same, since errors of logits are not averaged out. Left alone: tables, norms, routers, matrices of fewer than 128 rows
(they cost nothing and decide much) and rows that are not whole blocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_kernels.ops import Weight

CHOICES = ("none", "int8", "int4")
LEAST_ROWS = 128
_BLOCK = 32
_CHUNK_ELEMENTS = 1 << 22
_KIND = re.compile(r"^\d+\.|expert\.\d+\.")
_HEADS = ("head", "embed")
_DECODER = re.compile(r"\d+\.|head$|embed$")  # not the image tower


@dataclass
class KindError:
    """What re-quantising did to all matrices of one kind. `rms`: of the error, relative to that of the values."""

    error_square: float = 0.0
    value_square: float = 0.0
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def rms(self) -> float:
        """0 for a matrix of zeros."""
        return (self.error_square / self.value_square) ** 0.5 if self.value_square else 0.0


@dataclass
class Rest:
    """The choice, and what came of it by kind of matrix (a name without layer and expert)."""

    choice: str = "none"
    kinds: dict[str, KindError] = field(default_factory=dict)

    def apply(self, name: str, weight: Weight) -> Weight:
        """The matrix re-quantised, or as it was."""
        if not eligible(self.choice, name, weight):
            return weight
        kind = _KIND.sub("", name)
        eight = requantised_type(self.choice, name) == "Q8_0"
        made, found = _requantised(weight, eight), self.kinds.setdefault(kind, KindError())
        found.bytes_before += weight.data.nbytes
        found.bytes_after += made.weight.data.nbytes
        found.error_square += made.error_square
        found.value_square += made.value_square
        return made.weight

    def summary(self) -> str:
        """One line: the error of each kind, the largest first."""
        worst_first = sorted(self.kinds.items(), key=lambda item: -item[1].rms)
        return ", ".join(f"{kind} {error.rms:.2%}" for kind, error in worst_first) or "nothing was left in floats"


def eligible(choice: str, name: str, weight: Weight) -> bool:
    """Is a matrix of this name and shape re-quantised?"""
    plain = choice != "none" and weight.type in ("F32", "F16", "BF16") and _DECODER.match(name) is not None
    return plain and weight.rows >= LEAST_ROWS and weight.cols % _BLOCK == 0 and not name.endswith("router")


def requantised_type(choice: str, name: str) -> str:
    """What an eligible matrix of this name becomes."""
    return "Q8_0" if choice == "int8" or _KIND.sub("", name) in _HEADS else "Q4_1"


@dataclass(frozen=True)
class _Made:
    weight: Weight
    error_square: float
    value_square: float


def _requantised(weight: Weight, eight: bool) -> _Made:
    """In pieces of some rows, so that temporaries stay small beside a large head."""
    kind, block_bytes, encode = ("Q8_0", 34, _q8_0) if eight else ("Q4_1", 20, _q4_1)
    out = np.empty((weight.rows, weight.cols // _BLOCK * block_bytes), np.uint8)
    error = size = 0.0
    step = max(1, _CHUNK_ELEMENTS // weight.cols)
    for start in range(0, weight.rows, step):
        values = _floats(np.asarray(weight.data)[start : start + step], weight.type)
        stored, meant = encode(values.reshape(-1, _BLOCK))
        out[start : start + step] = stored.reshape(len(values), -1)
        difference = (meant.reshape(values.shape) - values).ravel()
        error += float(np.dot(difference, difference))
        size += float(np.dot(values.ravel(), values.ravel()))
    return _Made(replace(weight, type=kind, data=out), error, size)


def _floats(data: NDArray[Any], kind: str) -> NDArray[np.float32]:
    own = np.ascontiguousarray(data)
    if kind == "BF16":
        return (own.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return own.view(np.float16).astype(np.float32) if kind == "F16" else own.view(np.float32)


def _q8_0(values: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Blocks [n, 32] -> (bytes [n, 34], the values they mean)."""
    scale = (np.abs(values).max(1, keepdims=True) / 127).astype(np.float16)
    codes = np.clip(np.rint(_divided(values, scale)), -127, 127).astype(np.int8)
    meant = codes.astype(np.float32) * scale.astype(np.float32)
    return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], 1), meant


def _q4_1(values: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Blocks [n, 32] -> (bytes [n, 20], the values they mean)."""
    low = values.min(1, keepdims=True).astype(np.float16)
    scale = ((values.max(1, keepdims=True) - low.astype(np.float32)) / 15).astype(np.float16)
    codes = np.clip(np.rint(_divided(values - low.astype(np.float32), scale)), 0, 15).astype(np.uint8)
    meant = codes.astype(np.float32) * scale.astype(np.float32) + low.astype(np.float32)
    packed = codes[:, :16].copy()
    packed |= codes[:, 16:] << 4
    return np.concatenate([scale.view(np.uint8), low.view(np.uint8), packed], 1), meant


def _divided(values: NDArray[np.float32], scale: NDArray[np.float16]) -> NDArray[np.float32]:
    """values / scale, 0 where the scale is 0."""
    wide = scale.astype(np.float32)
    return np.divide(values, wide, out=np.zeros_like(values), where=wide != 0)
