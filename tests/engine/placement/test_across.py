"""A model across a card and the machine's memory: what goes first, what is left, and what a step then costs."""

from __future__ import annotations

import pytest

from strata_engine.placement.across import CARD_RESERVE_BYTES, split, step_floor
from strata_engine.placement.traffic import Traffic

GB = 10**9
MIXTURE = Traffic(2 * GB, GB, 40 * GB, (8, 64), 10, 0, 1000)
DENSE = Traffic(10 * GB, GB, 0, (0, 0), 10, 0, 1000)


def test_a_large_card_takes_everything():
    parts = split(MIXTURE, 1000, 80 * GB)
    assert parts.whole and (parts.dense_layers, parts.expert_layers, parts.head) == (10, 10, True)
    assert parts.token_card_bytes == MIXTURE.token_bytes(1000) and parts.token_host_bytes == 0


def test_experts_are_left_out_first_from_the_last_layer_on():
    parts = split(MIXTURE, 0, CARD_RESERVE_BYTES + 3 * GB + 9 * GB)
    assert (parts.dense_layers, parts.expert_layers, parts.head) == (10, 2, True)  # 4 GB of experts a layer
    assert parts.card_bytes == 11 * GB and parts.host_bytes == 32 * GB
    assert parts.token_host_bytes == MIXTURE.used_bytes * 8 // 10


def test_a_small_card_takes_the_first_layers():
    parts = split(DENSE, 0, CARD_RESERVE_BYTES + 5 * GB)
    assert (parts.dense_layers, parts.expert_layers, parts.head) == (4, 4, True)
    assert parts.token_card_bytes == 5 * GB and parts.token_host_bytes == 6 * GB


@pytest.mark.parametrize("free", [0, CARD_RESERVE_BYTES, CARD_RESERVE_BYTES + GB - 1])
def test_a_card_too_small_for_the_head_takes_nothing(free):
    parts = split(MIXTURE, 0, free)
    assert (parts.dense_layers, parts.expert_layers, parts.head, parts.card_bytes) == (0, 0, False, 0)
    assert parts.token_host_bytes == MIXTURE.token_bytes(0)


def test_caches_take_their_room_before_experts_do():
    free = CARD_RESERVE_BYTES + 3 * GB + 9 * GB
    assert split(MIXTURE, 2_000_000, free).expert_layers == 1
    assert split(MIXTURE, 0, free, kept_bytes=6 * GB).expert_layers == 0


def test_a_step_takes_both_memories_one_after_the_other():
    parts = split(DENSE, 0, CARD_RESERVE_BYTES + 5 * GB)
    step = step_floor(parts, bandwidth=100e9, streams=0.5, overhead_s=0.001, ram=10e9)
    assert step.floor_s == pytest.approx(0.05 + 0.6) and step.expected_s == pytest.approx(0.1 + 0.6 + 0.001)
