"""The table of cards: found by key, by a driver's name, and with others' measurements beside."""

from __future__ import annotations

import pytest

from strata_backends.cards import CARDS, MEASURED, card_named, measured
from strata_engine.placement.catalog_traffic import catalog_traffic
from strata_kernels.gpu.targets import TARGETS


@pytest.mark.parametrize(
    ("text", "key"),
    [("rx-7900-xtx", "rx-7900-xtx"), ("Radeon RX 7900 XTX", "rx-7900-xtx"), ("Radeon PRO W7900", "w7900"),
     ("Radeon AI PRO R9700", "r9700"), ("H200", "h200"), ("M1000-64GB", "m1000-64gb")],
)  # fmt: skip
def test_a_card_is_found_by_its_key_or_name(text, key):
    card = card_named(text)
    assert card is not None and card.key == key


def test_an_unknown_card_is_none():
    assert card_named("voodoo-2") is None


def test_every_card_has_kernels_and_every_figure_is_positive():
    for card in CARDS.values():
        assert card.arch in TARGETS and card.kind == TARGETS[card.arch].backend
        assert min(card.memory_bytes, card.bandwidth, card.f16, card.i8, card.f32, card.overhead_s) > 0


def test_measurements_are_of_cards_and_models_of_the_tables():
    for row in MEASURED:
        assert row.card in CARDS and row.model in catalog_traffic() and row.by


def test_the_measurement_of_the_nearest_context_is_taken():
    near, far = measured("m1000-64gb", "qwen3:gptq-int4", 100), measured("m1000-64gb", "qwen3:gptq-int4", 9000)
    assert near is not None and far is not None and (near.context, far.context) == (250, 2000)
    assert measured("h200", "qwen3:gptq-int4", 100) is None


def test_no_single_memory_was_measured_to_beat_its_peak():
    for row in MEASURED:
        model, card = catalog_traffic()[row.model], CARDS[row.card]
        if model.stored_bytes < card.memory_bytes:
            assert row.decode_tps * model.token_bytes(row.context) < card.bandwidth
