"""Bytes that one generated token moves, from headers alone: the floor of a decode step on any device. No torch.

dense     every matrix and vector that all tokens use, as it is stored; image towers, drafters and n-gram tables
          (16 rows a token) are not read while text is generated
head      the last matrix; a tied embedding is read as the head, another one row by row
experts   of all layers together, and those that work on one token
state     recurrent states, read and written
kv        keys and values of all tokens before; where blocks are chosen by an index only those, and the index keys
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from strata_engine.config import EngineConfig
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.placement.estimate import estimate
from strata_engine.placement.mixture import expert_use, is_expert
from strata_engine.placement.states import is_draft, state_use
from strata_engine.placement.streams import index_reading, is_table, stream_use

_EMBED = ("token_embd.weight", "model.embed_tokens.weight")
_HEAD = re.compile(r"(output|lm_head)\.(weight|qweight|scales|qzeros|g_idx|weight_packed|weight_scale)")
_SIGHT = re.compile(r"(v|mm)\..+|(model\.)?visual\..+")
_LAYER = re.compile(r"(?:blk|model\.layers)\.(\d+)\..+")
_ENDLESS = 1 << 62  # of free memory: nothing is to be lowered for


@dataclass(frozen=True)
class Traffic:
    """What a token reads. `experts`: (used, of how many) in a layer. `attended`: most tokens attended to, 0 = all."""

    dense_bytes: int
    head_bytes: int
    expert_bytes: int  # of all experts of all layers
    experts: tuple[int, int]
    layers: int
    state_bytes: int
    kv_token_bytes: int
    index_token_bytes: int = 0
    attended: int = 0

    @property
    def used_bytes(self) -> int:
        """Of the experts that work on a token, over all layers."""
        used, count = self.experts
        return self.expert_bytes * used // count if count else 0

    @property
    def stored_bytes(self) -> int:
        """All weights that are held in memory."""
        return self.dense_bytes + self.head_bytes + self.expert_bytes

    def kv_bytes(self, context: int) -> int:
        """Read for one token after `context` others."""
        seen = min(context, self.attended) if self.attended else context
        return self.kv_token_bytes * seen + self.index_token_bytes * context

    def token_bytes(self, context: int) -> int:
        """Everything one token reads, and the states it writes."""
        return self.dense_bytes + self.head_bytes + self.used_bytes + 2 * self.state_bytes + self.kv_bytes(context)


def traffic(source: WeightSource, config: EngineConfig) -> Traffic:
    """Of a checkpoint in its own storage types, with the cache of `config`. Raises UsageError as `estimate` does."""
    read = {
        n: m for n, m in source.tensors().items() if not (is_draft(source, n) or is_table(n) or _SIGHT.fullmatch(n))
    }
    embed = next((name for name in _EMBED if name in read), None)
    tied = not any(_HEAD.fullmatch(name) for name in read)
    head = _bytes(m for n, m in read.items() if (n == embed if tied else _HEAD.fullmatch(n)))
    experts = _bytes(m for n, m in read.items() if is_expert(n))
    dense = _bytes(m for n, m in read.items() if n != embed and not _HEAD.fullmatch(n) and not is_expert(n))
    priced = estimate(source, replace(config, context_tokens=config.context_tokens or 256), _ENDLESS)
    width = read[embed].shape[1] if embed else 0
    index = index_reading(source)
    use = expert_use(source)
    return Traffic(
        dense_bytes=dense,
        head_bytes=head,
        expert_bytes=experts,
        experts=(min(use.used, use.count), use.count) if use and experts else (0, 0),
        layers=len({found[1] for name in read if (found := _LAYER.fullmatch(name))}),
        state_bytes=state_use(source).slot_bytes,
        kv_token_bytes=priced.kv_token_bytes - stream_use(source, width).token_bytes,
        index_token_bytes=index.token_bytes,
        attended=index.attended,
    )


def _bytes(metas: Iterable[TensorMeta]) -> int:
    return sum(meta.nbytes for meta in metas)
