"""Blocks of values with one f16 scale, and one f16 minimum in the _1 formats: Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q1_0 Q2_0."""

from __future__ import annotations

from strata_engine.formats.quant.base import from_table

FORMATS = (
    *(from_table(name, packs=True) for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")),
    *(from_table(name, packs=False) for name in ("Q1_0", "Q2_0")),
)
