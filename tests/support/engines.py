"""Engines over tiny models for tests: plain torch operations, files on disk, no tokenizer unless the model has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strata_backends.base import Choice, ChosenOps, DeviceInfo, Profile
from strata_engine.chat import TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.events import Event, Finish, Reasoning, Text, Token
from strata_engine.registry.files import LocalFile, ModelFiles
from strata_engine.runtime.engine import Engine
from strata_kernels.reference.ops import ReferenceOps

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class ReferenceBackend:
    """The plain torch operations as a device with as much memory as a test wants."""

    name = "cpu"
    device = "cpu"

    def __init__(self, free_bytes: int = 8 << 30) -> None:
        self.free_bytes = free_bytes

    def info(self) -> DeviceInfo:
        return DeviceInfo("cpu", "test machine", 16 << 30, self.free_bytes)

    def ops(self, profile: Profile) -> ChosenOps:
        return ChosenOps(ReferenceOps(), (Choice("kernels", "reference", "a test wants them"),))


def model_files(path: Path, **fields: Any) -> ModelFiles:
    """ModelFiles of a checkpoint directory or of one weight file."""
    if path.is_dir():
        files = tuple(LocalFile(p, p.name, "weights", p.stat().st_size) for p in sorted(path.glob("*.safetensors")))
        return ModelFiles(path.name, str(path), str(path), files, directory=path, **fields)
    return ModelFiles(
        path.stem, str(path), str(path), (LocalFile(path, path.name, "weights", path.stat().st_size),), **fields
    )


def tiny_engine(path: Path, backend: Any = None, **config: Any) -> Engine:
    """An engine with small pages and batches, so that short tests cross their borders."""
    small = {"context_tokens": 96, "kv_type": "f32", "max_sequences": 4, "batch_rows": 16, "page_tokens": 8}
    return Engine.open(model_files(path), EngineConfig(**{**small, **config}), backend or ReferenceBackend())


def ids_request(*ids: int) -> TokenRequest:
    """A raw prompt of token ids."""
    return TokenRequest(ids=ids)


def tokens_of(events: list[Event]) -> list[Token]:
    """Every generated token in order, shown or not."""
    found: list[Token] = []
    for event in events:
        if isinstance(event, (Text, Reasoning, Finish)):
            found.extend(event.tokens)
    return found


def ids_of(events: list[Event]) -> list[int]:
    """The ids of every generated token."""
    return [token.id for token in tokens_of(events)]


def finish_of(events: list[Event]) -> Finish:
    """The Finish that ends the events."""
    last = events[-1]
    assert isinstance(last, Finish)
    return last
