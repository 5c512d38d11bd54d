"""Norms, element-wise operations, embedding rows, rotation, gathering and choosing."""

from __future__ import annotations

from typing import Any

from strata_kernels.gpu.core import Core

ELEMENTS = 1024  # of a program
PART = 2048  # logits of a program
TOP_PART = 1024  # at least twice as many as a row's largest, so that each pass leaves fewer


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

    def gelu(self, x: Any, out: Any, tanh: bool = False) -> None:
        """As Ops."""
        count = self._array(out).count
        self._run("gelu", (-(-count // ELEMENTS),), (x, out, count), TANH=tanh, BLOCK=ELEMENTS)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float, out: Any) -> None:
        """As Ops."""
        rows, width = x.shape
        values = (x, weight, bias, out, float(eps))
        self._run("layer_norm", (rows,), values, WIDTH=width, BLOCK=power(width, ELEMENTS))

    def gather(self, x: Any, index: Any, out: Any) -> None:
        """As Ops."""
        count, width = out.shape
        block = power(width, ELEMENTS)
        self._run("gather", (count, -(-width // block)), (x, index, out, x.shape[0]), WIDTH=width, BLOCK=block)

    def put_rows(self, x: Any, index: Any, column: int, out: Any, add: bool = False) -> None:
        """As Ops. Raises ValueError where column and width lie outside of x."""
        count, width = out.shape
        if not 0 <= column <= x.shape[1] - width:
            raise ValueError(f"put_rows: columns {column}..{column + width - 1} are not inside {tuple(x.shape)}")
        block = power(width, ELEMENTS)
        sizes = {"COLUMN": column, "STRIDE": x.shape[1], "WIDTH": width, "BLOCK": block}
        self._run("put_rows", (count, -(-width // block)), (x, index, out, x.shape[0]), ADD=add, **sizes)

    def argmax(self, logits: Any, out: Any, share: Any | None = None) -> None:
        """As Ops; a NaN counts as the largest and leaves no share."""
        rows, vocab = logits.shape
        parts = -(-vocab // PART)
        with self.scope():
            most, total = self.take(rows, parts), self.take(rows, parts)
            index = self.take(rows, parts, dtype="i32")
            self._run("argmax_parts", (rows, parts), (logits, most, index, total), VOCAB=vocab, PART=PART, PARTS=parts)
            block, given = power(parts, 1 << 20), share if share is not None else most
            values = (most, index, total, out, given)
            self._run("argmax_rows", (rows,), values, PARTS=parts, BLOCK=block, SHARE=share is not None)

    def largest(self, logits: Any, ids: Any, values: Any) -> None:
        """The largest values of each row of logits [R, V], largest first, the lowest id first among equals.

        ids i32, values f32 [R, n]. NaN comes first, as infinity; where V < n what is missing is -infinity.
        """
        (rows, count), top = logits.shape, ids.shape[1]
        source, numbers, numbered = logits, ids, False
        with self.scope():
            while True:
                parts = -(-count // TOP_PART)
                last = parts == 1
                found = values if last else self.take(rows, parts * top)
                named = ids if last else self.take(rows, parts * top, dtype="i32")
                sizes = {"COUNT": count, "PART": TOP_PART, "PARTS": parts, "TOP": top, "NUMBERED": numbered}
                self._run("largest_parts", (rows, parts), (source, numbers, found, named), **sizes)
                if last:
                    return
                source, numbers, numbered, count = found, named, True, parts * top

    def _elements(self, kernel: str, *arrays: Any) -> None:
        count = self._array(arrays[-1]).count
        self._run(kernel, (-(-count // ELEMENTS),), (*arrays, count), BLOCK=ELEMENTS)


def power(count: int, most: int) -> int:
    """The next power of two, no more than `most`: the size of a program's block."""
    size = 16
    while size < count and size < most:
        size *= 2
    return size
