"""What residual streams, indexed attention and hashed n-gram tables mean for bytes, from headers alone. No torch.

An n-gram table is larger than memory and stays in its file: a token reads a few rows of it (models/ple.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from strata_engine.formats.base import TensorMeta, WeightSource

_TABLE = re.compile(r"per_layer_token_embd\.weight|(?:.+\.)?layers\.\d+\.ple\.ple_embedding\.ngram_embedding\..+")
_CONV = re.compile(r"blk\.\d+\.ple_conv1d\.weight|(?:.+\.)?layers\.\d+\.ple\.conv1d\.weight")
_INDEX_KEY = re.compile(
    r"blk\.\d+\.indexer\.k_norm\.weight|model\.layers\.\d+\.self_attn\.indexer\.k_layernorm\.weight"
)
_INDEX_QUERY = re.compile(
    r"blk\.\d+\.indexer\.q_proj\.weight|model\.layers\.\d+\.self_attn\.indexer\.index_qk_proj\.weight"
)
_NORM = re.compile(r"blk\.\d+\.hc_attn_norm\.weight|(?:.+\.)?layers\.\d+\.attn_hyper_connection\.hc_norm\.weight")


@dataclass(frozen=True)
class StreamUse:
    """What a model of this kind needs beside attention, recurrent states and experts; nothing for others.

    `token_bytes`: index keys of a token over all layers. `slot_bytes`: past rows and ids before the n-gram tables, of a
    sequence; `draft_bytes`: more for each draft. `row`: floats of a row beside the block's own. `indexed`: is there
    block-sparse attention?
    """

    token_bytes: int = 0
    slot_bytes: int = 0
    row: int = 0
    indexed: bool = False
    draft_bytes: int = 0


def stream_use(source: WeightSource, width: int) -> StreamUse:
    """For a model of `width`; nothing where a tensor or number of the kind is missing."""
    tensors = source.tensors()
    keys, convs, norms = (_matching(tensors.items(), pattern) for pattern in (_INDEX_KEY, _CONV, _NORM))
    block, budget, places = _numbers(source)
    key_width = keys[0].shape[0] if keys else 0
    token = len(keys) * (4 * key_width + -(-4 * key_width // block))
    slot = sum(4 * ((meta.shape[-1] - 1) * places * meta.shape[0] + places - 1) for meta in convs)
    index = max((meta.shape[0] for meta in _matching(tensors.items(), _INDEX_QUERY)), default=0)
    wide = norms[0].shape[0] if norms else 0
    chosen = budget // block if keys else 0
    # the streams, their normed copy and its gate; the n-gram part has one more
    row = (4 if convs else 3) * wide + index + chosen + 1 + width if wide else 0
    return StreamUse(token, slot, row, bool(keys), sum(4 * (meta.shape[0] + 1) for meta in convs))


@dataclass(frozen=True)
class IndexReading:
    """What a token reads where an index chooses blocks: bytes for each token before it, and most tokens attended to."""

    token_bytes: int = 0
    attended: int = 0


def index_reading(source: WeightSource) -> IndexReading:
    """Keys of whole blocks only; raw index keys are read by the block that they complete. Nothing without an index."""
    keys = _matching(source.tensors().items(), _INDEX_KEY)
    if not keys:
        return IndexReading()
    block, budget, _ = _numbers(source)
    return IndexReading(len(keys) * -(-4 * keys[0].shape[0] // block), budget + block - 1)


def is_table(name: str) -> bool:
    """Does a tensor stay in its file, whatever else is loaded?"""
    return _TABLE.fullmatch(name) is not None


def disk_bytes(source: WeightSource) -> int:
    """Stored bytes of what stays in its file."""
    return sum(meta.nbytes for name, meta in source.tensors().items() if is_table(name))


def is_conv(name: str) -> bool:
    """Is it the convolution behind an n-gram table? It is held as a plain vector."""
    return _CONV.fullmatch(name) is not None


def _matching(tensors: Iterable[tuple[str, TensorMeta]], pattern: re.Pattern[str]) -> list[TensorMeta]:
    return [meta for name, meta in tensors if pattern.fullmatch(name)]


def _numbers(source: WeightSource) -> tuple[int, int, int]:
    """(tokens of a block, tokens that the index chooses, tokens of the longest n-gram), each at least 1."""
    metadata = source.metadata()
    if source.kind == "gguf":
        prefix = metadata.get("general.architecture")
        keys = ("attention.compress_ratios", "attention.indexer.top_k", "ple.ngram_size")
        found = [metadata.get(f"{prefix}.{key}") for key in keys]
    else:
        config = metadata.get("config") or {}
        config = config.get("text_config") or config
        keys = ("indexer_compress_ratio", "indexer_budget", "ngram_size")
        found = [config.get(key, default) for key, default in zip(keys, (1, 1, 3), strict=True)]
    ratio, budget, places = (max(n, default=1) if isinstance(n, (list, tuple)) else n for n in found)
    block, budget, places = (n if isinstance(n, int) and n > 0 else 1 for n in (ratio, budget, places))
    return block, budget, places
