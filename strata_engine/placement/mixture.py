"""What experts mean for bytes, from headers alone: which tensors are theirs, how many a token uses. No torch."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from strata_engine.formats.base import WeightSource
from strata_engine.placement.streams import disk_bytes, is_table

_EXPERT = re.compile(r"blk\.\d+\.ffn_\w+_exps\.\w+|(.+\.)?layers\.\d+\.mlp\.experts\..+")


@dataclass(frozen=True)
class ExpertUse:
    """`used` of `count` experts of a layer work on a token; `inner_width` of one of them."""

    used: int
    count: int
    inner_width: int


def expert_use(source: WeightSource) -> ExpertUse | None:
    """None for a dense model, or when the checkpoint does not say."""
    metadata = source.metadata()
    if source.kind == "gguf":
        prefix = metadata.get("general.architecture")
        keys = ("expert_used_count", "expert_count", "expert_feed_forward_length")
        values = [metadata.get(f"{prefix}.{key}") for key in keys]
    else:
        config = metadata.get("config") or {}
        count = config.get("num_experts") or config.get("num_local_experts")  # the latter is written by transformers 5
        values = [config.get("num_experts_per_tok"), count, config.get("moe_intermediate_size")]
    numbers = [value for value in values if isinstance(value, int) and value > 0]
    return ExpertUse(*numbers) if len(numbers) == 3 else None


def is_expert(name: str) -> bool:
    """Is it a tensor of routed experts?"""
    return _EXPERT.fullmatch(name) is not None


def expert_bytes(source: WeightSource) -> int:
    """Stored bytes of all experts of all layers."""
    return sum(meta.nbytes for name, meta in source.tensors().items() if _EXPERT.fullmatch(name))


def products_read(source: WeightSource, without: Collection[str]) -> int:
    """Multiplications a prompt token needs: elements of all matrices but those named, of experts those used."""
    use, total = expert_use(source), 0
    for name, meta in source.tensors().items():
        if len(meta.shape) < 2 or name in without or is_table(name):
            continue
        count = prod(meta.shape)
        total += count * min(use.used, use.count) // use.count if use and _EXPERT.fullmatch(name) else count
    return total


def bytes_read(source: WeightSource) -> int:
    """Stored bytes of weights that one token needs: all in memory, but of the experts only those that work on it."""
    stored, use = sum(meta.nbytes for meta in source.tensors().values()) - disk_bytes(source), expert_use(source)
    if use is None:
        return stored
    experts = expert_bytes(source)
    return stored - experts + experts * min(use.used, use.count) // use.count
