"""A checkpoint without its weights: what config.json (and the index, where there is one) say the tensors will be.

Serves `show --tensors` and `fit` before anything is downloaded. Shapes are those the family wants, storage follows the
quantization_config. What no config tells is assumed as published checkpoints have it: routers, embeddings and heads are
not quantised, nor is an image tower, plain tensors are of the config's dtype, experts are stored one by one. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from strata_engine.errors import NotFound
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.formats.nested import flat_config, plain_name
from strata_engine.formats.open import open_weights
from strata_engine.formats.projector import open_with_projector
from strata_engine.formats.quant.config import scheme_of
from strata_engine.formats.quant.layout import Layout, Scheme
from strata_engine.formats.safetensors import INDEX_NAME, read_index, read_json
from strata_engine.formats.safetensors_header import DTYPE_BITS
from strata_engine.models import find_model
from strata_engine.models.base import Model
from strata_engine.models.names import Wanted
from strata_engine.models.vision.config import planned_vision
from strata_engine.models.vision.tensors import tower_tensors
from strata_engine.registry.files import ModelFiles
from strata_engine.registry.local import config_only

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_LEFT_ALONE = re.compile(r".*router|head|embed|vision\..*")
_SIDE_FILES = ("config", "generation_config", "quantize_config", "quant_config")


class PlannedSource:
    """A WeightSource whose tensors are known by name, shape and type only. `known` is filled by `planned`."""

    def __init__(self, directory: Path, side_files: Mapping[str, Any]) -> None:
        self.kind = "safetensors"
        self.paths: tuple[Path, ...] = (directory / "config.json",)
        self.directory = directory
        self.side_files = side_files
        self.known: dict[str, TensorMeta] = {}

    def metadata(self) -> Mapping[str, Any]:
        """The content of the side files, by their stem."""
        return self.side_files

    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors that the family wants."""
        return self.known

    def read(self, name: str) -> memoryview:
        """Raises NotFound: there are no weights."""
        raise NotFound(f"{self.directory} has no weights, only a config", details={"tensor": name})

    def close(self) -> None:
        """Nothing is open."""


def planned(directory: Path) -> PlannedSource:
    """The checkpoint that a directory's JSON files describe.

    Raises NotFound without a config.json, UsageError for a family or quantisation that is not run, CorruptFile.
    """
    found = {stem: read_json(path) for stem in _SIDE_FILES if (path := directory / f"{stem}.json").is_file()}
    if "config" not in found:
        raise NotFound(f"{directory} has no config.json")
    if isinstance(found["config"].get("text_config"), dict):
        found["config"] = flat_config(found["config"])
    source = PlannedSource(directory, {"generation_config": {}, "tokenizer_files": {}, **found})
    family = find_model(source)
    index = directory / INDEX_NAME
    names = read_index(index)[0] if index.is_file() else None
    plan = _Plan(source, scheme_of(found), _dtype(found["config"]), names)
    tensors: dict[str, TensorMeta] = {}
    for want in family.wanted(family.configure(source), source) + _tower(family, source, names):
        for name, (kind, shape) in plan.stored(want).items():
            nbytes = prod(shape) * DTYPE_BITS[kind] // 8
            tensors[name] = TensorMeta(name, shape, kind, directory / "config.json", 0, nbytes)
    source.known = tensors
    return source


def _tower(family: type[Model], source: PlannedSource, names: Collection[str] | None) -> list[Wanted]:
    """Of the image tower, which releases have where their config names one; an index without it says no."""
    vision = planned_vision(source) if family.sees else None
    if vision is None or (names is not None and not any(plain_name(name).startswith("visual.") for name in names)):
        return []
    return tower_tensors(vision, source)


def open_or_plan(files: ModelFiles) -> WeightSource:
    """The weights of a model, or what its config says of them where there are none. Raises as both ways do."""
    if files.directory is not None and not files.role("weights") and config_only(str(files.directory)):
        return planned(files.directory)
    if files.directory is not None:
        return open_weights(files.directory)
    weights, projectors = ([file.path for file in files.role(role)] for role in ("weights", "mmproj"))
    return open_with_projector(weights, projectors)


def _dtype(config: Mapping[str, Any]) -> str:
    inner = config.get("text_config") or {}
    named = next((c[key] for c in (config, inner) for key in ("dtype", "torch_dtype") if c.get(key)), "bfloat16")
    return _DTYPES.get(str(named), "BF16")


@dataclass(frozen=True)
class _Plan:
    source: PlannedSource
    scheme: Scheme | None
    dtype: str
    names: Collection[str] | None  # of the index

    def stored(self, want: Wanted) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensor name -> (dtype, shape)."""
        name = want.stored_name("safetensors")
        module, _, last = name.rpartition(".")
        layout = self._layout(want, module) if last == "weight" and len(want.shape) == 2 else None
        if layout is None:
            return {name: (self.dtype, want.shape)}
        parts = layout.stored(*want.shape)
        try:
            layout.measure({part: shape for part, (_, shape) in parts.items()})
        except ValueError:  # a shape that the layout cannot hold: writers leave such a matrix alone
            return {name: (self.dtype, want.shape)}
        # a stored shape would have to be read
        return {f"{module}.{part}": what for part, what in parts.items() if part != "weight_shape"}

    def _layout(self, want: Wanted, module: str) -> Layout | None:
        if self.scheme is None or want.use != "matrix":
            return None
        if self.names is not None:
            marked = any(f"{module}.{mark}" in self.names for mark in self.scheme.marks)
            return self.scheme.layout(module) if marked else None
        if _LEFT_ALONE.fullmatch(want.name) or _excluded(self.source.side_files["config"], module):
            return None
        return self.scheme.layout(module)


def _excluded(config: Mapping[str, Any], module: str) -> bool:
    """Is the module, or one around it, in the config's list of what was not converted?"""
    settings = config.get("quantization_config") or {}
    listed = settings.get("modules_to_not_convert") or []
    return any(f".{entry}." in f".{module}." for entry in listed if isinstance(entry, str))
