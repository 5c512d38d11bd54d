"""What a file is by its name: its role in a model, and which shard of how many."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<ending>\.gguf|\.safetensors)")
_ODD_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>[0-9]+)-of-(?P<count>[0-9]+)\.gguf", re.IGNORECASE)
_TOKENIZER = frozenset({
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json",
})  # fmt: skip
_TEMPLATE = frozenset({"chat_template.jinja", "chat_template.json"})
_CONFIG = frozenset({
    "config.json", "generation_config.json", "quantize_config.json", "quantization_config.json",
    "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",
    "model.safetensors.index.json",
})  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """Shard `index` (from 1) of `count`."""

    stem: str
    index: int
    count: int
    ending: str

    def name(self, index: int) -> str:
        """File name of another shard of the same set."""
        return f"{self.stem}-{index:05d}-of-{self.count:05d}{self.ending}"


def shard_of(name: str) -> Shard | None:
    """The shard a file name stands for, when it is spelled as the tools spell it."""
    match = _SHARD.fullmatch(name)
    if not match or not 1 <= int(match["index"]) <= int(match["count"]):
        return None
    return Shard(match["stem"], int(match["index"]), int(match["count"]), match["ending"])


def odd_shard(name: str) -> Shard | None:
    """A GGUF shard whose numbers are not five digits: no tool will find its siblings."""
    match = _ODD_SHARD.fullmatch(name)
    if not match or shard_of(name):
        return None
    return Shard(match["stem"], int(match["index"]), int(match["count"]), ".gguf")


def role_of(name: str) -> str:
    """Role of a file by its name without folders; "" for files that a model does not need."""
    lower = name.lower()
    if lower.endswith(".gguf"):
        if "mmproj" in lower:
            return "mmproj"
        return "draft" if lower.startswith("mtp-") else "weights"
    if lower.endswith(".safetensors"):
        return "weights"
    for role, names in (("tokenizer", _TOKENIZER), ("template", _TEMPLATE), ("config", _CONFIG)):
        if lower in names:
            return role
    return ""


def ordered(names: Iterable[str]) -> list[str]:
    """Shards ascending, everything else by name."""
    return sorted(names, key=lambda n: (s.stem, s.index) if (s := shard_of(n.rsplit("/", 1)[-1])) else (n, 0))
