"""Where the parts of a model would live on a card that may be too small for it, and what a step would then cost.

An estimate: nothing is placed by it. In order of use for each byte: what every token reads (attention, norms, shared
experts, the head) and the cache come first, then routed experts, layer by layer from the first. What is left stays in
the machine's memory, where the processor computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_engine.placement.traffic import Traffic

# Of a card's free memory: for its driver, code and the activations of the largest step.
CARD_RESERVE_BYTES = 10**9
# Two channels of DDR5; `hw --measure` tells a machine's own.
RAM_BYTES_S = 60e9


@dataclass(frozen=True)
class Split:
    """`dense_layers`, `expert_layers`: how many of `layers` have them on the card. `token_*`: read for a token."""

    layers: int
    dense_layers: int
    expert_layers: int
    head: bool
    card_bytes: int
    host_bytes: int
    token_card_bytes: int
    token_host_bytes: int

    @property
    def whole(self) -> bool:
        """Is all of the model on the card?"""
        return self.host_bytes == 0


def split(model: Traffic, context: int, free_bytes: int, kept_bytes: int = 0) -> Split:
    """Of a model with one sequence of `context` tokens on a card with `free_bytes`.

    `kept_bytes`: of the cache beyond that sequence, and of states of others.
    """
    cache = model.kv_token_bytes * context + model.state_bytes + kept_bytes
    room = free_bytes - CARD_RESERVE_BYTES - cache
    head = room >= model.head_bytes
    room -= model.head_bytes if head else 0
    dense = _layers(room, model.dense_bytes, model.layers) if head else 0
    room -= _share(model.dense_bytes, dense, model.layers)
    # experts of a layer whose attention is elsewhere would be asked for from there
    experts = _layers(room, model.expert_bytes, model.layers) if dense == model.layers else 0
    on_card = _share(model.dense_bytes, dense, model.layers) + _share(model.expert_bytes, experts, model.layers)
    on_card += model.head_bytes if head else 0
    read = _share(model.dense_bytes, dense, model.layers) + _share(model.used_bytes, experts, model.layers)
    read += (model.head_bytes if head else 0) + _share(
        model.kv_bytes(context) + 2 * model.state_bytes, dense, model.layers
    )
    return Split(
        layers=model.layers,
        dense_layers=dense,
        expert_layers=experts if model.expert_bytes else dense,
        head=head,
        card_bytes=on_card,
        host_bytes=model.stored_bytes - on_card,
        token_card_bytes=read,
        token_host_bytes=model.token_bytes(context) - read,
    )


def _layers(room: int, part_bytes: int, layers: int) -> int:
    """How many layers' shares of a part fit; all of them when there is no such part."""
    if not part_bytes:
        return layers
    return max(0, min(layers, room * layers // part_bytes))


def _share(part_bytes: int, taken: int, layers: int) -> int:
    return part_bytes * taken // layers if layers else 0


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
