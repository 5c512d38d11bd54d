"""A checkpoint whose decoder is one part among others, shown as a decoder with more tensors. No torch.

Config: the keys of `text_config` stand at the top, beside the outer ones. Names: the decoder's begin with `model.` as
those of a text-only checkpoint, the image tower's with `visual.`; several spellings of both are in use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from strata_engine.formats.base import TensorMeta, WeightSource

_SPELLINGS = (
    (re.compile(r"^model\.language_model\.|^language_model\.model\."), "model."),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^model\.visual\."), "visual."),
)


class NestedSource:
    """A WeightSource with the names and the config of its decoder brought to the top."""

    def __init__(self, inner: WeightSource) -> None:
        self._inner = inner
        self.kind = inner.kind
        self.paths: tuple[Path, ...] = inner.paths
        self._stored = {plain_name(name): name for name in inner.tensors()}
        self._metadata = {**inner.metadata(), "config": flat_config(inner.metadata()["config"])}

    def metadata(self) -> Mapping[str, Any]:
        """As the inner source's, with a flat config."""
        return self._metadata

    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors by their plain names."""
        inner = self._inner.tensors()
        return {name: replace(inner[stored], name=name) for name, stored in self._stored.items()}

    def read(self, name: str) -> memoryview:
        """The tensor's bytes. Raises CorruptFile, NotFound as the inner source."""
        return self._inner.read(self._stored.get(name, name))

    def close(self) -> None:
        """Close the inner source."""
        self._inner.close()


def flattened(source: WeightSource) -> WeightSource:
    """The source itself, or a view of it when its config nests the decoder's."""
    nested = source.kind == "safetensors" and isinstance(
        (source.metadata().get("config") or {}).get("text_config"), dict
    )
    return NestedSource(source) if nested else source


def plain_name(name: str) -> str:
    """How a tensor would be called in a checkpoint of the decoder alone."""
    for pattern, plain in _SPELLINGS:
        changed, count = pattern.subn(plain, name)
        if count:
            return changed
    return name


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The decoder's keys with the outer ones beside them; an outer value wins where it is not null."""
    outer = {key: value for key, value in config.items() if key != "text_config" and value is not None}
    return {**config["text_config"], **outer}
