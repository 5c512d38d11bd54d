"""Whether a model is split between a device and the processor, and how: what the opening of an engine asks.

A device that holds all of a model runs it alone. Else the processor takes what `placement/sides.py` leaves to it, and
steps go back and forth (strata_kernels/split).
"""

from __future__ import annotations

from typing import Any

from strata_backends.base import Choice, ChosenOps, Profile
from strata_backends.cpu import CpuBackend
from strata_backends.machine import memory_bytes
from strata_engine.config import EngineConfig
from strata_engine.errors import OutOfMemory, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.formats.quant.logical import logical_weights
from strata_engine.models import find_model
from strata_engine.placement.estimate import Estimate
from strata_engine.placement.sides import Sides, Sizes, plan_sides
from strata_engine.units import format_bytes
from strata_kernels.split.ops import SplitOps

SPARE_SHARE = 0.05  # of a device's free memory: its driver, its kernels, what alignment costs


def split(
    source: WeightSource, config: EngineConfig, priced: Estimate, chosen: ChosenOps, free_bytes: int
) -> tuple[Any, list[Choice]]:
    """The Ops that run the model, and what was decided. Raises OutOfMemory, UsageError.

    `chosen`: of the device, with `free_bytes` of memory. A processor's own Ops come back as they are.
    """
    near = chosen.ops
    if not getattr(near, "separate", False):
        if config.gpu_layers or config.cpu_experts:
            raise UsageError("--gpu-layers and --n-cpu-moe want a GPU", hint="llmrun hw shows what is there")
        return near, []
    sizes = sizes_of(source, priced)
    sides = plan_sides(sizes, int(free_bytes * (1 - SPARE_SHARE)), config.gpu_layers, config.cpu_experts)
    near_bytes = format_bytes(sizes.near_bytes(sides))
    if sides.all_near:
        return near, [Choice("placement", "all on the device", f"{near_bytes} of {format_bytes(free_bytes)} free")]
    _require_memory(sizes, sides)
    far = CpuBackend().ops(Profile("auto", config.mode, config.threads))
    why = "asked for" if config.gpu_layers is not None else f"{format_bytes(free_bytes)} are free on the device"
    placed = Choice("placement", sides.text, f"{near_bytes} on the device, {why}")
    theirs = [Choice(f"processor: {one.what}", one.taken, one.why, one.rejected) for one in far.choices]
    return SplitOps(near, far.ops, sides.of, sides.of_layers), [placed, *theirs]


def sizes_of(source: WeightSource, priced: Estimate) -> Sizes:
    """What each tensor that the model wants takes, as stored. Raises UsageError, CorruptFile."""
    kind = find_model(source)
    config, stored = kind.configure(source), logical_weights(source)
    tensors: dict[str, int] = {}
    for want in kind.wanted(config, source):
        weight = stored.get(want.stored_name(source.kind))
        name = want.name + ".table" if want.use in ("table", "mapped") else want.name
        tensors[name] = tensors.get(name, 0) + (weight.nbytes if weight is not None else 0)
    cache = (priced.kv_bytes + priced.state_bytes) // max(1, config.layers)
    return Sizes(tensors, config.layers, cache, priced.workspace_bytes)


def _require_memory(sizes: Sizes, sides: Sides) -> None:
    needed, free = sizes.far_bytes(sides), memory_bytes()[1]
    if needed > free:
        text = f"{format_bytes(needed)} of the model are left to the processor, which has {format_bytes(free)} free"
        raise OutOfMemory(text, hint="use a smaller model or quantisation")
