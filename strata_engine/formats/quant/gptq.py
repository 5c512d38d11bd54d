"""GPTQ: codes packed along the input, zeros along the output, a group number for each input. 2, 3, 4 and 8 bits.

Version 1 files store every zero less one. Whether the groups are in order is read from the data, not from desc_act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata_engine.formats.quant import rules
from strata_engine.formats.quant.layout import (
    FLOATS,
    Part,
    Shape,
    Shapes,
    expect,
    group_count,
    matrix,
    shapes_of,
    whole,
)
from strata_engine.formats.quant.settings import choice, flag, number, refuse, text

if TYPE_CHECKING:
    from torch import Tensor

    from strata_engine.formats.quant.grouped import Grouped

_BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class GptqLayout:
    """`group_size` -1: one group. `symmetric`: qzeros may be absent, the zero is the middle code then."""

    bits: int
    group_size: int
    symmetric: bool = True
    zeros_less_one: bool = True

    @property
    def label(self) -> str:
        """GPTQ_INT4 and so on."""
        return f"GPTQ_INT{self.bits}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stored tensors."""
        zeros = Part("qzeros", ("I32",), required=not self.symmetric)
        return Part("qweight", ("I32",)), Part("scales", FLOATS), zeros, Part("g_idx", ("I32", "I64"), required=False)

    @property
    def coding(self) -> tuple[str, int]:
        """See Layout."""
        return "I4" if self.bits <= 4 else "I8", self.group_size

    def stored(self, outs: int, ins: int) -> dict[str, tuple[str, Shape]]:
        """See Layout."""
        groups = group_count(ins, self.group_size)
        return {
            "qweight": ("I32", (ins * self.bits // 32, outs)),
            "scales": ("F16", (groups, outs)),
            "qzeros": ("I32", (groups, outs * self.bits // 32)),
            "g_idx": ("I32", (ins,)),
        }

    def measure(self, shapes: Shapes, stated: Shape | None = None) -> tuple[int, int]:
        """(N, K): qweight [K*bits/32, N], scales [G, N], qzeros [G, N*bits/32], g_idx [K]."""
        rows, outs = matrix(shapes, "qweight")
        ins = whole(rows * 32, self.bits, "the bits of a qweight column")
        groups = group_count(ins, self.group_size)
        expect(shapes, "scales", (groups, outs))
        if "qzeros" in shapes:
            expect(shapes, "qzeros", (groups, whole(outs * self.bits, 32, "the bits of a qzeros row")))
        expect(shapes, "g_idx", (ins,))
        return outs, ins

    def codes(self, parts: Mapping[str, Tensor]) -> Grouped:
        """The matrix as integers. Raises ValueError."""
        import torch

        from strata_engine.formats.quant.bits import dense
        from strata_engine.formats.quant.grouped import Grouped, checked_groups

        outs, ins = self.measure(shapes_of(parts))
        codes = dense(parts["qweight"].T.contiguous(), self.bits, ins)
        scales = parts["scales"].to(torch.float32).T.contiguous()
        zeros = torch.full(scales.shape, 1 << (self.bits - 1), dtype=torch.int16)
        if "qzeros" in parts:
            stored = dense(parts["qzeros"], self.bits, outs).T.to(torch.int16)
            # code by code: adding one to whole words would carry out of a stored maximum into its neighbour
            zeros = (stored + int(self.zeros_less_one)) & ((1 << self.bits) - 1)
        size = ins if self.group_size == -1 else self.group_size
        groups = checked_groups(parts["g_idx"], scales.shape[1], size) if "g_idx" in parts else None
        return Grouped(codes, scales, zeros, size, groups)

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """f32 [N, K]."""
        return self.codes(parts).values()


@dataclass(frozen=True)
class GptqScheme:
    """GPTQ for the whole checkpoint: the usual parameters, and rules that change or end them for some modules."""

    usual: GptqLayout
    rules: tuple[rules.Rule, ...] = ()
    label = "GPTQ"
    marks = frozenset({"qweight", "qzeros", "scales", "g_idx"})

    def layout(self, module: str) -> GptqLayout | None:
        """The first rule that matches decides."""
        rule = rules.first(self.rules, module)
        if rule is None:
            return self.usual
        return None if rule.excludes else _with(self.usual, rule.changes)


def _with(usual: GptqLayout, changes: Mapping[str, Any]) -> GptqLayout:
    return GptqLayout(
        bits=choice(changes, ("bits",), _BITS, usual.bits),
        group_size=group_size_of(changes, usual.group_size),
        symmetric=flag(changes, "sym", usual.symmetric),
        zeros_less_one=usual.zeros_less_one,
    )


def group_size_of(config: Mapping[str, Any], default: int) -> int:
    """group_size: -1 or at least 1."""
    size = number(config, ("group_size", "q_group_size"), default)
    if size != -1 and size < 1:
        raise refuse(f"group_size is {size}")
    return size


def read_gptq(config: Mapping[str, Any]) -> GptqScheme:
    """The scheme of a quantization_config. Raises UsageError (a variant we do not read), CorruptFile (malformed)."""
    stored = text(config, ("checkpoint_format", "format"), "gptq")
    if flag(config, "is_marlin_format", False) or stored not in ("gptq", "gptq_v2"):
        raise refuse(f"GPTQ in the checkpoint format {'marlin' if stored == 'gptq' else stored!r}")
    usual = GptqLayout(
        bits=choice(config, ("bits", "wbits"), _BITS),
        group_size=group_size_of(config, 128),
        symmetric=flag(config, "sym", True),
        zeros_less_one=stored == "gptq",
    )
    return GptqScheme(usual, rules.read(config.get("dynamic")))
