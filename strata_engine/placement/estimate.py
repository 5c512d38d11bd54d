"""Bytes a model needs before anything is allocated, from the file headers alone. No torch.

weights     every matrix in the layout of its kernels, all else as stored; a tied embedding counts twice (rows to look
            up in the file, and the packed head); those of a drafter as stored
kv          keys and values of the cache: tokens x layers x kv rows x bytes of the type, the scales of int8, index keys
state       what recurrent layers and n-gram tables keep of each sequence, whatever its length
disk        n-gram tables, which stay in their files: not part of the sum
workspace   activations of the largest step, one row of logits for each sequence, and what an image tower takes for the
            largest image that the context has room for, up to 4,096 tokens (a larger one takes more when it comes)
Error: the program itself (about 50 MB, with torch
250 MB) is not in it, nor are the pages of the mapped file that were packed, which the system takes back when it needs
them. The plain torch operations need 4 more bytes a weight, counted when asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from strata_engine.config import EngineConfig, kv_scaled, kv_token_bytes, require_unscaled
from strata_engine.errors import OutOfMemory, UsageError
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.formats.quant import FORMATS
from strata_engine.formats.quant.logical import HeldView
from strata_engine.placement.drafters import drafter_use
from strata_engine.placement.mixture import ExpertUse, expert_use
from strata_engine.placement.sight import is_sight_table, sight_bytes
from strata_engine.placement.states import held_shape, is_draft, shared_row, state_use
from strata_engine.placement.streams import StreamUse, disk_bytes, is_table, stream_use
from strata_engine.units import format_bytes
from strata_kernels.packing import packed_bytes

# Of free memory the cache takes at most this share by itself; more only when a context was asked for.
KV_SHARE = 0.25
_LEAST_CONTEXT = 256

_GGUF_HEADS = "attention.head_count"
_EMBED = ("token_embd.weight", "model.embed_tokens.weight")
_HEAD = ("output.weight", "lm_head.weight")
_NOT_REQUANTISED = re.compile(r"token_embd\.weight|.*embed_tokens\.weight|.*(ffn_gate_inp|mlp\.gate|conv1d)\.weight")
_KEY_VALUE = re.compile(r"blk\.\d+\.attn_[kv]\.weight|model\.layers\.\d+\.self_attn\.[kv]_proj\.weight")
_GATE = re.compile(r"blk\.\d+\.ffn_gate\.weight|model\.layers\.\d+\.mlp\.gate_proj\.weight")
_QUERY = re.compile(r"blk\.\d+\.attn_q\.weight|model\.layers\.\d+\.self_attn\.q_proj\.weight")


@dataclass(frozen=True)
class Estimate:
    """Bytes by use for one config. `context_why`: where the context comes from, or why it was lowered."""

    weights_bytes: int
    kv_token_bytes: int
    kv_bytes: int
    workspace_bytes: int
    free_bytes: int
    context_tokens: int
    train_context_tokens: int
    pool_tokens: int
    largest_context_tokens: int
    context_why: str
    state_bytes: int = 0
    disk_bytes: int = 0
    drafter_bytes: int = 0  # of the weights

    @property
    def total_bytes(self) -> int:
        """All uses of memory together."""
        return self.weights_bytes + self.kv_bytes + self.state_bytes + self.workspace_bytes

    @property
    def fits(self) -> bool:
        """Does it fit into free memory?"""
        return self.context_tokens > 0 and self.total_bytes <= self.free_bytes


@dataclass(frozen=True)
class _Shape:
    vocab: int
    width: int
    query_rows: int
    kv_rows: int  # of all layers together, keys and values
    inner: int
    expert_row: int  # floats of a row in a layer with experts
    train_context_tokens: int
    weights_bytes: int
    elements: int
    slot_bytes: int  # of a sequence in recurrent layers
    draft_bytes: int  # more for each draft of a step
    state_row: int  # floats of a row in such a layer
    streams: StreamUse


def estimate(source: WeightSource, config: EngineConfig, free_bytes: int, cache_bytes: int | None = None) -> Estimate:
    """Price `config` for a checkpoint. `cache_bytes`: the memory that keys and values take a share of; None: all.

    Raises UsageError when its tensors tell no shape, the KV type is unknown or not one that its attention reads.
    """
    scaled, cache = kv_scaled(config.kv_type), free_bytes if cache_bytes is None else cache_bytes
    shape = _shape(HeldView(source, _requantiser(config.quantize_rest)), packed=config.kernels != "reference")
    if shape.streams.indexed:
        require_unscaled(config.kv_type)
    drafter = drafter_use(source, config.spec)
    weights = shape.weights_bytes + (4 * shape.elements if config.kernels == "reference" else 0)
    weights += drafter.weights_bytes
    rows = (shape.kv_rows + drafter.kv_rows) // 2
    token = kv_token_bytes(config.kv_type, rows, rows // _head_width(source) if scaled else 0)
    token += shape.streams.token_bytes
    looked = sight_bytes(source, config.context_tokens or shape.train_context_tokens)
    workspace = _workspace_bytes(shape, config) + looked
    states = config.max_sequences * (shape.slot_bytes + config.spec.most_drafts * shape.draft_bytes)
    room = max(0, free_bytes - weights - workspace - states)
    largest = min(shape.train_context_tokens, _whole_pages(room // token, config))
    context, why = _context(shape, config, room, int(cache * KV_SHARE), token)
    pool = _pool_tokens(context, config, min(room, int(cache * KV_SHARE)), token)
    return Estimate(
        weights_bytes=weights,
        kv_token_bytes=token,
        kv_bytes=pool * token,
        workspace_bytes=workspace,
        free_bytes=free_bytes,
        context_tokens=context,
        train_context_tokens=shape.train_context_tokens,
        pool_tokens=pool,
        largest_context_tokens=largest,
        context_why=why,
        state_bytes=states,
        disk_bytes=disk_bytes(source),
        drafter_bytes=drafter.weights_bytes,
    )


def require_fit(priced: Estimate) -> None:
    """Raises OutOfMemory with all numbers when the estimate does not fit."""
    if priced.fits:
        return
    states = f"states {format_bytes(priced.state_bytes)}, " if priced.state_bytes else ""
    text = (
        f"{format_bytes(priced.total_bytes)} needed (weights {format_bytes(priced.weights_bytes)}, keys and values "
        f"{format_bytes(priced.kv_bytes)} for {priced.context_tokens} tokens, {states}workspace "
        f"{format_bytes(priced.workspace_bytes)}), {format_bytes(priced.free_bytes)} free"
    )
    largest = priced.largest_context_tokens
    hint = f"a context of {largest} tokens fits (--ctx {largest})" if largest else "use a smaller model or quantisation"
    details = {"needed_bytes": priced.total_bytes, "free_bytes": priced.free_bytes, "largest_context_tokens": largest}
    raise OutOfMemory(text, hint=hint, details=details)


def _requantiser(choice: str) -> Callable[[TensorMeta], TensorMeta]:
    """What --quantize-rest makes of a tensor (models/rest.py)."""

    def change(meta: TensorMeta) -> TensorMeta:
        plain = choice != "none" and meta.type in ("F32", "F16", "BF16") and len(meta.shape) in (2, 3)
        if not plain or meta.shape[-2] < 128 or meta.shape[-1] % 32 or _NOT_REQUANTISED.fullmatch(meta.name):
            return meta
        kind = "Q8_0" if choice == "int8" or meta.name in _HEAD else "Q4_1"
        return replace(meta, type=kind, nbytes=math.prod(meta.shape[:-1]) * FORMATS[kind].row_bytes(meta.shape[-1]))

    return change


def _context(shape: _Shape, config: EngineConfig, room: int, share: int, token: int) -> tuple[int, str]:
    """(context, why). An asked-for context is never lowered for memory: it fits or require_fit says no."""
    train, asked = shape.train_context_tokens, config.context_tokens
    if asked is not None:
        if asked > train:
            return train, f"{asked} tokens were asked for; the model was made for {train}"
        return asked, "as asked"
    affordable = _whole_pages(min(room, share) // token, config)
    if affordable >= train:
        return train, "the model's own limit"
    least = min(train, _LEAST_CONTEXT)
    if affordable < least:  # a tiny share of a small machine: take what really fits, or nothing
        affordable = min(least, _whole_pages(room // token, config))
    return affordable, f"lowered from the model's {train}: keys and values may take {KV_SHARE:.0%} of free memory"


def _pool_tokens(context: int, config: EngineConfig, budget: int, token: int) -> int:
    """Tokens of all sequences together: every place at full length if the budget allows, at least one."""
    page = config.page_tokens
    one = math.ceil(context / page) * page
    return max(one, min(one * config.max_sequences, budget // token // page * page))


def _whole_pages(tokens: int, config: EngineConfig) -> int:
    return max(0, tokens // config.page_tokens * config.page_tokens)


def _workspace_bytes(shape: _Shape, config: EngineConfig) -> int:
    rows = max(config.batch_rows, config.max_sequences)
    attention = shape.width + 2 * shape.query_rows + 2 * shape.width
    inner = shape.width + max(2 * shape.inner, shape.expert_row, shape.state_row)
    row = 4 * (shape.width + max(attention, inner) + shape.streams.row)
    return rows * row + 4 * config.max_sequences * (shape.vocab + shape.width)


def _shape(source: WeightSource, packed: bool) -> _Shape:
    tensors = {name: meta for name, meta in source.tensors().items() if not (is_draft(source, name) or is_table(name))}
    embed = next((tensors[n] for n in _EMBED if n in tensors), None)
    kv_rows = sum(meta.shape[0] for meta in _matching(tensors, _KEY_VALUE))
    where = source.paths[0] if source.paths else source.kind
    if embed is None or len(embed.shape) != 2 or not kv_rows:
        raise UsageError(f"{where}: no embedding and attention tensors of a known name; cannot estimate its memory")
    head = _matrix_bytes(embed) if packed else embed.nbytes
    held = sum(_held_bytes(n, m) if packed and m is not embed else m.nbytes for n, m in tensors.items())
    tied = not any(name in tensors for name in _HEAD)
    use, states, streams = expert_use(source), state_use(source), stream_use(source, embed.shape[1])
    return _Shape(
        vocab=embed.shape[0],
        width=embed.shape[1],
        query_rows=max((m.shape[0] for m in _matching(tensors, _QUERY)), default=embed.shape[1]),
        kv_rows=kv_rows,
        inner=max((m.shape[0] for m in _matching(tensors, _GATE)), default=0 if use else 4 * embed.shape[1]),
        expert_row=_expert_row(use, embed.shape[1]) + shared_row(source),
        train_context_tokens=_train_context(source),
        weights_bytes=held + (head if tied else 0),
        elements=sum(math.prod(meta.shape) for meta in tensors.values()),
        slot_bytes=states.slot_bytes + streams.slot_bytes,
        draft_bytes=states.draft_bytes + streams.draft_bytes,
        state_row=states.row,
        streams=streams,
    )


def _expert_row(use: ExpertUse | None, width: int) -> int:
    """Each choice of a row takes its gathered input, gate, up and quantised forms (3 bytes an element)."""
    if use is None:
        return 0
    quantised = 3 * (width + use.inner_width) // 4
    return use.used * (width + 2 * use.inner_width + quantised) + use.count


def _held_bytes(name: str, meta: TensorMeta) -> int:
    return meta.nbytes if is_sight_table(name) else _matrix_bytes(replace(meta, shape=held_shape(name, meta)))


def _matrix_bytes(meta: TensorMeta) -> int:
    """Bytes of a tensor once loaded by the native kernels, which lay out a matrix anew; vectors stay what they are."""
    if len(meta.shape) < 2:
        return meta.nbytes
    one = packed_bytes(meta.type, meta.shape[-2], meta.shape[-1])  # experts are matrices of their own
    return meta.nbytes if one is None else math.prod(meta.shape[:-2]) * one


def _matching(tensors: Mapping[str, TensorMeta], pattern: re.Pattern[str]) -> list[TensorMeta]:
    return [meta for name, meta in tensors.items() if pattern.fullmatch(name)]


def _head_width(source: WeightSource) -> int:
    """Elements of a key or value in one head."""
    metadata = source.metadata()
    if source.kind == "gguf":
        name = metadata.get("general.architecture")
        values = [metadata.get(f"{name}.{key}") for key in ("attention.key_length", "embedding_length", _GGUF_HEADS)]
    else:
        config = metadata.get("config") or {}
        config = config.get("text_config") or config
        values = [config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads")]
    own, width, heads = values
    if isinstance(own, int) and own > 0:
        return own
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        raise UsageError(f"{source.paths[0] if source.paths else source.kind}: the number of heads is not stated")
    return max(1, width // heads)


def _train_context(source: WeightSource) -> int:
    metadata = source.metadata()
    if source.kind == "gguf":
        value = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    else:
        config = metadata.get("config") or {}
        value = (config.get("text_config") or config).get("max_position_embeddings")
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{source.paths[0] if source.paths else source.kind}: the context length is not stated")
    return value
