"""`fit --roofline` and where a model would live on a card: the table of cards x models, as text and as JSON.

Every figure is computed from peaks and headers, none was measured by us; the last column is what others measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata_backends.cards import CARDS, Card, card_named, measured
from strata_backends.gpu import info_of
from strata_engine.errors import UsageError
from strata_engine.placement.across import RAM_BYTES_S, SPARE_SHARE, Split, split, step_floor
from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from strata_backends.gpu import GpuSeen
    from strata_cli.output import Output
    from strata_engine.placement.traffic import Traffic

DEFAULT_CONTEXT = 2000
_HEADERS = ("CARD", "MODEL", "GB/TOKEN", "ON CARD", "FLOOR ms", "EXPECTED ms", "TOK/S", "MEASURED TOK/S")


@dataclass(frozen=True)
class Spot:
    """A card to place a model on. `label`: "hip:0", or the card's key where none is there."""

    label: str
    name: str
    free_bytes: int
    unified: bool = False


def cards_named(text: str) -> list[Card]:
    """The cards of a --card value: keys separated by commas, or "all". Raises UsageError with the list."""
    if text in ("", "all"):
        return list(CARDS.values())
    found = [card_named(word.strip()) for word in text.split(",")]
    if any(card is None for card in found):
        raise UsageError(f"--card {text}: no such card in the table", f"one of: {', '.join(CARDS)}, all")
    return [card for card in found if card is not None]


def spots(seen: Sequence[GpuSeen], card: str) -> list[Spot]:
    """Where a model could go: the cards named, else those that are there with their free memory."""
    if card:
        return [Spot(c.key, c.name, c.memory_bytes, c.link is None) for c in cards_named(card)]
    found = [gpu for gpu in seen if gpu.kind and gpu.total_bytes]
    return [Spot(gpu.label, gpu.name, info_of(gpu).free_bytes, "unified memory" in gpu.features) for gpu in found]


def roofline(models: Mapping[str, Traffic], cards: Sequence[Card], context: int) -> list[dict[str, Any]]:
    """A row for each card and model; figures of a step are None where the model does not fit into one memory."""
    return [_row(name, model, card, context) for card in cards for name, model in models.items()]


def _row(name: str, model: Traffic, card: Card, context: int) -> dict[str, Any]:
    parts = split(model, context, card.memory_bytes)
    found = measured(card.key, name, context)
    row: dict[str, Any] = {
        "card": card.key,
        "model": name,
        "context_tokens": context,
        "token_bytes": model.token_bytes(context),
        "dense_bytes": model.dense_bytes + model.head_bytes,
        "expert_bytes": model.used_bytes,
        "kv_bytes": model.kv_bytes(context),
        "state_bytes": 2 * model.state_bytes,
        "stored_bytes": model.stored_bytes,
        "on_card": round(parts.card_bytes / model.stored_bytes, 4),
        "fits": parts.whole or card.link is not None,
        "floor_ms": None,
        "expected_ms": None,
        "expected_tps": None,
        "measured": asdict(found) if found else None,
    }
    if row["fits"]:
        step = step_floor(parts, card.bandwidth, card.streams, card.overhead_s)
        row |= {"floor_ms": round(1e3 * step.floor_s, 3), "expected_ms": round(1e3 * step.expected_s, 3),
                "expected_tps": round(1 / step.expected_s, 1)}  # fmt: skip
    return row


def print_roofline(out: Output, rows: Sequence[dict[str, Any]], cards: Sequence[Card]) -> None:
    """The table, then what it assumes and who measured."""
    out.table(_HEADERS, [_cells(row) for row in rows], right=(2, 3, 4, 5, 6, 7))
    out.line()
    for text in assumptions(cards):
        out.line(text)
    for by in dict.fromkeys(row["measured"]["by"] for row in rows if row["measured"]):
        out.line(f"measured: {by}")


def assumptions(cards: Sequence[Card]) -> list[str]:
    """What stands behind the figures, in words."""
    overheads = dict.fromkeys(f"{1e3 * card.overhead_s:g} ms ({_kinds(cards, card.overhead_s)})" for card in cards)
    return [
        "floor: bytes of one token by the memory's peak rate; one sequence; nothing of it was run by this program",
        f"expected: {cards[0].streams:.0%} of the peak rate and {' or '.join(overheads)} a step for all else; assumed",
        f"what does not fit (all but {SPARE_SHARE:.0%} of a card is used) is read from the machine's "
        f"memory at {RAM_BYTES_S / 1e9:.0f} GB/s, assumed",
        "experts are taken to be used evenly: an engine that keeps the most used on the card, or drafts, can be faster",
    ]


def _kinds(cards: Sequence[Card], overhead_s: float) -> str:
    return ", ".join(dict.fromkeys(card.kind for card in cards if card.overhead_s == overhead_s))


def _cells(row: dict[str, Any]) -> list[str]:
    found = row["measured"]
    step = [f"{row[key]:.{digits}f}" if row["fits"] else "-" for key, digits in _STEP]
    share = f"{row['on_card']:.0%}" if row["fits"] else "too big"
    return [row["card"], row["model"], f"{row['token_bytes'] / 1e9:.2f}", share, *step,
            f"{found['decode_tps']:.1f}" if found else "-"]  # fmt: skip


_STEP = (("floor_ms", 2), ("expected_ms", 2), ("expected_tps", 0))


def place(model: Traffic, context: int, kept_bytes: int, workspace_bytes: int, spot: Spot) -> dict[str, Any]:
    """Where the parts of a model would live with this card, as data. `kept_bytes`: caches of further sequences."""
    parts = split(model, context, spot.free_bytes, kept_bytes, workspace_bytes)
    about = {"device": spot.label, "name": spot.name, "free_bytes": spot.free_bytes, "unified": spot.unified}
    return {**about, "fits": parts.whole, "says": placement_text(parts, spot), **asdict(parts)}


def placement_text(parts: Split, spot: Spot) -> str:
    """One line: which layers and experts where."""
    if parts.whole:
        return f"{parts.sides.text} on it"
    if spot.unified:
        return f"does not fit: {format_bytes(parts.host_bytes)} too much for the one memory"
    left = f"{format_bytes(parts.host_bytes)} in the machine's memory"
    return f"{parts.sides.text}; {left}" if parts.sides.near_layers else f"no layer on it; {left}"
