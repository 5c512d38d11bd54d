"""Models of real shapes whose weights are made on the device: a sparse file holds the head and the small tensors only.

Speed does not depend on the values of matrices; what they are multiplied with stays finite, as in generate_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from benches.generate_model import Mix, _add, _announce, _nbytes, contents, type_of
from benches.model_shapes import Shape, metadata, tensors
from benches.random_blocks import chunks
from strata_kernels.gpu import packing
from strata_kernels.gpu.arrays import DTYPES, DeviceArray
from strata_kernels.gpu.cells import LAYOUT, sections
from strata_kernels.gpu.ops import GpuOps
from strata_kernels.ops import Weight

TEMPLATE_ROWS = 64


def write_sparse(path: Path, shape: Shape, mix: Mix, vocabulary: int) -> int:
    """A GGUF file whose matrices are holes; bytes that its matrices would take."""
    plans = [(plan, type_of(plan, mix, shape.layers)) for plan in tensors(shape, vocabulary)]
    writer = gguf.GGUFWriter(str(path), shape.architecture)
    writer.add_name(f"synthetic-{shape.architecture}")
    for key, value in metadata(shape).items():
        _add(writer, f"{shape.architecture}.{key}", value)
    for plan, type_name in plans:
        _announce(writer, plan, type_name)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file = writer.fout[0] if writer.fout else None
    if file is None:
        raise RuntimeError("the file is not open")
    random, total = np.random.default_rng(1), 0
    writer.write_padding(file, file.tell())
    for plan, type_name in plans:
        start, nbytes = file.tell(), _nbytes(plan, type_name)
        if plan.fill != "matrix":
            for piece in contents(plan, type_name, random):
                piece.tofile(file)
        total += nbytes if plan.fill == "matrix" else 0
        file.seek(start + -(-nbytes // 32) * 32)
    file.truncate(file.tell())
    writer.close()
    return total


class SyntheticOps(GpuOps):
    """Packs no matrix that is stored in blocks: it makes one, from a few random rows again and again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._templates: dict[tuple[str, int, int], Weight] = {}

    def pack(self, weight: Weight) -> Weight:
        """A random matrix of this type and shape; floats as they are."""
        if weight.type in ("F32", "F16", "BF16"):
            return super().pack(weight)
        return self._made(weight.type, weight.rows, weight.cols)

    def pack_pieces(self, weight_type: str, rows: int, cols: int, pieces: Iterable[NDArray[np.uint8]]) -> Weight:
        """A random matrix; the pieces are not looked at."""
        return self._made(weight_type, rows, cols)

    def _made(self, kind: str, rows: int, cols: int) -> Weight:
        template = self._template(kind, cols)
        if rows <= template.rows:
            return self._template(kind, cols, rows)
        parts, nbytes = sections(kind, rows, cols)
        out = DeviceArray(self.allocator.allocate(nbytes), 0, (nbytes,), "u8")
        source = packing.views(template)
        for name, part in parts.items():
            target = DeviceArray(out.block, part.offset, part.shape, part.dtype)
            _repeat(source[name], target)
        return Weight(kind, rows, cols, out, layout=LAYOUT)

    def _template(self, kind: str, cols: int, rows: int = TEMPLATE_ROWS) -> Weight:
        key = (kind, rows, cols)
        if key not in self._templates:
            pieces = list(chunks(np.random.default_rng(7), kind, rows * cols, cols**-0.5))
            data = np.concatenate(pieces).reshape(rows, -1)
            self._templates[key] = packing.pack(Weight(kind, rows, cols, data), self.allocator)
        return self._templates[key]


def _repeat(source: DeviceArray, target: DeviceArray) -> None:
    """Fill `target` with `source` again and again, on the device, twice as much each time."""
    flat, whole = source.reshape(-1), target.reshape(-1)
    size = DTYPES[target.dtype].itemsize
    done = min(flat.count, whole.count)
    whole[:done] = flat[:done]
    while done < whole.count:
        more = min(done, whole.count - done)
        target.block.copy(target.offset + done * size, target.block, target.offset, more * size)
        done += more
