"""4-bit floats with a scale of 8 bits (MXFP4, NVFP4) and digits of three values (TQ1_0, TQ2_0). Decoded only."""

from __future__ import annotations

from strata_engine.formats.quant.base import from_table

FORMATS = tuple(from_table(name, packs=False) for name in ("MXFP4", "NVFP4", "TQ1_0", "TQ2_0"))
