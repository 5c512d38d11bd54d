"""Where the tensors of a model live when it is split between a device and the processor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from strata_engine.errors import OutOfMemory
from strata_engine.units import format_bytes

_LAYER = re.compile(r"(\d+)\.")
_EXPERTS = re.compile(r"\d+\.(expert\..*|\w+_exps)")  # ours: "12.expert.3.gate", "12.gate_up_exps"

NEAR, FAR = "near", "far"  # as strata_kernels.split has them


@dataclass(frozen=True)
class Sides:
    """The last `near_layers` of `layers` live on the device, with the norm and the head behind them when there are any.

    Of these the experts of the first `far_experts` stay with the processor. The embedding table always does: a token
    reads one of its rows.
    """

    layers: int
    near_layers: int
    far_experts: int = 0

    def of(self, name: str) -> str:
        """The side of a tensor of our name."""
        if name.endswith(".table"):
            return FAR
        found = _LAYER.match(name)
        if found is None:
            return NEAR if self.near_layers else FAR
        layer = int(found.group(1))
        if _EXPERTS.fullmatch(name) and layer < self.layers - self.near_layers + self.far_experts:
            return FAR
        return self.of_layer(layer)

    def of_layer(self, layer: int) -> str:
        """The side of a layer's cache and of its weights beside experts."""
        return NEAR if layer >= self.layers - self.near_layers else FAR

    @property
    def of_layers(self) -> tuple[str, ...]:
        """The side of each layer."""
        return tuple(self.of_layer(layer) for layer in range(self.layers))

    @property
    def all_near(self) -> bool:
        """Is nothing left to the processor?"""
        return self.near_layers >= self.layers and not self.far_experts

    @property
    def text(self) -> str:
        """In words."""
        near = min(self.near_layers, self.layers)
        where = f"all {near} layers" if near == self.layers else f"the last {near} of {self.layers} layers"
        return where + (f", the experts of {self.far_experts} of them with the processor" if self.far_experts else "")


@dataclass(frozen=True)
class Sizes:
    """Bytes by our names of tensors, and what one layer keeps of all sequences and what a step needs beside them."""

    tensors: Mapping[str, int]
    layers: int
    cache_bytes: int  # of one layer
    fixed_bytes: int

    def near_bytes(self, sides: Sides) -> int:
        """What a device must hold."""
        weights = sum(size for name, size in self.tensors.items() if sides.of(name) == NEAR)
        return weights + self.cache_bytes * min(self.layers, sides.near_layers) + self.fixed_bytes

    def far_bytes(self, sides: Sides) -> int:
        """What the processor's memory must hold, the tables aside, which stay in their files."""
        kept = (size for name, size in self.tensors.items() if sides.of(name) == FAR and not name.endswith(".table"))
        return sum(kept) + self.cache_bytes * max(0, self.layers - sides.near_layers)

    @property
    def has_experts(self) -> bool:
        """Is it a mixture?"""
        return any(_EXPERTS.fullmatch(name) for name in self.tensors)


def plan_sides(sizes: Sizes, room_bytes: int, near_layers: int | None, far_experts: int | None) -> Sides:
    """Where everything goes when a device has `room_bytes`; numbers that are None are chosen.

    Experts leave the device first, those of the first layers before others: a row reads a few of them only. Then whole
    layers do. Raises OutOfMemory with the numbers where what was asked for does not fit.
    """
    layers = sizes.layers
    asked = range(min(near_layers, layers), -1, -1) if near_layers is not None else range(layers, -1, -1)
    for near in asked:
        experts = range(near + 1) if sizes.has_experts else (0,)
        for far in experts if far_experts is None else (min(far_experts, near) if sizes.has_experts else 0,):
            sides = Sides(layers, near, far)
            if sizes.near_bytes(sides) <= room_bytes:
                return sides
        if near_layers is not None:
            break
    least = Sides(layers, asked[0] if near_layers is not None else 0, far_experts or 0)
    text = (
        f"{least.text} on the device need {format_bytes(sizes.near_bytes(least))}, {format_bytes(room_bytes)} are free"
    )
    raise OutOfMemory(text, hint="fewer --gpu-layers, more --n-cpu-moe, or auto for both; or a shorter --ctx")
