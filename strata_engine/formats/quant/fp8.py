"""8-bit floats (e4m3) with a scale for the tensor, for each output, or for each block of 128 x 128. Scales multiply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata_engine.formats.quant.layout import FLOATS, Part, Shape, Shapes, expect, matrix, shapes_of
from strata_engine.formats.quant.settings import malformed, refuse, text

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Fp8Layout:
    """`block`: outputs and inputs that share a scale; None: one scale an output, or one for all."""

    block: tuple[int, int] | None
    scale: str = "weight_scale_inv"
    label = "FP8_E4M3"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stored tensors; an input_scale is for activations."""
        inputs = Part("input_scale", FLOATS, required=False)
        return Part("weight", ("F8_E4M3",)), Part(self.scale, FLOATS), inputs

    @property
    def coding(self) -> tuple[str, int]:
        """See Layout."""
        return "F8", -1 if self.block is None else self.block[1]

    def stored(self, outs: int, ins: int) -> dict[str, tuple[str, Shape]]:
        """See Layout."""
        down, across = self.block or (1, ins)
        return {"weight": ("F8_E4M3", (outs, ins)), self.scale: ("F32", (-(-outs // down), -(-ins // across)))}

    def measure(self, shapes: Shapes, stated: Shape | None = None) -> tuple[int, int]:
        """(N, K): weight [N, K]; the scale [N/block, K/block] rounded up, or [N, 1], [N], [1], []."""
        outs, ins = matrix(shapes, "weight")
        if self.block is None:
            expect(shapes, self.scale, (), (1,), (1, 1), (outs, 1), (outs,))
        else:
            expect(shapes, self.scale, (-(-outs // self.block[0]), -(-ins // self.block[1])))
        return outs, ins

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """f32 [N, K]."""
        import torch

        outs, ins = self.measure(shapes_of(parts))
        scale = parts[self.scale].to(torch.float32)
        if self.block is None:
            return parts["weight"].to(torch.float32) * scale.reshape(-1, 1)
        down, across = self.block
        spread = scale.repeat_interleave(down, 0)[:outs].repeat_interleave(across, 1)[:, :ins]
        return parts["weight"].to(torch.float32) * spread


@dataclass(frozen=True)
class Fp8Scheme:
    """FP8 for the whole checkpoint. Which modules were left alone is seen from their tensors."""

    usual: Fp8Layout
    label = "FP8"

    @property
    def marks(self) -> frozenset[str]:
        """The scale's name."""
        return frozenset({self.usual.scale})

    def layout(self, module: str) -> Fp8Layout:
        """The same for every module."""
        return self.usual


def read_fp8(config: Mapping[str, Any]) -> Fp8Scheme:
    """The scheme of a quantization_config. Raises UsageError (a variant we do not read), CorruptFile (malformed)."""
    kind = text(config, ("fmt",), "e4m3")
    if kind != "e4m3":
        raise refuse(f"FP8 numbers of the kind {kind!r}")
    block = config.get("weight_block_size")
    if block is None:
        return Fp8Scheme(Fp8Layout(None, "weight_scale"))
    return Fp8Scheme(Fp8Layout(block_of(block)))


def block_of(value: Any) -> tuple[int, int]:
    """[outputs, inputs] of a block as JSON gives it. Raises CorruptFile."""
    if isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value):
        return value[0], value[1]
    raise malformed(f"the block size is {value!r}, expected two numbers")
