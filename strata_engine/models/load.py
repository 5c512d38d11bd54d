"""Streams a checkpoint into a model: checks all names, shapes and types first, then reads one tensor at a time.

Matrices are packed by the ops as they come; the embedding table stays in the mapped file. A matrix that a quantised
checkpoint spreads over several tensors is brought into one of our own types on the way (formats/quant/relay.py).
Nothing is guessed: a missing tensor is an error that lists all missing ones, an unused one is a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.events import Notice
from strata_engine.formats.base import WeightSource
from strata_engine.formats.quant import FORMATS, require_kernel
from strata_engine.formats.quant.logical import LogicalWeight, logical_weights
from strata_engine.models import find_model
from strata_engine.models.base import Model
from strata_engine.models.blank import blanks
from strata_engine.models.config import ModelConfig
from strata_engine.models.mixture import expert_rows
from strata_engine.models.names import NOT_NEEDED, RowSplit, Wanted, expert_group, half_names, is_draft
from strata_engine.models.rest import Rest
from strata_engine.models.vision.config import VisionConfig, read_vision
from strata_engine.models.vision.tensors import tower_tensors
from strata_engine.models.vision.tower import Tower
from strata_kernels.ops import Array, Ops, Weight, same_order
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
    rest: Rest = field(default_factory=Rest)


@dataclass
class Store:
    """What was read, by our names, and its bytes as in Loaded."""

    weights: dict[str, Weight] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)
    packed_bytes: int = 0
    mapped_bytes: int = 0
    expert_types: dict[str, str] = field(default_factory=dict)  # layer and projection -> type of its first matrix
    widened: list[str] = field(default_factory=list)  # matrices that had to become F32
    rest: Rest = field(default_factory=Rest)
    unused: list[str] = field(default_factory=list)  # weights of the checkpoint that nothing asked for


def load_model(
    source: WeightSource, ops: Ops, mmap: bool = True, progress: Progress | None = None, rest: str = "none"
) -> Loaded:
    """Read a whole checkpoint. `rest`: none | int8 | int4, what matrices left in floats become (rest.py).

    Raises UsageError (unsupported), CorruptFile (missing, misshapen or damaged).
    """
    kind = find_model(source)
    config = kind.configure(source)
    vision = _vision(kind, config, source)
    wanted = kind.wanted(config, source) + (tower_tensors(vision, source) if vision else [])
    store, found = read_tensors(source, wanted, ops, mmap, progress, rest)
    return Loaded(
        model=kind(config, store.weights, store.vectors),
        parameters=sum(prod(weight.shape) for weight in found.values()),
        quant=dominant_type(found.values()),
        packed_bytes=store.packed_bytes,
        mapped_bytes=store.mapped_bytes,
        rest=store.rest,
        notices=(*_unused(store.unused, config), *_widened(store.widened)),
        tower=Tower(vision, store.weights, store.vectors, ops) if vision else None,
    )


def _vision(kind: type[Model], config: ModelConfig, source: WeightSource) -> VisionConfig | None:
    """The checkpoint's image tower, if the decoder takes its features."""
    vision = read_vision(source) if kind.sees else None
    if vision is not None and vision.out_width != config.width:
        where = source.paths[0] if source.paths else source.kind
        text = f"{where}: image features have a width of {vision.out_width}, the decoder one of {config.width}"
        raise CorruptFile(
            text, hint="is it the projector of another model? --mmproj names one; --mmproj none goes without"
        )
    if vision is not None and len(vision.deepstack) >= config.layers:
        raise CorruptFile(f"the image tower feeds {len(vision.deepstack)} layers of a decoder of {config.layers}")
    return vision


def read_tensors(
    source: WeightSource,
    wanted: list[Wanted],
    ops: Ops,
    mmap: bool = True,
    progress: Progress | None = None,
    rest: str = "none",
) -> tuple[Store, dict[str, LogicalWeight]]:
    """Check all of `wanted`, then read one after the other; also what is stored, by our names. Raises as load_model."""
    stored = logical_weights(source)
    found = _match(source, stored, wanted, ops.name)
    used = {weight.name for weight in found.values()}
    store, done = Store(rest=Rest(rest), unused=[name for name in stored if name not in used]), 0
    total = sum(found[w.name].nbytes for w in wanted)
    for want in wanted:
        _read(source, want, found[want.name], side_of(ops, want), mmap, store)
        done += found[want.name].nbytes
        if progress is not None:
            progress(done, total)
    return store, found


def is_separate(ops: Ops) -> bool:
    """Is its memory not the host's, where files are mapped?"""
    return getattr(ops, "separate", False)


def side_of(ops: Ops, want: Wanted) -> Ops:
    """Whose operations take a tensor: of an Ops over several devices the one where it shall live."""
    side = getattr(ops, "side", None)
    return ops if side is None else side(want.name + ".table" if want.use in ("table", "mapped") else want.name)


def _match(
    source: WeightSource, stored: dict[str, LogicalWeight], wanted: list[Wanted], kernels: str
) -> dict[str, LogicalWeight]:
    """Our name -> stored weight, after checking everything that can be checked without reading."""
    missing = [name for w in wanted if (name := w.stored_name(source.kind)) not in stored]
    where = source.paths[0] if source.paths else source.kind
    if missing:
        details = {"missing": missing, "file": str(where)}
        raise CorruptFile(f"{where}: {len(missing)} tensors are missing: {_listed(missing)}", details=details)
    found = {w.name: stored[w.stored_name(source.kind)] for w in wanted}
    types = weight_types(kernels)
    for want in wanted:
        _check(want, found[want.name], kernels, types)
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _check(want: Wanted, weight: LogicalWeight, kernels: str, types: Collection[str]) -> None:
    path = next(iter(weight.parts.values())).path
    one_row = want.use == "matrix" and want.shape == (1, *weight.shape)
    if weight.shape != want.shape and not one_row:
        details = {"tensor": weight.name, "shape": list(weight.shape), "expected": list(want.shape), "file": str(path)}
        text = f"{path}: tensor {weight.name} has shape {list(weight.shape)}, expected {list(want.shape)}"
        raise CorruptFile(text, details=details)
    if want.use == "vector" and weight.type not in VECTOR_TYPES:
        text = f"{path}: tensor {weight.name} is stored as {weight.type}, which is not supported here"
        raise UsageError(text, hint=f"supported: {', '.join(VECTOR_TYPES)}", details={"tensor": weight.name})
    if want.use != "vector" and weight.layout is None:
        require_kernel(weight.parts[""], kernels, types)


def _read(source: WeightSource, want: Wanted, weight: LogicalWeight, ops: Ops, mmap: bool, store: Store) -> None:
    if hasattr(ops, "blank"):
        return _leave_blank(want, weight, ops, store)
    if want.use == "vector":
        data = np.frombuffer(source.read(weight.name), np.uint8)
        values = _CHANGES[want.change](_floats(data, weight.type))
        store.vectors[want.name] = ops.constant(values)
        store.packed_bytes += values.nbytes
    elif weight.layout is not None:
        _read_quantised(source, want, weight, ops, store)
    elif want.use == "table":
        _read_table(source, want, weight, ops, mmap, store)
    elif want.use == "mapped":  # neither copied nor read here: a token needs a few of its rows
        for name, matrix in _matrices(source, want, weight):
            store.weights[name + ".table"] = matrix
    elif want.split is not None:
        for _, matrix in _matrices(source, want, weight):
            _read_parts(want.split, matrix, ops, store)
            _forget(ops, matrix.data)
    elif want.use == "halves":
        for _, matrix in _matrices(source, want, weight):
            _read_halves(want.name, matrix, weight, ops, store)
    else:
        for name, matrix in _matrices(source, want, weight):
            _keep(name, matrix, ops, mmap, store)


def _read_table(source: WeightSource, want: Wanted, weight: LogicalWeight, ops: Ops, mmap: bool, store: Store) -> None:
    """A matrix whose rows are looked up: it stays in the mapped file, or is packed for a device."""
    rows, cols = want.shape
    mapped = np.frombuffer(source.read(weight.name), np.uint8)
    data = (mapped if mmap else mapped.copy()).reshape(rows, -1)
    table = Weight(weight.type, rows, cols, data)
    # to a device it must be copied anyway, and rows are taken from a packed matrix too
    kept = ops.pack(table) if is_separate(ops) else replace(table, data=ops.constant(data))
    store.weights[want.name + ".table"] = kept
    _count(kept, mmap and kept.data is data, store)


def _leave_blank(want: Wanted, weight: LogicalWeight, ops: Any, store: Store) -> None:
    """What `_read` does, for ops that only plan: shapes without bytes."""
    if want.use == "vector":
        store.vectors[want.name] = ops.zeros(prod(want.shape))
    for one in blanks(want, weight, store.rest.choice):
        store.weights[one.name] = ops.blank(one.type, one.rows, one.cols, one.row_bytes, one.packed)


def _matrices(source: WeightSource, want: Wanted, weight: LogicalWeight) -> Iterator[tuple[str, Weight]]:
    """The matrices in a plain tensor, as views of the mapped file."""
    data = np.frombuffer(source.read(weight.name), np.uint8)
    if want.use == "experts":
        for name, rows, part in expert_rows(want, data):
            yield name, Weight(weight.type, rows, want.shape[-1], part)
        return
    rows, cols = want.shape
    yield want.name, Weight(weight.type, rows, cols, data.reshape(rows, -1))


def _read_quantised(source: WeightSource, want: Wanted, weight: LogicalWeight, ops: Ops, store: Store) -> None:
    """A matrix in several tensors. Its relaid form is dropped once packed, the file's pages at once."""
    rows, cols = want.shape
    if want.use == "matrix" and want.split is None and hasattr(ops, "pack_pieces"):
        return _pack_in_pieces(source, want, weight, ops, store)
    found = weight.relaid(source, keep_order=want.use == "matrix")
    for meta in weight.parts.values():
        _forget(ops, np.frombuffer(source.read(meta.name), np.uint8))
    if found.type != weight.held or found.type == "F32":
        store.widened.append(weight.name)
    matrix = Weight(found.type, rows, cols, found.data, order=found.order)
    if want.use in ("table", "mapped"):
        table = ops.pack(matrix) if is_separate(ops) else replace(matrix, data=ops.constant(found.data))
        kept = store.weights[want.name + ".table"] = table
    elif want.split is not None:
        return _read_parts(want.split, matrix, ops, store)
    elif want.use == "halves":
        return _read_halves(want.name, matrix, weight, ops, store)
    else:
        _check_expert(want, matrix, weight, store)
        kept = store.weights[want.name] = ops.pack(matrix)
    _count(kept, False, store)


def _pack_in_pieces(source: WeightSource, want: Wanted, weight: LogicalWeight, ops: Any, store: Store) -> None:
    """The usual case of `_read_quantised`: relaid and packed some rows at a time, so that no second copy is made."""
    rows, cols = want.shape
    pieces = weight.relaid_pieces(source)
    first = next(pieces)
    if first.type != weight.held or first.type == "F32":
        store.widened.append(weight.name)
    _check_expert(want, Weight(first.type, rows, cols, first.data, order=first.order), weight, store)
    runs = (piece.data for piece in chain((first,), pieces))
    kept = store.weights[want.name] = replace(ops.pack_pieces(first.type, rows, cols, runs), order=first.order)
    for meta in weight.parts.values():
        _forget(ops, np.frombuffer(source.read(meta.name), np.uint8))
    _count(kept, False, store)


def _read_parts(split: RowSplit, stored: Weight, ops: Ops, store: Store) -> None:
    """Pack the parts of a matrix; each is copied first, since its rows do not lie together."""
    groups = stored.data.reshape(split.groups, stored.rows // split.groups, -1)
    runs: dict[str, list[NDArray[np.uint8]]] = {}
    start = 0
    for name, size in split.runs:
        runs.setdefault(name, []).append(groups[:, start : start + size].reshape(split.groups * size, -1))
        start += size
    for name, pieces in runs.items():
        data = np.concatenate(pieces)
        kept = store.weights[name] = ops.pack(store.rest.apply(name, replace(stored, rows=len(data), data=data)))
        _count(kept, False, store)


def _read_halves(name: str, stored: Weight, weight: LogicalWeight, ops: Ops, store: Store) -> None:
    """Pack the left and the right columns of a matrix, each copied first."""
    cols = stored.cols // 2
    if cols % FORMATS[stored.type].block:
        path = next(iter(weight.parts.values())).path
        text = f"{path}: half of the {stored.cols} columns of {weight.name} is not whole blocks of {stored.type}"
        raise UsageError(text, details={"tensor": weight.name})
    both = stored.data.reshape(stored.rows, 2, -1)
    for part, data in zip(half_names(name), (both[:, 0].copy(), both[:, 1].copy()), strict=True):
        kept = store.weights[part] = ops.pack(store.rest.apply(part, replace(stored, cols=cols, data=data)))
        _count(kept, False, store)


def _check_expert(want: Wanted, matrix: Weight, weight: LogicalWeight, store: Store) -> None:
    """Raises UsageError where one op could not multiply all experts of a layer."""
    group = expert_group(want.name)
    if group is None:
        return
    usual = store.expert_types.setdefault(group, matrix.type)
    gate = store.weights.get(want.name.removesuffix("up") + "gate") if want.name.endswith(".up") else None
    if matrix.type == usual and (gate is None or same_order(gate, matrix)):
        return
    why = f"is held as {matrix.type}, its fellow experts as {usual}"
    if matrix.type == usual:
        why = "has its columns sorted (desc_act) in another way than the gate of the same expert"
    text = f"{next(iter(weight.parts.values())).path}: {weight.name} {why}"
    raise UsageError(text, hint="use a checkpoint quantised without desc_act, or a GGUF file")


def _keep(name: str, stored: Weight, ops: Ops, mmap: bool, store: Store) -> None:
    """Pack one matrix and forget what was read of the file for it, or keep it as it is."""
    table = store.weights.get(name + ".table")
    if is_separate(ops) and table is not None and table.layout != "file" and store.rest.choice == "none":
        store.weights[name] = table  # of tied embeddings: packed once for both uses
        return
    stored = stored if mmap else replace(stored, data=stored.data[:].copy())
    chosen = store.rest.apply(name, stored)
    # the packed copy is what runs; the file's pages would stay resident beside it
    pack = getattr(ops, "pack_mapped", ops.pack) if mmap and chosen is stored else ops.pack
    kept = store.weights[name] = pack(chosen)
    if mmap and chosen is not stored:
        _forget(ops, stored.data)
    _count(kept, mmap and kept.data is stored.data, store)


def _forget(ops: Ops, data: Array) -> None:
    """A copy is what runs from now on; the file's pages would stay resident beside it."""
    forget = getattr(ops, "drop_mapped", None)
    if forget is not None:
        forget(data)


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


def dominant_type(stored: Iterable[Any]) -> str:
    """The storage type that holds most of the matrix elements: what people call the quantisation.

    `stored`: anything with `type` and `shape`.
    """
    counts: dict[str, int] = {}
    for one in stored:
        if len(one.shape) > 1:
            counts[one.type] = counts.get(one.type, 0) + prod(one.shape)
    return max(counts, key=lambda name: counts[name]) if counts else ""


def _unused(names: list[str], config: ModelConfig) -> tuple[Notice, ...]:
    unused = [name for name in names if not NOT_NEEDED.fullmatch(name)]
    if config.draft_layers:
        unused = [name for name in unused if not is_draft(name, config.layers)]
    if not unused:
        return ()
    return (Notice("unused_tensors", f"{len(unused)} tensors of the checkpoint are not used: {_listed(unused)}"),)


def _widened(names: list[str]) -> tuple[Notice, ...]:
    if not names:
        return ()
    text = f"{len(names)} quantised matrices have groups that are not blocks of 32 columns and are held as F32"
    return (Notice("held_as_f32", f"{text}: {_listed(names)}"),)
