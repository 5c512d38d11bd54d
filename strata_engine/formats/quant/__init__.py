"""Storage formats that can be run: name -> QuantFormat, one family a file. No torch at import."""

from __future__ import annotations

from strata_engine.errors import UsageError
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.quant import float as float_family
from strata_engine.formats.quant import k_block, q_block
from strata_engine.formats.quant.base import QuantFormat

FORMATS: dict[str, QuantFormat] = {
    storage.name: storage for family in (float_family, q_block, k_block) for storage in family.FORMATS
}


def format_of(meta: TensorMeta) -> QuantFormat:
    """The format of a stored tensor. Raises UsageError naming tensor and type when it cannot be run."""
    storage = FORMATS.get(meta.type)
    if storage is None:
        message = f"{meta.path}: tensor {meta.name!r} is stored as {meta.type}, which cannot be run yet"
        details = {"file": str(meta.path), "tensor": meta.name, "type": meta.type}
        raise UsageError(message, hint=f"Use a file whose tensors are {', '.join(FORMATS)}.", details=details)
    return storage
