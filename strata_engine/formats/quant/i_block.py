"""Super-blocks of 256 values (32 in IQ4_NL) whose codes name points of a codebook: the IQ types. Decoded only."""

from __future__ import annotations

from strata_engine.formats.quant.base import from_table

_NAMES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")
FORMATS = tuple(from_table(name, packs=False) for name in _NAMES)
