"""Norms, element-wise operations, embedding rows, rotation, gathering and choosing."""

from __future__ import annotations

from typing import Any

from strata_kernels.gpu.core import Core

ELEMENTS = 1024  # of a program


class DenseOps(Core):
    """One group of GpuOps."""

    def rms_norm(self, x: Any, weight: Any, eps: float, out: Any) -> None:
        """As Ops."""
        width = x.shape[-1]
        rows = self._array(x).count // width
        self._run("rms_norm", (rows,), (x, weight, out, float(eps)), WIDTH=width, BLOCK=power(width, 1024))

    def add(self, a: Any, b: Any, out: Any) -> None:
        """As Ops."""
        self._elements("add", a, b, out)

    def silu_mul(self, gate: Any, up: Any, out: Any) -> None:
        """As Ops."""
        self._elements("silu_mul", gate, up, out)

    def _elements(self, kernel: str, *arrays: Any) -> None:
        count = self._array(arrays[-1]).count
        self._run(kernel, (-(-count // ELEMENTS),), (*arrays, count), BLOCK=ELEMENTS)


def power(count: int, most: int) -> int:
    """The next power of two, no more than `most`: the size of a program's block."""
    size = 16
    while size < count and size < most:
        size *= 2
    return size
