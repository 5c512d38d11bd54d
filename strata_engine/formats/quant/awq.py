"""AWQ in its GEMM layout: codes packed along the output, eight columns interleaved in a word. 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata_engine.formats.quant.gptq import group_size_of
from strata_engine.formats.quant.layout import FLOATS, Part, Shape, Shapes, expect, group_count, matrix, shapes_of
from strata_engine.formats.quant.settings import choice, flag, refuse, text

if TYPE_CHECKING:
    from torch import Tensor

    from strata_engine.formats.quant.grouped import Grouped

_NIBBLE_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class AwqLayout:
    """`zero_point` False: qzeros may be absent, the zero is the middle code then."""

    group_size: int
    zero_point: bool = True
    label = "AWQ_INT4"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stored tensors."""
        return Part("qweight", ("I32",)), Part("scales", FLOATS), Part("qzeros", ("I32",), required=self.zero_point)

    @property
    def coding(self) -> tuple[str, int]:
        """See Layout."""
        return "I4", self.group_size

    def stored(self, outs: int, ins: int) -> dict[str, tuple[str, Shape]]:
        """See Layout."""
        groups = group_count(ins, self.group_size)
        words = ("I32", (ins, outs // 8))
        return {"qweight": words, "scales": ("F16", (groups, outs)), "qzeros": ("I32", (groups, outs // 8))}

    def measure(self, shapes: Shapes, stated: Shape | None = None) -> tuple[int, int]:
        """(N, K): qweight [K, N/8], scales [G, N], qzeros [G, N/8]."""
        ins, words = matrix(shapes, "qweight")
        groups = group_count(ins, self.group_size)
        expect(shapes, "scales", (groups, words * 8))
        expect(shapes, "qzeros", (groups, words))
        return words * 8, ins

    def codes(self, parts: Mapping[str, Tensor]) -> Grouped:
        """The matrix as integers. Raises ValueError."""
        import torch

        from strata_engine.formats.quant.grouped import Grouped

        _, ins = self.measure(shapes_of(parts))
        scales = parts["scales"].to(torch.float32).T.contiguous()
        zeros = torch.full(scales.shape, 8, dtype=torch.int16)
        if "qzeros" in parts:
            zeros = _columns(parts["qzeros"]).to(torch.int16)
        size = ins if self.group_size == -1 else self.group_size
        return Grouped(_columns(parts["qweight"]), scales, zeros, size)

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """f32 [N, K]."""
        return self.codes(parts).values()


def _columns(words: Tensor) -> Tensor:
    """i32 [R, W] -> u8 [8W, R]: the interleaved nibbles of each word in the order of their columns, transposed."""
    from strata_engine.formats.quant.bits import dense

    stored = dense(words, 4, words.shape[1] * 8).reshape(words.shape[0], -1, 8)
    return stored[..., list(_NIBBLE_OF_COLUMN)].reshape(words.shape[0], -1).T.contiguous()


@dataclass(frozen=True)
class AwqScheme:
    """AWQ for the whole checkpoint. Which modules were left alone is seen from their tensors."""

    usual: AwqLayout
    label = "AWQ"
    marks = frozenset({"qweight", "qzeros", "scales"})

    def layout(self, module: str) -> AwqLayout:
        """The same for every module."""
        return self.usual


def read_awq(config: Mapping[str, Any]) -> AwqScheme:
    """The scheme of a quantization_config. Raises UsageError (a variant we do not read), CorruptFile (malformed)."""
    version = text(config, ("version", "format"), "gemm").lower()
    if version != "gemm":
        raise refuse(f"AWQ in the {version!r} layout")
    choice(config, ("bits", "w_bit"), (4,), 4)
    return AwqScheme(AwqLayout(group_size_of(config, 128), flag(config, "zero_point", True)))
