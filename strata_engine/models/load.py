"""Streams a checkpoint into a model: checks all names, shapes and types first, then reads one tensor at a time.

Matrices are packed by the ops as they come; the embedding table stays in the mapped file. Nothing is guessed: a missing
tensor is an error that lists all missing ones, an unused one is a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.events import Notice
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.formats.gguf_types import TYPES_BY_NAME
from strata_engine.formats.quant import require_kernel
from strata_engine.models import find_model
from strata_engine.models.base import Model
from strata_engine.models.config import ModelConfig
from strata_engine.models.mixture import expert_rows
from strata_engine.models.names import NOT_NEEDED, RowSplit, Wanted, is_draft
from strata_engine.models.vision.config import VisionConfig, read_vision
from strata_engine.models.vision.tensors import tower_tensors
from strata_engine.models.vision.tower import Tower
from strata_kernels.ops import Array, Ops, Weight
from strata_kernels.registry import weight_types

Progress = Callable[[int, int], None]  # bytes done, bytes in all

VECTOR_TYPES = ("F32", "F16", "BF16")
_CHANGES: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "": lambda values: values,
    "plus one": lambda values: values + np.float32(1),
    "decay": lambda values: -np.exp(values),
}


@dataclass(frozen=True)
class Loaded:
    """A model with the facts of its loading. Bytes: packed copies, and what stays in the mapped file."""

    model: Model
    parameters: int
    quant: str
    packed_bytes: int
    mapped_bytes: int
    notices: tuple[Notice, ...] = ()
    tower: Tower | None = None


@dataclass
class Store:
    """What was read, by our names, and its bytes as in Loaded."""

    weights: dict[str, Weight] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)
    packed_bytes: int = 0
    mapped_bytes: int = 0


def load_model(source: WeightSource, ops: Ops, mmap: bool = True, progress: Progress | None = None) -> Loaded:
    """Read a whole checkpoint. Raises UsageError (unsupported), CorruptFile (missing, misshapen or damaged)."""
    kind = find_model(source)
    config = kind.configure(source)
    vision = _vision(kind, config, source)
    wanted = kind.wanted(config, source) + (tower_tensors(vision, source) if vision else [])
    store, metas = read_tensors(source, wanted, ops, mmap, progress)
    return Loaded(
        model=kind(config, store.weights, store.vectors),
        parameters=sum(_elements(meta) for meta in metas.values()),
        quant=dominant_type(metas.values()),
        packed_bytes=store.packed_bytes,
        mapped_bytes=store.mapped_bytes,
        notices=_unused(source, metas.values(), config),
        tower=Tower(vision, store.weights, store.vectors, ops) if vision else None,
    )


def _vision(kind: type[Model], config: ModelConfig, source: WeightSource) -> VisionConfig | None:
    """The checkpoint's image tower, if the decoder takes its features."""
    vision = read_vision(source) if kind.sees else None
    if vision is not None and vision.out_width != config.width:
        where = source.paths[0] if source.paths else source.kind
        text = f"{where}: image features have a width of {vision.out_width}, the decoder one of {config.width}"
        raise CorruptFile(text, hint="is it the projector of another model?")
    if vision is not None and len(vision.deepstack) >= config.layers:
        raise CorruptFile(f"the image tower feeds {len(vision.deepstack)} layers of a decoder of {config.layers}")
    return vision


def read_tensors(
    source: WeightSource, wanted: list[Wanted], ops: Ops, mmap: bool = True, progress: Progress | None = None
) -> tuple[Store, dict[str, TensorMeta]]:
    """Check all of `wanted`, then read one after the other; also what is stored, by our names. Raises as load_model."""
    metas = _match(source, wanted, ops.name)
    total = sum(metas[w.name].nbytes for w in wanted)
    store, done = Store(), 0
    for want in wanted:
        _read(source, want, metas[want.name], ops, mmap, store)
        done += metas[want.name].nbytes
        if progress is not None:
            progress(done, total)
    return store, metas


def _match(source: WeightSource, wanted: list[Wanted], kernels: str) -> dict[str, TensorMeta]:
    """Our name -> stored tensor, after checking everything that can be checked without reading."""
    tensors = source.tensors()
    missing = [name for w in wanted if (name := w.stored_name(source.kind)) not in tensors]
    where = source.paths[0] if source.paths else source.kind
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        details = {"missing": missing, "file": str(where)}
        raise CorruptFile(f"{where}: {len(missing)} tensors are missing: {shown}", details=details)
    metas = {w.name: tensors[w.stored_name(source.kind)] for w in wanted}
    types = weight_types(kernels)
    for want in wanted:
        _check(want, metas[want.name], kernels, types)
    return metas


def _check(want: Wanted, meta: TensorMeta, kernels: str, types: Collection[str]) -> None:
    one_row = want.use == "matrix" and want.shape == (1, *meta.shape)
    if meta.shape != want.shape and not one_row:
        details = {"tensor": meta.name, "shape": list(meta.shape), "expected": list(want.shape), "file": str(meta.path)}
        text = f"{meta.path}: tensor {meta.name} has shape {list(meta.shape)}, expected {list(want.shape)}"
        raise CorruptFile(text, details=details)
    if want.use != "vector":
        require_kernel(meta, kernels, types)
    elif meta.type not in VECTOR_TYPES:
        text = f"{meta.path}: tensor {meta.name} is stored as {meta.type}, which is not supported here"
        raise UsageError(text, hint=f"supported: {', '.join(VECTOR_TYPES)}", details={"tensor": meta.name})


def _read(source: WeightSource, want: Wanted, meta: TensorMeta, ops: Ops, mmap: bool, store: Store) -> None:
    data = np.frombuffer(source.read(meta.name), np.uint8)
    if want.use == "vector":
        values = _CHANGES[want.change](_floats(data, meta.type))
        store.vectors[want.name] = ops.constant(values)
        store.packed_bytes += values.nbytes
        return
    if want.use == "experts":
        for name, rows, part in expert_rows(want, data):
            _keep(name, Weight(meta.type, rows, want.shape[-1], part), ops, mmap, store)
        return
    rows, cols = want.shape
    if want.split is not None:
        _read_parts(want.split, Weight(meta.type, rows, cols, data.reshape(rows, -1)), ops, store)
        return
    if want.use == "halves":
        for name, part in zip(half_names(want.name), _halves(data, want, meta), strict=True):
            _keep(name, Weight(meta.type, rows, cols // 2, part), ops, False, store)
        return
    if want.use == "matrix":
        _keep(want.name, Weight(meta.type, rows, cols, data.reshape(rows, -1)), ops, mmap, store)
        return
    if want.use == "mapped":  # neither copied nor read here: a token needs a few of its rows
        store.weights[want.name + ".table"] = Weight(meta.type, rows, cols, data.reshape(rows, -1))
        return
    table = (data if mmap else data.copy()).reshape(rows, -1)
    kept = store.weights[want.name + ".table"] = Weight(meta.type, rows, cols, ops.constant(table))
    _count(kept, mmap and kept.data is table, store)


def _keep(name: str, stored: Weight, ops: Ops, mmap: bool, store: Store) -> None:
    """Pack one matrix and forget what was read of the file for it, or keep it as it is."""
    stored = stored if mmap else replace(stored, data=stored.data[:].copy())
    # the packed copy is what runs; the file's pages would stay resident beside it
    pack = getattr(ops, "pack_mapped", ops.pack) if mmap else ops.pack
    kept = store.weights[name] = pack(stored)
    _count(kept, mmap and kept.data is stored.data, store)


def _read_parts(split: RowSplit, stored: Weight, ops: Ops, store: Store) -> None:
    """Pack the parts of a matrix; each is copied out of the file first, since its rows do not lie together there."""
    groups = stored.data.reshape(split.groups, stored.rows // split.groups, -1)
    runs: dict[str, list[NDArray[np.uint8]]] = {}
    start = 0
    for name, size in split.runs:
        runs.setdefault(name, []).append(groups[:, start : start + size].reshape(split.groups * size, -1))
        start += size
    for name, pieces in runs.items():
        data = np.concatenate(pieces)
        kept = store.weights[name] = ops.pack(Weight(stored.type, len(data), stored.cols, data))
        _count(kept, False, store)
    forget = getattr(ops, "drop_mapped", None)
    if forget is not None:
        forget(stored.data)


def half_names(name: str) -> tuple[str, str]:
    """Our names of the left and the right columns of a matrix whose input is two vectors side by side."""
    return f"{name}.left", f"{name}.right"


def _halves(data: NDArray[np.uint8], want: Wanted, meta: TensorMeta) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rows, cols = want.shape
    if cols // 2 % TYPES_BY_NAME[meta.type].elements:
        text = f"{meta.path}: half of the {cols} columns of {meta.name} is not whole blocks of {meta.type}"
        raise UsageError(text, details={"tensor": meta.name})
    both = data.reshape(rows, 2, -1)
    return both[:, 0].copy(), both[:, 1].copy()


def _count(weight: Weight, mapped: bool, store: Store) -> None:
    if mapped:
        store.mapped_bytes += weight.data.nbytes
    else:
        store.packed_bytes += weight.data.nbytes


def _floats(data: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """A stored vector as f32, copied first: a mapped one may start at any byte, a typed view must not."""
    own = data.copy()
    if kind == "BF16":
        return (own.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return own.view(np.float16).astype(np.float32) if kind == "F16" else own.view(np.float32)


def _elements(meta: TensorMeta) -> int:
    count = 1
    for size in meta.shape:
        count *= size
    return count


def dominant_type(metas: Iterable[TensorMeta]) -> str:
    """The storage type that holds most of the matrix elements: what people call the quantisation."""
    counts: dict[str, int] = {}
    for meta in metas:
        if len(meta.shape) > 1:
            counts[meta.type] = counts.get(meta.type, 0) + _elements(meta)
    return max(counts, key=lambda name: counts[name]) if counts else ""


def _unused(source: WeightSource, used: Iterable[TensorMeta], config: ModelConfig) -> tuple[Notice, ...]:
    names = {meta.name for meta in used}
    unused = [name for name in source.tensors() if name not in names and not NOT_NEEDED.fullmatch(name)]
    if config.draft_layers:
        unused = [name for name in unused if not is_draft(name, config.layers)]
    if not unused:
        return ()
    shown = ", ".join(unused[:8]) + (f" and {len(unused) - 8} more" if len(unused) > 8 else "")
    return (Notice("unused_tensors", f"{len(unused)} tensors of the checkpoint are not used: {shown}"),)
