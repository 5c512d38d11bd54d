"""Matrices as models see them: one name, one shape, whatever number of tensors a checkpoint stores them in.

`logical_weights` groups the tensors of a checkpoint and checks every group before anything is read. GGUF tensors and
plain ones stand for themselves. No torch at import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata_engine.errors import CorruptFile, NotFound
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.formats.quant import FORMATS, format_of
from strata_engine.formats.quant.config import scheme_of
from strata_engine.formats.quant.layout import Layout, Scheme
from strata_engine.formats.quant.own_block import type_for

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from strata_engine.formats.quant.relay import Relaid

_INTEGER_BYTES = {"I32": 4, "I64": 8}
_TORCH_NAMES = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "I8": "int8", "I32": "int32", "I64": "int64",
}  # fmt: skip
_NUMPY_NAMES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "I8": "i1", "I32": "<i4", "I64": "<i8"}
_HINT = "Pull the model again; if that does not help, the checkpoint is not what its config says."


@dataclass(frozen=True)
class LogicalWeight:
    """One weight of a model. `parts`: stored tensors by part name, one named "" when it is stored plain.

    `type`: the storage type of a plain tensor, else the label of its layout (GPTQ_INT4). `shape`: as a model wants it.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    parts: Mapping[str, TensorMeta]
    layout: Layout | None = None

    @property
    def nbytes(self) -> int:
        """Stored bytes of all parts."""
        return sum(meta.nbytes for meta in self.parts.values())

    @property
    def held(self) -> str:
        """The storage type it has once loaded, by its shape; groups that turn out to be scattered may make it F32."""
        return self.type if self.layout is None else type_for(*self.layout.coding, self.shape[-1])

    def relaid(self, source: WeightSource, keep_order: bool = True) -> Relaid:
        """A quantised matrix as kernels multiply it, see relay.py. Raises CorruptFile on impossible numbers."""
        from strata_engine.formats.quant.relay import relay

        layout, parts = self._mapped(source)
        try:
            return relay(layout, parts, keep_order)
        except ValueError as error:
            raise _corrupt(self.name, self.parts, str(error)) from error

    def relaid_pieces(self, source: WeightSource) -> Iterator[Relaid]:
        """The same in runs of rows, all of one type and order: only one of them takes memory. Raises CorruptFile."""
        from strata_engine.formats.quant.relay import relay
        from strata_engine.formats.quant.row_parts import pieces

        layout, parts = self._mapped(source)
        try:
            for some in pieces(layout, parts, *self.shape):
                yield relay(layout, some)
        except ValueError as error:
            raise _corrupt(self.name, self.parts, str(error)) from error

    def _mapped(self, source: WeightSource) -> tuple[Layout, dict[str, NDArray[Any]]]:
        import numpy as np

        if self.layout is None:
            raise ValueError(f"{self.name} is stored plain")
        return self.layout, {
            name: np.frombuffer(source.read(meta.name), _NUMPY_NAMES[meta.type]).reshape(meta.shape)
            for name, meta in self.parts.items()
        }

    def read(self, source: WeightSource) -> dict[str, Tensor]:
        """Copies of the parts of a quantised matrix, each with the dtype it was stored in."""
        return {name: _tensor(source, meta) for name, meta in self.parts.items()}

    def unpack(self, source: WeightSource) -> Tensor:
        """All values as f32. Raises CorruptFile on impossible numbers, UsageError on a type that cannot be run."""
        if self.layout is None:
            meta = self.parts[""]
            return format_of(meta).unpack(_bytes(source, meta).reshape(*meta.shape[:-1], -1)).reshape(meta.shape)
        try:
            return self.layout.unpack(self.read(source))
        except ValueError as error:
            raise _corrupt(self.name, self.parts, str(error)) from error


def logical_weights(source: WeightSource) -> dict[str, LogicalWeight]:
    """All weights of a checkpoint by name; a quantised module's matrix is called MODULE.weight.

    Raises UsageError for a quantisation that cannot be run; CorruptFile naming module and part where the tensors do not
    fit together or contradict the config.
    """
    tensors = source.tensors()
    scheme = scheme_of(source.metadata()) if source.kind == "safetensors" else None
    if scheme is None:
        return {name: _plain(meta) for name, meta in tensors.items()}
    quantised = {name.rpartition(".")[0]: None for name in tensors if name.rpartition(".")[2] in scheme.marks}
    weights: dict[str, LogicalWeight] = {}
    taken: set[str] = set()
    for module in quantised:
        weight = _quantised(source, scheme, module, tensors)
        weights[weight.name] = weight
        taken |= {meta.name for meta in weight.parts.values()}
    for name, meta in tensors.items():
        if name in taken:
            continue
        if name in weights:
            raise _corrupt(name, {"": meta}, "it is stored both plain and quantised")
        weights[name] = _plain(meta)
    return weights


def _plain(meta: TensorMeta) -> LogicalWeight:
    return LogicalWeight(meta.name, meta.shape, meta.type, {"": meta})


def _quantised(source: WeightSource, scheme: Scheme, module: str, tensors: Mapping[str, TensorMeta]) -> LogicalWeight:
    layout = scheme.layout(module)
    prefix = f"{module}." if module else ""
    if layout is None:
        found = {mark: tensors[prefix + mark] for mark in scheme.marks if prefix + mark in tensors}
        names = ", ".join(sorted(found))
        raise _corrupt(module, found, f"it has {names}, but quantization_config ({scheme.label}) excludes it")
    parts = {part.name: tensors[prefix + part.name] for part in layout.parts if prefix + part.name in tensors}
    missing = [part.name for part in layout.parts if part.required and part.name not in parts]
    if missing:
        raise _corrupt(module, parts, f"{layout.label} needs {', '.join(missing)} beside {', '.join(parts)}")
    for part in layout.parts:
        if part.name in parts and parts[part.name].type not in part.types:
            stored, wanted = parts[part.name].type, " or ".join(part.types)
            raise _corrupt(module, parts, f"{part.name} is stored as {stored}, {layout.label} has {wanted}")
    try:
        shapes = {name: meta.shape for name, meta in parts.items()}
        shape = layout.measure(shapes, _stated(source, parts.get("weight_shape")))
    except ValueError as error:
        raise _corrupt(module, parts, str(error)) from error
    return LogicalWeight(f"{prefix}weight", shape, layout.label, parts, layout)


def _stated(source: WeightSource, meta: TensorMeta | None) -> tuple[int, ...] | None:
    """The content of a weight_shape tensor. Raises ValueError when it is not two positive numbers."""
    if meta is None:
        return None
    size = _INTEGER_BYTES[meta.type]
    raw = bytes(source.read(meta.name))
    numbers = tuple(int.from_bytes(raw[at : at + size], "little", signed=True) for at in range(0, len(raw), size))
    if len(numbers) != 2 or min(numbers) <= 0:
        raise ValueError(f"weight_shape says {list(numbers)[:8]}")
    return numbers


def _corrupt(module: str, parts: Mapping[str, TensorMeta], why: str) -> CorruptFile:
    path = next((str(meta.path) for meta in parts.values()), "")
    return CorruptFile(f"{path}: {module}: {why}", hint=_HINT, details={"file": path, "module": module})


def _bytes(source: WeightSource, meta: TensorMeta) -> Tensor:
    """A copy: a mapped tensor may start at any byte, a typed view must not."""
    import torch

    data = bytearray(source.read(meta.name))
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _tensor(source: WeightSource, meta: TensorMeta) -> Tensor:
    import torch

    return _bytes(source, meta).view(getattr(torch, _TORCH_NAMES[meta.type])).reshape(meta.shape)


class HeldView:
    """A checkpoint as it will be held: a quantised matrix is one tensor of our own type. Not to be read."""

    def __init__(self, source: WeightSource, change: Callable[[TensorMeta], TensorMeta] = lambda meta: meta) -> None:
        """`change`: what happens to a tensor on top of that. Raises what `logical_weights` does."""
        self.kind = source.kind
        self.paths = source.paths
        self._metadata = source.metadata()
        self._tensors = {name: change(_held(weight)) for name, weight in logical_weights(source).items()}

    def metadata(self) -> Mapping[str, Any]:
        """That of the checkpoint."""
        return self._metadata

    def tensors(self) -> Mapping[str, TensorMeta]:
        """By name; `nbytes` of a quantised matrix are those of its rows in our own type."""
        return self._tensors

    def read(self, name: str) -> memoryview:
        """Raises NotFound: nothing has been laid out yet."""
        raise NotFound(f"{name} is a view of what will be loaded", details={"tensor": name})

    def close(self) -> None:
        """The checkpoint itself stays open."""


def _held(weight: LogicalWeight) -> TensorMeta:
    first = next(iter(weight.parts.values()))
    if weight.layout is None:
        return first
    rows, cols = weight.shape
    nbytes = rows * FORMATS[weight.held].row_bytes(cols)
    return TensorMeta(weight.name, weight.shape, weight.held, first.path, first.offset, nbytes)
