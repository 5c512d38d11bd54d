"""A whole speed run over one model: opens it for each setting, runs the tests, collects rows.

The engine's own parts are opened, but no thread is started and no sequence is scheduled: only the forward is timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strata_engine.bench.host import product_gop_s, read_bandwidth_gb_s
from strata_engine.bench.plan import SpeedTest
from strata_engine.bench.report import Row, Setting
from strata_engine.bench.speed import Measurer
from strata_engine.config import EngineConfig
from strata_engine.placement.mixture import bytes_read, products_read
from strata_engine.registry.files import ModelFiles
from strata_engine.runtime.opening import BackendFactory, Opened, open_parts

_HASH_MOST_BYTES = 4 << 30
_EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
_HEADS = ("output.weight", "lm_head.weight")


@dataclass(frozen=True)
class SpeedPlan:
    """What to run: every test under every config, `repetitions` times.."""

    files: ModelFiles
    configs: tuple[EngineConfig, ...]
    tests: tuple[SpeedTest, ...]
    repetitions: int


class Session:
    """Runs a plan. `said` is told what begins; `model` holds JSON data about the model once a config was opened."""

    def __init__(self, plan: SpeedPlan, backends: BackendFactory, said: Callable[[str], None]) -> None:
        self.plan, self._backends, self._said = plan, backends, said
        self.model: dict[str, Any] = {}
        self._bandwidth: dict[int, float] = {}  # threads -> GB/s
        self._product: dict[tuple[int, str, str], float] = {}  # threads, kernels, mode -> GOP/s

    @property
    def bandwidth_gb_s(self) -> dict[str, float]:
        """Measured read bandwidth by number of threads."""
        return {str(threads): round(value, 2) for threads, value in self._bandwidth.items()}

    @property
    def product_gop_s(self) -> dict[str, float]:
        """Measured speed of the fastest matrix product by threads, kernels and mode."""
        return {" ".join(map(str, key)): round(value, 1) for key, value in self._product.items()}

    def rows(self) -> Iterator[Row]:
        """Each row as soon as it is measured. Raises what opening a model raises."""
        for config in self.plan.configs:
            context = max(test.depth_tokens + test.tokens for test in self.plan.tests)
            # One page more: a sequence that ends on a page's last token needs no special case.
            fitted = replace(config, context_tokens=context + config.page_tokens, max_sequences=1)
            backend = self._backends(config.device)
            parts = open_parts(self.plan.files, fitted, backend)
            try:
                self.model = {**describe(parts), "backend": backend.name.upper(), "device": parts.device.name}
                yield from self._measure(parts, fitted)
            finally:
                parts.source.close()

    def _measure(self, parts: Opened, config: EngineConfig) -> Iterator[Row]:
        threads = config.threads or parts.device.cores
        taken = {choice.what: choice.taken for choice in parts.choices}  # what runs: "auto" is only what was asked
        kernels, mode = taken.get("kernels", config.kernels), taken.get("mode", config.mode)
        setting = Setting(threads, config.batch_rows, config.kv_type, kernels, mode)
        measurer = Measurer(parts.executor, parts.memory, parts.loaded.model.config.vocab_size)
        for test in self.plan.tests:
            self._said(f"{test.label}, {threads} threads, {self.plan.repetitions} repetitions")
            samples = tuple(measurer.measure(test, self.plan.repetitions))
            if test.prompt_tokens:
                yield self._prompt_row(test, setting, samples, parts)
                continue
            if threads not in self._bandwidth:
                self._bandwidth[threads] = read_bandwidth_gb_s(threads)
            yield Row(test, setting, samples, bytes_per_token(parts, test), self._bandwidth[threads])

    def _prompt_row(self, test: SpeedTest, setting: Setting, samples: tuple[float, ...], parts: Opened) -> Row:
        if test.generate_tokens:
            return Row(test, setting, samples)
        key = (setting.threads, setting.kernels, setting.mode)
        if key not in self._product:
            self._product[key] = product_gop_s(parts.executor.ops)
        products = products_read(parts.source, (*_EMBEDDINGS, *_HEADS))
        return Row(test, setting, samples, products_per_token=products, product_gop_s=self._product[key])


def bytes_per_token(parts: Opened, test: SpeedTest) -> int:
    """Bytes a decode step must read: every weight once (of experts those used), one embedding row, keys and values."""
    tensors = parts.source.tensors()
    weights = bytes_read(parts.source)
    if any(name in tensors for name in _HEADS):
        for name in _EMBEDDINGS:
            if name in tensors:
                weights -= tensors[name].nbytes - tensors[name].nbytes // max(1, tensors[name].shape[0])
    middle = test.depth_tokens + test.generate_tokens // 2
    return weights + middle * parts.memory.page_bytes // parts.memory.page_tokens


def describe(parts: Opened) -> dict[str, Any]:
    """The model as JSON data; a sha256 for each file whose hash is known or quick to compute."""
    files = parts.files
    hashes = [file.sha256 or _hash(file.path, file.size) for file in files.role("weights")]
    return {
        "name": files.name,
        "reference": files.reference,
        "architecture": parts.loaded.model.config.architecture,
        "quant": parts.loaded.quant,
        "size_bytes": sum(meta.nbytes for meta in parts.source.tensors().values()),
        "parameters": parts.loaded.parameters,
        "sha256": hashes[0] if len(hashes) == 1 else " ".join(hashes),
    }


def _hash(path: Path, size: int) -> str:
    if size > _HASH_MOST_BYTES:
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
