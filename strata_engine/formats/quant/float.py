"""Plain floating-point storage: F32, F16, BF16. A block is one value."""

from __future__ import annotations

from strata_engine.formats.quant.base import from_table

FORMATS = tuple(from_table(name, packs=True) for name in ("F32", "F16", "BF16"))
