"""Integer codes with a scale and a zero for each group of columns: what GPTQ, AWQ and compressed-tensors share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Grouped:
    """W[n, k] = scales[n, g] * (codes[n, k] - zeros[n, g]), g = groups[k].

    codes u8 or i8 [N, K]; scales f32 [N, G]; zeros i16 [N, G]; groups i64 [K], or None: runs of `group_size` columns.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    group_size: int
    groups: Tensor | None = None

    def group_of_columns(self) -> Tensor:
        """The group of each column, i64 [K]."""
        import torch

        return torch.arange(self.codes.shape[1]) // self.group_size if self.groups is None else self.groups

    def values(self) -> Tensor:
        """f32 [N, K]. Products of 8-bit differences and 16-bit scales are exact."""
        import torch

        index = self.group_of_columns()
        out = self.codes.to(torch.float32)
        out -= self.zeros.to(torch.float32)[:, index]
        out *= self.scales[:, index]
        return out

    def in_runs(self) -> tuple[Grouped, Tensor | None]:
        """The same matrix with its columns ordered so that each group is one run, and that order i64 [K].

        A product takes x[:, order] then. None: they were in order already, nothing was moved.
        """
        import torch

        if self.groups is None:
            return self, None
        order = torch.argsort(self.groups, stable=True)
        if bool((order[1:] > order[:-1]).all()):
            return self, None
        return replace(self, codes=self.codes[:, order], groups=self.groups[order]), order


def checked_groups(stored: Tensor, group_count: int, group_size: int) -> Tensor | None:
    """Stored group numbers [K] as `Grouped.groups`; None where they say the usual runs.

    Raises ValueError on a number outside 0..group_count-1.
    """
    import torch

    groups = stored.to(torch.int64)
    if int(groups.min()) < 0 or int(groups.max()) >= group_count:
        raise ValueError(f"group numbers are {int(groups.min())}..{int(groups.max())}, there are {group_count} groups")
    usual = torch.arange(groups.numel()) // group_size
    return None if torch.equal(groups, usual) else groups
