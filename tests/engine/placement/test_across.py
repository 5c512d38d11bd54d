"""A model across a card and the machine's memory: what goes first, what is left, and what a step then costs."""

from __future__ import annotations

import pytest

from strata_engine.placement.across import SPARE_SHARE, split, step_floor
from strata_engine.placement.traffic import Traffic
from strata_engine.runtime import splitting

GB = 10**9
MIXTURE = Traffic(2 * GB, GB, 40 * GB, (8, 64), 10, 0, 1000)
DENSE = Traffic(10 * GB, GB, 0, (0, 0), 10, 0, 1000)


def card(room: float) -> int:
    """Free memory that leaves `room` GB for a model when its workspace takes none."""
    return int(room * GB / (1 - SPARE_SHARE)) + 1000


def test_a_large_card_takes_everything():
    parts = split(MIXTURE, 1000, 80 * GB)
    assert parts.whole and parts.sides.text == "all 10 layers"
    assert parts.token_card_bytes == MIXTURE.token_bytes(1000) and parts.token_host_bytes == 0


def test_experts_leave_first_those_of_the_first_layers_before_others():
    parts = split(MIXTURE, 0, card(3 + 9), workspace_bytes=0)  # 4 GB of experts a layer
    assert (parts.sides.near_layers, parts.sides.far_experts) == (10, 8)
    assert parts.card_bytes == 11 * GB and parts.host_bytes == 32 * GB
    assert parts.token_host_bytes == MIXTURE.used_bytes * 8 // 10


def test_a_small_card_takes_the_last_layers_with_the_head():
    parts = split(DENSE, 0, card(5), workspace_bytes=0)
    assert parts.sides.text == "the last 4 of 10 layers"
    assert parts.token_card_bytes == 5 * GB and parts.token_host_bytes == 6 * GB


@pytest.mark.parametrize("free", [0, GB])
def test_a_card_too_small_for_a_layer_takes_nothing(free):
    parts = split(MIXTURE, 0, free)
    assert (parts.sides.near_layers, parts.card_bytes) == (0, 0)
    assert parts.token_host_bytes == MIXTURE.token_bytes(0)


def test_caches_take_their_room_too():
    assert split(MIXTURE, 2_000_000, card(12), workspace_bytes=0).sides.far_experts == 9
    assert split(MIXTURE, 0, card(12), kept_bytes=6 * GB, workspace_bytes=0).sides.far_experts == 10


def test_a_step_takes_both_memories_one_after_the_other():
    parts = split(DENSE, 0, card(5), workspace_bytes=0)
    step = step_floor(parts, bandwidth=100e9, streams=0.5, overhead_s=0.001, ram=10e9)
    assert step.floor_s == pytest.approx(0.05 + 0.6) and step.expected_s == pytest.approx(0.1 + 0.6 + 0.001)


def test_as_much_is_left_free_as_when_a_model_is_loaded():
    assert SPARE_SHARE == splitting.SPARE_SHARE
