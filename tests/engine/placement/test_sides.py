"""What goes to a device that cannot hold all of a model: experts leave it first, then layers."""

from __future__ import annotations

import pytest

from strata_engine.errors import OutOfMemory
from strata_engine.placement.sides import Sides, Sizes, plan_sides

EXPERT, REST, TABLE, HEAD, CACHE, FIXED = 40, 10, 1000, 20, 2, 5


def sizes(layers: int = 4, experts: bool = True) -> Sizes:
    tensors = {"embed.table": TABLE, "head": HEAD, "norm": 1}
    for layer in range(layers):
        tensors[f"{layer}.q"] = REST
        if experts:
            tensors[f"{layer}.gate_exps"] = EXPERT
    return Sizes(tensors, layers, CACHE, FIXED)


def near_bytes(near: int, far: int) -> int:
    return HEAD + 1 + FIXED + near * (REST + CACHE) + (near - far) * EXPERT


@pytest.mark.parametrize(("near", "far"), [(4, 0), (4, 1), (4, 4)])
def test_experts_of_the_first_layers_leave_first(near, far):
    found = plan_sides(sizes(), near_bytes(near, far), None, None)
    assert (found.near_layers, found.far_experts) == (near, far)
    less = plan_sides(sizes(), near_bytes(near, far) - 1, None, None)
    assert (less.near_layers, less.far_experts) == ((near, far + 1) if far < near else (near - 1, near - 1))


def test_layers_leave_a_device_too_small_for_all_but_the_experts():
    found = plan_sides(sizes(experts=False), near_bytes(2, 2), None, None)
    assert (found.near_layers, found.far_experts, found.text) == (2, 0, "the last 2 of 4 layers")


def test_numbers_that_were_asked_for_are_kept_or_refused():
    assert plan_sides(sizes(), 10**6, 3, 2) == Sides(4, 3, 2)
    assert plan_sides(sizes(), 10**6, 99, None).all_near
    with pytest.raises(OutOfMemory, match="all 4 layers on the device need"):
        plan_sides(sizes(), near_bytes(4, 0) - 1, 99, 0)


def test_a_device_that_holds_nothing_gets_nothing():
    found = plan_sides(sizes(), FIXED, None, None)
    assert (found.near_layers, found.text) == (0, "the last 0 of 4 layers")


def test_the_bytes_of_both_sides_are_all_bytes_but_the_table():
    all_bytes = sum(sizes().tensors.values()) - TABLE + 4 * CACHE + FIXED
    for near in range(5):
        for far in range(near + 1):
            sides = Sides(4, near, far)
            assert sizes().near_bytes(sides) + sizes().far_bytes(sides) == all_bytes
