#!/usr/bin/env python3
"""Peak memory of loading: writes a random safetensors checkpoint of a given size, loads it in a process of its own.

The bound is what stays (packed and mapped bytes) plus the parts of the largest tensor, what becomes of it, and a margin
for the program. Prints a JSON line; the file is deleted unless --keep.

    python benches/load_memory.py --kind gptq --gigabytes 4
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strata_engine.formats.base import TensorMeta
from strata_engine.models.planned import planned

_SETTINGS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
}
_ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1, "I8": 1}
_CHILD = """
import json, sys
from strata_engine.formats.open import open_weights
from strata_engine.models.load import load_model
from strata_kernels.native import NativeOps

def line(name):
    with open("/proc/self/status") as status:
        return next(int(row.split()[1]) * 1024 for row in status if row.startswith(name))

import strata_engine.models.llama  # what a start imports anyway
before = line("VmHWM")
loaded = load_model(open_weights(sys.argv[1]), NativeOps(2))
print(json.dumps({"before_bytes": before, "peak_bytes": line("VmHWM"), "after_bytes": line("VmRSS"),
                  "packed_bytes": loaded.packed_bytes, "mapped_bytes": loaded.mapped_bytes}))
"""


def config_for(gigabytes: float, kind: str) -> dict[str, Any]:
    """A Qwen3 of about this size: the layers of the 4B model, as many as needed; few words, so that layers count."""
    bits = {"bf16": 16, "gptq": 4.2, "fp8": 8}[kind]
    layer = 2560 * (2 * 32 * 128 + 2 * 8 * 128) + 3 * 2560 * 9728
    layers = max(1, round(gigabytes * 8e9 / bits / layer))
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 2560, "intermediate_size": 9728, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": layers, "vocab_size": 512,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }  # fmt: skip
    return {**config, **({"quantization_config": _SETTINGS[kind]} if _SETTINGS[kind] else {})}


def write_checkpoint(directory: Path, config: Mapping[str, Any], sparse: bool = False) -> int:
    """Write config.json and model.safetensors with random contents, tensor by tensor; returns the file's bytes.

    `sparse`: zeros that take no disk.
    """
    (directory / "config.json").write_text(json.dumps(config))
    tensors = planned(directory).tensors()
    header: dict[str, Any] = {}
    at = 0
    for name, meta in tensors.items():
        header[name] = {"dtype": meta.type, "shape": list(meta.shape), "data_offsets": [at, at + meta.nbytes]}
        at += meta.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    random, path = np.random.default_rng(1), directory / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + at)
        for meta in () if sparse else tensors.values():
            _content(meta, random).tofile(file)
    return path.stat().st_size


def _content(meta: TensorMeta, random: np.random.Generator) -> np.ndarray:
    """Bits that are valid where it matters: group numbers in order, scales and floats near 0.01, codes of any kind."""
    count = meta.nbytes // _ELEMENT_BYTES[meta.type]
    if meta.name.endswith("g_idx"):
        return (np.arange(count) // 128).astype(np.int32)
    if meta.type == "F8_E4M3":
        return random.integers(0, 0x7F, count, dtype=np.uint8)
    if meta.type in ("I32", "I8"):
        return random.integers(0, 256, meta.nbytes, dtype=np.uint8)
    values = random.uniform(0.005, 0.02, count).astype(np.float32)
    if meta.type == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16) if meta.type == "F16" else values


def measure(directory: Path) -> dict[str, int]:
    """Load in a child; its peak, and what stays. Raises RuntimeError when the child fails."""
    done = subprocess.run([sys.executable, "-c", _CHILD, str(directory)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout)
    sizes: dict[str, int] = {}
    for name, meta in planned(directory).tensors().items():
        module = name.rpartition(".")[0]
        sizes[module] = sizes.get(module, 0) + meta.nbytes
    found["largest_bytes"] = max(sizes.values())
    found["grown_bytes"] = found["peak_bytes"] - found["before_bytes"]
    found["held_bytes"] = found["packed_bytes"] + found["mapped_bytes"]
    found["over_bytes"] = found["grown_bytes"] - found["held_bytes"]
    return found


def main() -> None:
    """Write, measure, delete, print."""
    made = argparse.ArgumentParser(description="Peak memory of loading a generated checkpoint.")
    made.add_argument("--kind", choices=_SETTINGS, default="gptq")
    made.add_argument("--gigabytes", type=float, default=4.0)
    made.add_argument("--keep", type=Path, help="write here and leave it")
    asked = made.parse_args()
    directory = asked.keep or Path(tempfile.mkdtemp(prefix="llmrun-load-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        size = write_checkpoint(directory, config_for(asked.gigabytes, asked.kind))
        print(json.dumps({"kind": asked.kind, "file_bytes": size, **measure(directory)}))
    finally:
        if asked.keep is None:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
