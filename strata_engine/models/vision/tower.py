"""The image tower of Qwen3-VL and Qwen3.5: patches to features for the decoder, on Ops.

Pre-norm blocks with full attention inside the image, learned positions stretched over it, and rotation by row and
column. Neighbouring patches are merged into one token; a deepstack makes further features from blocks on the way.
Source of the maths: transformers' Qwen3VLVisionModel, which the tests compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata_engine.models.blocks import Linear, add_linear, apply_linears
from strata_engine.models.vision.config import VisionConfig
from strata_engine.models.vision.positions import learned_positions, patch_axes
from strata_kernels.ops import Array, KvLayer, Ops, Rotary, Rows, Weight

_PAGE_TOKENS = 64
_THETA = 10000.0


@dataclass(frozen=True)
class Norm:
    """A layer norm with bias."""

    weight: Array
    bias: Array
    eps: float

    def apply(self, x: Array, out: Array, ops: Ops) -> None:
        """out = norm(x), [R, W] each."""
        ops.layer_norm(x, self.weight, self.bias, self.eps, out)


@dataclass(frozen=True)
class Merger:
    """Norm, then the patches of a token side by side through two products. `late`: the norm is over all of them."""

    norm: Norm
    fc1: Linear
    fc2: Linear
    late: bool

    def forward(self, x: Array, ops: Ops, out: Array) -> None:
        """out f32 [tokens, out width] from x [patches, W]."""
        tokens, wide = out.shape[0], self.fc1.rows
        with ops.scope():
            normed = ops.take(*x.shape)
            if self.late:
                self.norm.apply(x.reshape(tokens, wide), normed.reshape(tokens, wide), ops)
            else:
                self.norm.apply(x, normed, ops)
            (hidden,) = apply_linears(normed.reshape(tokens, wide), (self.fc1,), ops)
            ops.gelu(hidden, hidden)
            ops.linear(hidden, [self.fc2.weight], [out], [self.fc2.bias])


@dataclass(frozen=True)
class Block:
    """One layer: attention over all patches of the image, then an MLP; both add to the residual stream."""

    norm1: Norm
    qkv: tuple[Linear, Linear, Linear]
    o: Linear
    norm2: Norm
    up: Linear
    down: Linear
    heads: int
    rotary: Rotary

    def forward(self, x: Array, cache: KvLayer, rows: Rows, ops: Ops) -> None:
        """x [R, W] += attention, += mlp. `cache` is scratch."""
        count, width = x.shape
        with ops.scope():
            normed = ops.take(count, width)
            self.norm1.apply(x, normed, ops)
            q, k, v = (part.reshape(count, self.heads, -1) for part in apply_linears(normed, self.qkv, ops))
            ops.rope(q, rows, self.rotary)
            ops.rope(k, rows, self.rotary)
            ops.kv_store(k, v, cache, rows)
            mixed = ops.take(*q.shape)
            ops.attention(q, cache, rows, q.shape[2] ** -0.5, mixed)
            add_linear(mixed.reshape(count, width), self.o, x, ops)
        with ops.scope():
            normed = ops.take(count, width)
            self.norm2.apply(x, normed, ops)
            (hidden,) = apply_linears(normed, (self.up,), ops)
            ops.gelu(hidden, hidden, tanh=True)
            add_linear(hidden, self.down, x, ops)


class Tower:
    """Makes features f32 [tokens, feature width] from the patches of one image."""

    def __init__(
        self, config: VisionConfig, weights: Mapping[str, Weight], vectors: Mapping[str, Array], ops: Ops
    ) -> None:
        """`weights`, `vectors` by the names of tensors.py; `ops` are those that the tower runs on."""
        self.config = config
        self._ops = ops
        self._patch = _patch_product(config, vectors)
        self._table = np.asarray(vectors["vision.position"]).reshape(config.side**2, config.width)
        self._blocks = [_block(config, n, weights, vectors) for n in range(config.blocks)]
        names = ["vision.merger", *(f"vision.deepstack.{at}" for at in range(len(config.deepstack)))]
        self._mergers = [_merger(config, name, weights, vectors) for name in names]

    def features(self, patches: NDArray[np.float32], grid: tuple[int, int]) -> NDArray[np.float32]:
        """Features of an image of `grid` (rows, columns) patches [h * w, patch width], in the order of its tokens."""
        ops, config = self._ops, self.config
        count = grid[0] * grid[1]
        x = ops.zeros(count, config.width)
        outs = [ops.zeros(count // config.merged, config.out_width) for _ in self._mergers]
        given, positions = ops.constant(np.ascontiguousarray(patches)), self._positions(grid)
        cache, rows = _whole_image(count, config, patch_axes(grid, config.pixels.merge), ops)
        ops.begin()
        try:
            with ops.scope():
                ops.linear(given, [self._patch.weight], [x], [self._patch.bias])
                ops.add(x, positions, x)
                self._run(x, cache, rows, outs)
        finally:
            step = ops.end()
        step.run()
        return np.concatenate([ops.host(out, read=True) for out in outs], axis=1)

    def _positions(self, grid: tuple[int, int]) -> Array:
        return self._ops.constant(learned_positions(self._table, grid, self.config.pixels.merge))

    def _run(self, x: Array, cache: KvLayer, rows: Rows, outs: list[Array]) -> None:
        made = 1  # decoder layers take the deepstack's features in the order in which blocks make them
        for number, block in enumerate(self._blocks):
            block.forward(x, cache, rows, self._ops)
            if number in self.config.deepstack:
                at = 1 + self.config.deepstack.index(number)
                self._mergers[at].forward(x, self._ops, outs[made])
                made += 1
        self._mergers[0].forward(x, self._ops, outs[0])


def _whole_image(count: int, config: VisionConfig, axes: NDArray[np.int32], ops: Ops) -> tuple[KvLayer, Rows]:
    """Scratch keys and values of one layer, and rows that see all patches: each stands at the last position."""
    pages = -(-count // _PAGE_TOKENS)
    shape = (pages, config.heads, _PAGE_TOKENS, config.width // config.heads)
    numbers = np.arange(count, dtype=np.int32)
    rows = Rows(
        positions=ops.constant(np.full(count, count - 1, np.int32)),
        sequences=ops.constant(np.zeros(count, np.int32)),
        slots=ops.constant(numbers),
        pages=ops.constant(np.arange(pages, dtype=np.int32)[None]),
        axes=ops.constant(axes),
    )
    return KvLayer(ops.zeros(*shape), ops.zeros(*shape)), rows


def _patch_product(config: VisionConfig, vectors: Mapping[str, Array]) -> Linear:
    """The patch convolution as a product: its step is its size, so every patch meets every weight once."""
    pixels = config.pixels
    if "vision.patch" in vectors:
        kernel = np.asarray(vectors["vision.patch"])
    else:  # a projector file keeps the two frames apart
        frames = [np.asarray(vectors[f"vision.patch{frame}"]).reshape(config.width, 3, -1) for frame in range(2)]
        kernel = np.stack(frames, axis=2)
    matrix = np.ascontiguousarray(kernel.reshape(config.width, pixels.patch_width))
    weight = Weight("F32", config.width, pixels.patch_width, matrix.view(np.uint8))
    return Linear(weight, vectors["vision.patch_bias"])


def _rotary(config: VisionConfig) -> Rotary:
    """A quarter of a head's elements turn by row, a quarter by column, paired with the other half."""
    quarter = config.width // config.heads // 4
    inverse = 1 / np.power(np.float32(_THETA), np.arange(quarter, dtype=np.float32) / np.float32(quarter))
    axes = np.repeat(np.arange(2, dtype=np.int32), quarter)
    return Rotary(np.tile(inverse.astype(np.float32), 2), axes=axes)


def _norm(name: str, config: VisionConfig, vectors: Mapping[str, Array]) -> Norm:
    return Norm(vectors[name], vectors[f"{name}_bias"], config.eps)


def _block(config: VisionConfig, n: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> Block:
    def linear(name: str) -> Linear:
        return Linear(weights[f"vision.{n}.{name}"], vectors[f"vision.{n}.{name}_bias"])

    bias, width = vectors[f"vision.{n}.qkv_bias"], config.width
    q, k, v = (Linear(weights[f"vision.{n}.{p}"], bias[i * width : (i + 1) * width]) for i, p in enumerate("qkv"))
    return Block(
        norm1=_norm(f"vision.{n}.norm1", config, vectors),
        qkv=(q, k, v),
        o=linear("o"),
        norm2=_norm(f"vision.{n}.norm2", config, vectors),
        up=linear("up"),
        down=linear("down"),
        heads=config.heads,
        rotary=_rotary(config),
    )


def _merger(config: VisionConfig, name: str, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> Merger:
    norm = _norm(f"{name}.norm", config, vectors)
    fc1, fc2 = (Linear(weights[f"{name}.{part}"], vectors[f"{name}.{part}_bias"]) for part in ("fc1", "fc2"))
    return Merger(norm, fc1, fc2, late=".deepstack." in name)
