"""compressed-tensors: codes packed along the input (W4A16 and others), plain int8 (W8A8), or 8-bit floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata_engine.formats.quant.fp8 import Fp8Layout, block_of
from strata_engine.formats.quant.gptq import group_size_of
from strata_engine.formats.quant.layout import (
    FLOATS,
    Layout,
    Part,
    Shape,
    Shapes,
    expect,
    group_count,
    matrix,
    shapes_of,
)
from strata_engine.formats.quant.rules import Targets
from strata_engine.formats.quant.settings import choice, flag, malformed, refuse, section, text

if TYPE_CHECKING:
    from torch import Tensor

    from strata_engine.formats.quant.grouped import Grouped

_INPUTS = (Part("input_scale", FLOATS, required=False), Part("input_zero_point", ("I8",), required=False))


@dataclass(frozen=True)
class PackedLayout:
    """Codes of 2 to 8 bits, offset so that they are not negative, packed densely. `group_size` -1: one an output."""

    bits: int
    group_size: int
    symmetric: bool = True

    @property
    def label(self) -> str:
        """CT_INT4 and so on."""
        return f"CT_INT{self.bits}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stored tensors."""
        return (
            Part("weight_packed", ("I32",)),
            Part("weight_scale", FLOATS),
            Part("weight_shape", ("I64", "I32"), required=False),
            Part("weight_zero_point", ("I32", "I8"), required=not self.symmetric),
            Part("weight_g_idx", ("I32", "I64"), required=False),
            *_INPUTS,
        )

    @property
    def coding(self) -> tuple[str, int]:
        """See Layout."""
        return "I4" if self.bits <= 4 else "I8", self.group_size

    def stored(self, outs: int, ins: int) -> dict[str, tuple[str, Shape]]:
        """See Layout."""
        groups, words = group_count(ins, self.group_size), -(-ins * self.bits // 32)
        found: dict[str, tuple[str, Shape]] = {
            "weight_packed": ("I32", (outs, words)),
            "weight_scale": ("BF16", (outs, groups)),
            "weight_shape": ("I64", (2,)),
        }
        zeros = {"weight_zero_point": ("I32", (-(-outs * self.bits // 32), groups))}
        return found if self.symmetric else found | zeros

    def measure(self, shapes: Shapes, stated: Shape | None = None) -> tuple[int, int]:
        """(N, K): weight_packed [N, K*bits/32], weight_scale [N, G], weight_zero_point [N*bits/32, G] or [N, G]."""
        outs, words = matrix(shapes, "weight_packed")
        ins = words * 32 // self.bits if stated is None else stated[-1]
        if stated is not None and stated != (outs, ins):
            raise ValueError(f"weight_shape says {list(stated)}, weight_packed has {outs} rows")
        if words != -(-ins * self.bits // 32):
            raise ValueError(
                f"weight_packed has rows of {words} words, {ins} codes of {self.bits} bits do not fill them"
            )
        groups = group_count(ins, self.group_size)
        expect(shapes, "weight_scale", (outs, groups), *(((outs,),) if groups == 1 else ()))
        expect(shapes, "weight_zero_point", (-(-outs * self.bits // 32), groups), (outs, groups))
        expect(shapes, "weight_g_idx", (ins,))
        return outs, ins

    def codes(self, parts: Mapping[str, Tensor]) -> Grouped:
        """The matrix as integers. Raises ValueError."""
        import torch

        from strata_engine.formats.quant.bits import dense
        from strata_engine.formats.quant.grouped import Grouped, checked_groups

        told = tuple(parts["weight_shape"].tolist()) if "weight_shape" in parts else None
        outs, ins = self.measure(shapes_of(parts), told)
        codes = dense(parts["weight_packed"], self.bits, ins)
        scales = parts["weight_scale"].to(torch.float32).reshape(outs, -1)
        zeros = self._zeros(parts.get("weight_zero_point"), scales)
        size = ins if self.group_size == -1 else self.group_size
        groups = parts.get("weight_g_idx")
        if groups is None or bool((groups == -1).all()):  # -1 throughout: never set
            return Grouped(codes, scales, zeros, size)
        return Grouped(codes, scales, zeros, size, checked_groups(groups, scales.shape[1], size))

    def _zeros(self, stored: Tensor | None, scales: Tensor) -> Tensor:
        """i16 [N, G], offset as the codes are. Older files hold them as signed bytes, newer ones packed downwards."""
        import torch

        from strata_engine.formats.quant.bits import dense

        middle = 1 << (self.bits - 1)
        if stored is None:
            return torch.full(scales.shape, middle, dtype=torch.int16)
        if stored.dtype == torch.int8:
            return stored.to(torch.int16) + middle
        return dense(stored.T.contiguous(), self.bits, scales.shape[0]).T.to(torch.int16)

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """f32 [N, K]."""
        return self.codes(parts).values()


@dataclass(frozen=True)
class IntLayout:
    """Signed bytes as they are. `group_size` -1: one scale an output, or one for all."""

    group_size: int
    symmetric: bool = True
    label = "CT_INT8"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stored tensors."""
        zero = Part("weight_zero_point", ("I8",), required=not self.symmetric)
        return Part("weight", ("I8",)), Part("weight_scale", FLOATS), zero, *_INPUTS

    @property
    def coding(self) -> tuple[str, int]:
        """See Layout."""
        return "I8", self.group_size

    def stored(self, outs: int, ins: int) -> dict[str, tuple[str, Shape]]:
        """See Layout."""
        groups = group_count(ins, self.group_size)
        found: dict[str, tuple[str, Shape]] = {"weight": ("I8", (outs, ins)), "weight_scale": ("BF16", (outs, groups))}
        return found if self.symmetric else found | {"weight_zero_point": ("I8", (outs, groups))}

    def measure(self, shapes: Shapes, stated: Shape | None = None) -> tuple[int, int]:
        """(N, K): weight [N, K]; weight_scale [N, G], or for one group also [N], [1], []; zeros the same."""
        outs, ins = matrix(shapes, "weight")
        groups = group_count(ins, self.group_size)
        single = ((outs,), (1,), (), (1, 1)) if groups == 1 else ()
        expect(shapes, "weight_scale", (outs, groups), *single)
        expect(shapes, "weight_zero_point", shapes["weight_scale"])
        return outs, ins

    def codes(self, parts: Mapping[str, Tensor]) -> Grouped:
        """The matrix as integers. Raises ValueError."""
        import torch

        from strata_engine.formats.quant.grouped import Grouped

        outs, ins = self.measure(shapes_of(parts))
        groups = group_count(ins, self.group_size)
        scales = _spread(parts["weight_scale"].to(torch.float32), outs, groups)
        zeros = torch.zeros(scales.shape, dtype=torch.int16)
        if "weight_zero_point" in parts:
            zeros = _spread(parts["weight_zero_point"].to(torch.int16), outs, groups)
        return Grouped(parts["weight"], scales, zeros, ins if self.group_size == -1 else self.group_size)

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """f32 [N, K]."""
        return self.codes(parts).values()


def _spread(values: Tensor, outs: int, groups: int) -> Tensor:
    return values.reshape(-1, groups).expand(outs, groups)


@dataclass(frozen=True)
class CompressedScheme:
    """Layouts with the modules they are for. The most exact listing decides: by name first, then all linear layers."""

    groups: tuple[tuple[Targets, Layout], ...]
    ignored: Targets
    label = "compressed-tensors"
    marks = frozenset({"weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"})

    def layout(self, module: str) -> Layout | None:
        """None: ignored, or in no group."""
        if self.ignored.name(module):
            return None
        named = [layout for targets, layout in self.groups if targets.name(module)]
        return next(iter(named + [layout for targets, layout in self.groups if targets.linear()]), None)


def read_compressed(config: Mapping[str, Any]) -> CompressedScheme:
    """The scheme of a quantization_config. Raises UsageError (a variant we do not read), CorruptFile (malformed)."""
    sparsity = text(section(config, "sparsity_config"), ("format",), "dense")
    if sparsity != "dense":
        raise refuse(f"compressed-tensors sparsity {sparsity!r}")
    usual = text(config, ("format",), "")
    groups = []
    for name, group in section(config, "config_groups").items():
        if not isinstance(group, dict):
            raise malformed(f"config_groups.{name} is no object")
        weights = section(group, "weights")
        if weights:
            layout = _layout(text(group, ("format",), usual), weights)
            groups.append((Targets.of(group.get("targets"), f"the targets of {name}"), layout))
    if not groups:
        raise malformed("config_groups has no group with weights")
    return CompressedScheme(tuple(groups), Targets.of(config.get("ignore"), "ignore"))


def _layout(stored: str, weights: Mapping[str, Any]) -> Layout:
    kind, strategy = text(weights, ("type",), "int"), text(weights, ("strategy",), "tensor")
    if stored == "float-quantized" and kind == "float":
        choice(weights, ("num_bits",), (8,))
        if strategy == "block":
            return Fp8Layout(block_of(weights.get("block_structure")), "weight_scale")
        if strategy in ("tensor", "channel"):
            return Fp8Layout(None, "weight_scale")
    if kind == "int" and strategy in ("tensor", "channel", "group"):
        size = group_size_of(weights, -1) if strategy == "group" else -1
        symmetric = flag(weights, "symmetric", True)
        if stored == "pack-quantized" and strategy != "tensor":
            return PackedLayout(choice(weights, ("num_bits",), range(2, 9)), size, symmetric)
        if stored == "int-quantized":
            choice(weights, ("num_bits",), range(2, 9))
            return IntLayout(size, symmetric)
    raise refuse(f"compressed-tensors {stored!r} ({kind} weights, a scale for each {strategy})")
