"""Storage formats that can be run: name -> QuantFormat, one family a file. No torch at import."""

from __future__ import annotations

from collections.abc import Collection

from strata_engine.errors import UsageError
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.quant import float as float_family
from strata_engine.formats.quant import i_block, k_block, own_block, q_block, small_block
from strata_engine.formats.quant.base import QuantFormat

FORMATS: dict[str, QuantFormat] = {
    storage.name: storage
    for family in (float_family, q_block, k_block, i_block, small_block, own_block)
    for storage in family.FORMATS
}


def format_of(meta: TensorMeta) -> QuantFormat:
    """The format of a stored tensor. Raises UsageError naming tensor and type when nothing can run it."""
    storage = FORMATS.get(meta.type)
    if storage is None:
        message = f"{meta.path}: tensor {meta.name} is stored as {meta.type}, which cannot be run"
        raise UsageError(message, hint=f"Use a file whose tensors are {_listed(FORMATS)}.", details=_details(meta))
    return storage


def require_kernel(meta: TensorMeta, kernels: str, types: Collection[str]) -> QuantFormat:
    """The format of a matrix that the operations named `kernels` shall multiply; `types` are those they know.

    Raises UsageError naming tensor and type: nothing can run it, or these kernels cannot.
    """
    storage = format_of(meta)
    if meta.type not in types:
        message = f"{meta.path}: no {kernels} kernel for {meta.type} yet (tensor {meta.name})"
        hint = f"--kernels reference runs it, slowly. The {kernels} kernels have {_listed(sorted(types))}."
        raise UsageError(message, hint=hint, details=_details(meta))
    return storage


def _listed(names: Collection[str]) -> str:
    """Types that a file may name."""
    return ", ".join(name for name in names if name not in own_block.NAMES)


def _details(meta: TensorMeta) -> dict[str, str]:
    return {"file": str(meta.path), "tensor": meta.name, "type": meta.type}
