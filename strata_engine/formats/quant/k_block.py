"""Super-blocks of 256 values whose sub-block scales are themselves quantised: Q2_K to Q6_K. Decoded only."""

from __future__ import annotations

from strata_engine.formats.quant.base import from_table

FORMATS = tuple(from_table(name, packs=False) for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"))
