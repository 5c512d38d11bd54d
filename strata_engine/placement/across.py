"""Where the parts of a model would live on a card that may be too small for it, and what a step would then cost.

An estimate by the rule that loading follows (sides.py): experts leave the card first, then whole layers, the first ones
before others. All layers are taken to be of one size. Nothing is placed by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_engine.errors import OutOfMemory
from strata_engine.placement.sides import Sides, Sizes, plan_sides
from strata_engine.placement.traffic import Traffic

SPARE_SHARE = 0.05  # of a card's free memory, as runtime/splitting.py leaves it
WORKSPACE_BYTES = 5 * 10**8  # activations of the largest step, where nobody has worked them out
# Two channels of DDR5; `hw --measure` tells a machine's own.
RAM_BYTES_S = 60e9


@dataclass(frozen=True)
class Split:
    """Bytes on the card and in the machine's memory; `token_*`: of these, what is read for a token."""

    sides: Sides
    card_bytes: int
    host_bytes: int
    token_card_bytes: int
    token_host_bytes: int

    @property
    def whole(self) -> bool:
        """Is all of the model on the card?"""
        return self.sides.all_near


def split(
    model: Traffic, context: int, free_bytes: int, kept_bytes: int = 0, workspace_bytes: int = WORKSPACE_BYTES
) -> Split:
    """Of a model with one sequence of `context` tokens on a card with `free_bytes`.

    `kept_bytes`: of the cache beyond that sequence, and of states of others.
    """
    layers = model.layers
    cache = (model.kv_token_bytes * context + model.state_bytes + kept_bytes) // layers
    parts = {f"{layer}.dense": model.dense_bytes // layers for layer in range(layers)}
    if model.expert_bytes:
        parts |= {f"{layer}.all_exps": model.expert_bytes // layers for layer in range(layers)}
    sizes = Sizes({**parts, "head": model.head_bytes}, layers, cache, workspace_bytes)
    try:
        sides = plan_sides(sizes, int(free_bytes * (1 - SPARE_SHARE)), None, None)
    except OutOfMemory:  # not even a workspace
        sides = Sides(layers, 0)
    near, experts = sides.near_layers, sides.near_layers - sides.far_experts
    always = model.dense_bytes * near // layers + (model.head_bytes if near else 0)
    card = always + model.expert_bytes * experts // layers
    read = always + model.used_bytes * experts // layers
    read += (model.kv_bytes(context) + 2 * model.state_bytes) * near // layers
    return Split(sides, card, model.stored_bytes - card, read, model.token_bytes(context) - read)


@dataclass(frozen=True)
class Floor:
    """Seconds of a decode step of one sequence: at the memories' peak rates; with what is expected on top."""

    floor_s: float
    expected_s: float


def step_floor(parts: Split, bandwidth: float, streams: float, overhead_s: float, ram: float = RAM_BYTES_S) -> Floor:
    """`bandwidth`, `ram`: bytes a second. `streams`: the share of the card's that is reached, `overhead_s`: of a step.

    The parts run one after the other: a layer needs what the one before it gave.
    """
    host = parts.token_host_bytes / ram
    return Floor(
        parts.token_card_bytes / bandwidth + host, parts.token_card_bytes / (bandwidth * streams) + host + overhead_s
    )
