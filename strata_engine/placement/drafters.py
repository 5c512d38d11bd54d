"""What a drafter means for bytes, from headers alone: the model's own head, or files of its own. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_engine.config import SpecConfig
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.placement.states import is_draft

_OWN_HEAD = ("mtp", "auto")
_KEY_VALUE = re.compile(r"(?:.+\.)?(?:self_attn\.[kv]_proj|attn_[kv])\.weight")


@dataclass(frozen=True)
class DrafterUse:
    """Bytes of its weights as stored, and elements of a token's keys and values over its layers."""

    weights_bytes: int = 0
    kv_rows: int = 0


def drafter_use(source: WeightSource, spec: SpecConfig) -> DrafterUse:
    """Of all drafters that `spec` may open; files that are not there count nothing. Raises CorruptFile, UsageError."""
    found: list[Mapping[str, TensorMeta]] = []
    if spec.method in _OWN_HEAD:
        found.append({name: meta for name, meta in source.tensors().items() if is_draft(source, name)})
    path = None if spec.draft is None or spec.method == "none" else Path(spec.draft)
    if path is not None and path.exists():
        own = open_weights(path if path.is_dir() else [path])
        found.append(own.tensors())
        own.close()
    metas = [(name, meta) for tensors in found for name, meta in tensors.items()]
    rows = sum(meta.shape[0] for name, meta in metas if _KEY_VALUE.fullmatch(name))
    return DrafterUse(sum(meta.nbytes for _, meta in metas), rows)
