"""QQQ (4-bit weights for 8-bit activations): tiles of 16 x 64 in the order of a GPU kernel, scales permuted with them.

Every weight is an 8-bit integer times a scale of its channel: per channel 16 times the signed code, per group the code
less 8 times the group's scale, rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata_engine.formats.quant.gptq import group_size_of
from strata_engine.formats.quant.layout import Part, Shape, Shapes, expect, matrix, shapes_of, whole
from strata_engine.formats.quant.settings import choice, refuse, text

if TYPE_CHECKING:
    from torch import Tensor

_GROUP = 128
CHANNEL_RUN = tuple(2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25))
GROUP_RUN = tuple(i + 8 * j for i in range(8) for j in range(8))
# nibble of a word -> place in (block of 8 outputs, input); which places depends on the mode
CHANNEL_NIBBLES = (1, 3, 5, 7, 0, 2, 4, 6)
GROUP_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class QqqLayout:
    """`group_size` -1 (per channel) or 128."""

    group_size: int
    label = "QQQ_INT4"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stored tensors; s_group is empty or absent per channel."""
        grouped = self.group_size != -1
        return Part("B", ("I32",)), Part("s_channel", ("F32",)), Part("s_group", ("F16",), required=grouped)

    @property
    def coding(self) -> tuple[str, int]:
        """See Layout."""
        return ("I4", -1) if self.group_size == -1 else ("I8", -1)

    def stored(self, outs: int, ins: int) -> dict[str, tuple[str, Shape]]:
        """See Layout."""
        found: dict[str, tuple[str, Shape]] = {"B": ("I32", (ins // 16, 2 * outs)), "s_channel": ("F32", (1, outs))}
        return found if self.group_size == -1 else found | {"s_group": ("F16", (ins // _GROUP, outs))}

    def measure(self, shapes: Shapes, stated: Shape | None = None) -> tuple[int, int]:
        """(N, K): B [K/16, 2N], s_channel [1, N], s_group [K/128, N]."""
        tiles, words = matrix(shapes, "B")
        outs, ins = whole(words, 2, "the words of a B row"), tiles * 16
        whole(outs, 64, "the number of outputs")
        expect(shapes, "s_channel", (1, outs))
        if self.group_size == -1:
            expect(shapes, "s_group", (0,), (0, outs))
        else:
            expect(shapes, "s_group", (whole(ins, _GROUP, "the number of inputs"), outs))
        return outs, ins

    def integers(self, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(8-bit weights i8 [N, K], scales of the outputs f32 [N, 1]). Raises ValueError."""
        import torch

        outs, ins = self.measure(shapes_of(parts))
        per_channel = self.group_size == -1
        codes = _in_order(parts["B"], CHANNEL_NIBBLES if per_channel else GROUP_NIBBLES)
        scales = _true_order(parts["s_channel"].to(torch.float32), CHANNEL_RUN).reshape(-1, 1)
        if per_channel:
            return codes << 4, scales  # the signed code in the high half: 16 times itself
        groups = _true_order(parts["s_group"].to(torch.float32), GROUP_RUN).T
        steps = (codes.to(torch.float32) - 8).reshape(outs, -1, _GROUP) * groups[..., None]
        return steps.round().clamp(-128, 127).to(torch.int8).reshape(outs, ins), scales

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """f32 [N, K]."""
        import torch

        weights, scales = self.integers(parts)
        return weights.to(torch.float32) * scales


def _in_order(words: Tensor, nibbles: tuple[int, ...]) -> Tensor:
    """B -> codes i8 [N, K], 0..15. A word holds 4 inputs of 2 outputs; 128 words a tile of 16 inputs and 64 outputs."""
    import torch

    from strata_engine.formats.quant.bits import dense

    tiles, count = words.shape
    codes = dense(words, 4, count * 8).view(torch.int8)
    # [tile of inputs, tile of outputs, output in 8, four inputs, 16 outputs, nibble]
    codes = codes.reshape(tiles, -1, 8, 4, 4, 8)[..., list(nibbles)].reshape(tiles, -1, 8, 4, 4, 2, 4)
    return codes.permute(1, 4, 5, 2, 0, 3, 6).reshape(count // 2, tiles * 16).contiguous()


def _true_order(scales: Tensor, run: tuple[int, ...]) -> Tensor:
    """Undo the permutation: stored place p of a run belongs to output run[p]."""
    import torch

    places = torch.argsort(torch.tensor(run))
    return scales.reshape(scales.shape[0], -1, len(run))[..., places].reshape(scales.shape)


@dataclass(frozen=True)
class QqqScheme:
    """QQQ for the whole checkpoint."""

    usual: QqqLayout
    label = "QQQ"
    marks = frozenset({"B", "s_channel", "s_group"})

    def layout(self, module: str) -> QqqLayout:
        """The same for every module."""
        return self.usual


def read_qqq(config: Mapping[str, Any]) -> QqqScheme:
    """The scheme of a quantization_config. Raises UsageError (a variant we do not read), CorruptFile (malformed)."""
    choice(config, ("bits", "wbits"), (4,), 4)
    stored = text(config, ("checkpoint_format", "format"), "qqq")
    size = group_size_of(config, -1)
    if stored != "qqq" or size not in (-1, _GROUP):
        raise refuse(f"QQQ in the format {stored!r} with groups of {size}")
    return QqqScheme(QqqLayout(size))
