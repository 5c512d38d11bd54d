"""Where the tensors of a model live when it is split between a device and the processor."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
