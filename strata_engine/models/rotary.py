"""Rotary frequencies from a RopeConfig: plain, linear, llama3 and yarn scaling, and the factors of a GGUF file."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from strata_engine.models.config import RopeConfig, RopeScaling, yarn_attention
from strata_kernels.ops import Rotary

Floats = NDArray[np.floating]


def make_rotary(rope: RopeConfig, factors: Floats | None = None) -> Rotary:
    """Rotary for the ops. `factors` f32 [dims/2]: each inverse frequency is divided by its factor (GGUF rope_freqs)."""
    exponents = np.arange(0, rope.dims, 2, dtype=np.float32) / np.float32(rope.dims)
    powers = np.power(np.float64(rope.theta), exponents)  # rounded once: f32 powers differ between libraries
    inverse = 1 / powers.astype(np.float32)
    scaling, scale = rope.scaling, 1.0
    if scaling.type == "linear":
        inverse = inverse / scaling.factor
    elif scaling.type == "llama3":
        inverse = _llama3(inverse, scaling)
    elif scaling.type == "yarn":
        inverse = _yarn(inverse, rope)
        scale = _yarn_scale(scaling)
    if factors is not None:
        inverse = inverse / factors
    return Rotary(inverse.astype(np.float32), rope.adjacent, scale, section_axes(rope))


def section_axes(rope: RopeConfig) -> NDArray[np.int32] | None:
    """Which axis (0 time, 1 height, 2 width) each pair turns by, i32 [dims/2]; None: all by one position.

    Interleaved: pair i turns by height when i % 3 is 1, by width when it is 2, as far as their sections reach.
    """
    if not rope.sections:
        return None
    pair = np.arange(rope.dims // 2)
    height, width = ((pair % 3 == axis) & (pair < 3 * rope.sections[axis]) for axis in (1, 2))
    return np.where(height, 1, np.where(width, 2, 0)).astype(np.int32)


def _llama3(inverse: Floats, scaling: RopeScaling) -> Floats:
    """Long waves are stretched, short ones kept, those between blended by how often they turn in the old context."""
    turns = scaling.original_context_tokens * inverse / (2 * math.pi)
    keep = ((turns - scaling.low) / (scaling.high - scaling.low)).clip(0, 1)
    return keep * inverse + (1 - keep) * inverse / scaling.factor


def _yarn(inverse: Floats, rope: RopeConfig) -> Floats:
    """Blend kept and stretched frequencies by a ramp over the dimension index."""
    scaling, dims = rope.scaling, rope.dims

    def dimension(rotations: float) -> float:
        wave = scaling.original_context_tokens / (rotations * 2 * math.pi)
        return dims * math.log(wave) / (2 * math.log(rope.theta))

    low, high = dimension(scaling.high), dimension(scaling.low)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001  # a ramp of no width is a step, not a division by zero
    ramp = ((np.arange(dims // 2, dtype=np.float32) - low) / (high - low)).clip(0, 1)
    return inverse / scaling.factor * ramp + inverse * (1 - ramp)


def _yarn_scale(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale is not None:
        return yarn_attention(scaling.factor, scaling.mscale[0]) / yarn_attention(scaling.factor, scaling.mscale[1])
    return yarn_attention(scaling.factor)
