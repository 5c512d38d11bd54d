"""Figures of cards for rooflines: vendors' peaks, and what others measured. Data only: nothing ran here.

Memory and rates are those of the vendors' product pages; R9700 and RX 9070 are from memory of such pages. The rates of
an M1000 are the sum of its product pages as a third party collected them. AMD's rates per clock and compute unit:
GPUOpen's table of matrix instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9


@dataclass(frozen=True)
class Card:
    """One product. Bytes; bytes a second; operations a second. `link`: to the host, one way, None = one memory.

    `overhead_s`: of a decode step beside memory traffic, `streams`: the share of peak bandwidth that a step reaches.
    Both are assumptions: 1.5 ms is this project's aim for a recorded step, 5 ms that for an M1000, whose present engine
    takes 21 to 25 ms and streams 102 of 136.5 GB/s; no card of ours has confirmed either.
    """

    key: str
    name: str
    kind: str
    arch: str
    memory_bytes: int
    bandwidth: float
    f16: float
    i8: float
    f32: float
    link: float | None
    overhead_s: float = 1.5e-3
    streams: float = 0.75


def _card(key: str, name: str, arch: str, memory: int, rates: tuple[float, ...], link: float | None) -> Card:
    """`rates`: GB/s, then 10^12 operations a second in f16, int8, f32."""
    kind = {"gfx": "hip", "sm_": "cuda", "mp_": "musa"}[arch[:3]]
    bandwidth, *tera = rates
    f16, i8, f32 = (rate * 1e12 for rate in tera)
    return Card(key, name, kind, arch, memory * GB, bandwidth * GB, f16, i8, f32, link and link * GB,
                5e-3 if kind == "musa" else 1.5e-3)  # fmt: skip


_GEN4, _GEN5 = 31.5, 63.0  # GB/s of 16 lanes, one way

CARDS = {card.key: card for card in (
    _card("rx-7900-xtx", "Radeon RX 7900 XTX", "gfx1100", 24, (960, 123, 123, 61), _GEN4),
    _card("rx-7900-xt", "Radeon RX 7900 XT", "gfx1100", 20, (800, 103, 103, 52), _GEN4),
    _card("w7900", "Radeon PRO W7900", "gfx1100", 48, (864, 123, 123, 61), _GEN4),
    _card("rx-9070-xt", "Radeon RX 9070 XT", "gfx1201", 16, (640, 195, 389, 49), _GEN5),
    _card("rx-9070", "Radeon RX 9070", "gfx1201", 16, (640, 145, 289, 36), _GEN5),
    _card("r9700", "Radeon AI PRO R9700", "gfx1201", 32, (640, 191, 383, 48), _GEN5),
    _card("m1000-64gb", "M1000 64 GB", "mp_22", 64, (136.5, 12, 24, 3), None),
    _card("m1000-32gb", "M1000 32 GB (AIBOOK)", "mp_22", 32, (120, 12, 24, 3), None),
    _card("h200", "H200", "sm_90", 141, (4800, 990, 1979, 67), _GEN5),
)}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What another engine was measured to reach: tokens a second of one sequence. `context`: 0 = not stated."""

    card: str
    model: str  # as the catalog names it, with its variant
    context: int
    decode_tps: float
    prefill_tps: float
    by: str


# Tables of the vendor's guide "SGLang-MUSA M1000" (AIOS 1.4.1, performance mode), profiles without a prefix, no drafts.
_SGLANG = "SGLang-MUSA 0.5.10+20260907, vendor's table"
# A public report: one card, Ryzen 5 9600X, 92 GiB of DDR5-3600; mean of a whole task, drafts and contexts not stated.
_STRATA = "Strata, forum report of 2026-10-04, a whole task"
MEASURED = (
    Measured("m1000-64gb", "qwen3:gptq-int4", 250, 23.965, 94.731, _SGLANG),
    Measured("m1000-64gb", "qwen3:gptq-int4", 2000, 22.285, 181.559, _SGLANG),
    Measured("m1000-64gb", "qwen3.5:gptq-int4", 250, 14.647, 85.558, _SGLANG),
    Measured("m1000-64gb", "qwen3.5:gptq-int4", 2000, 14.570, 210.223, _SGLANG),
    Measured("m1000-64gb", "qwen3.5-fq:int4", 250, 20.855, 81.701, _SGLANG),
    Measured("m1000-64gb", "qwen3.5-fq:int4", 2000, 20.923, 185.970, _SGLANG),
    Measured("m1000-64gb", "qwen3.6-fq:int4", 250, 20.984, 77.685, _SGLANG),
    Measured("m1000-64gb", "qwen3.6-fq:int4", 2000, 21.204, 200.005, _SGLANG),
    Measured("m1000-64gb", "qwen3-vl:gptq-int4", 250, 13.437, 162.473, _SGLANG),
    Measured("m1000-64gb", "qwen3-vl:gptq-int4", 2000, 11.440, 314.092, _SGLANG),
    Measured("m1000-64gb", "qwen3.5-w4a8:qqq", 256, 22.174, 142.844, _SGLANG),
    Measured("m1000-64gb", "qwen3.5-w4a8:qqq", 2048, 22.092, 265.131, _SGLANG),
    Measured("rx-7900-xtx", "qwen3.8-flash-next:iq3_s", 0, 71.8, 1044.0, _STRATA),
    Measured("rx-7900-xtx", "qwen3.8-flash-next:iq3_xxs", 0, 88.0, 1195.0, _STRATA),
)


def measured(card: str, model: str, context: int) -> Measured | None:
    """The measurement of the nearest context, None where there is none."""
    found = [m for m in MEASURED if (m.card, m.model) == (card, model)]
    return min(found, key=lambda m: abs(m.context - context), default=None)


def card_named(text: str) -> Card | None:
    """By key ("rx-7900-xtx"), or by the name that a driver gives it."""
    word = text.lower().replace(" ", "-").removeprefix("radeon-").removeprefix("pro-").removeprefix("ai-pro-")
    return CARDS.get(word)
