#!/usr/bin/env python3
"""Write a random-weight GGUF model of a real architecture's shape, for speed tests.

The weights are noise of a sane spread, so activations stay finite and a router picks its experts about evenly; speed
does not depend on their values. Tensors are written piece by piece: memory stays small whatever the file's size.

    python benches/generate_model.py --preset dense-1.4g --quant Q4_0 --tokenizer-from smollm2.gguf -o model.gguf
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benches.model_shapes import PRESETS, Shape, TensorPlan, metadata, tensors
from benches.random_blocks import TYPES, chunks
from strata_engine.formats.gguf_types import TYPES_BY_NAME


@dataclass(frozen=True)
class Mix:
    """Storage types of a model's matrices. `raised` is the type of some layers' value and down projections."""

    body: str
    head: str
    raised: str = ""


_RAISED_ROLES = ("attn_v", "ffn_down", "ffn_down_exps")
MIXES = {
    "Q4_K_M": Mix("Q4_K", "Q6_K", "Q6_K"),
    "Q5_K_M": Mix("Q5_K", "Q6_K", "Q6_K"),
    "IQ3_S_MIX": Mix("IQ3_S", "Q6_K"),
}


def mix_of(quant: str, head: str | None = None) -> Mix:
    """The types that `quant` names; `head` replaces the one of embedding and output."""
    mix = MIXES.get(quant, Mix(quant, quant))
    return replace(mix, head=head) if head else mix


def type_of(plan: TensorPlan, mix: Mix, layers: int) -> str:
    """Storage type of a planned tensor."""
    if plan.fill != "matrix":
        return "F32"
    if plan.role == "token_embd":
        return mix.head
    eighth = layers // 8
    important = plan.layer < eighth or plan.layer >= 7 * layers // 8 or (plan.layer - eighth) % 3 == 2
    return mix.raised if mix.raised and plan.role in _RAISED_ROLES and important else mix.body


def tokenizer_of(path: Path) -> dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]]:
    """The `tokenizer.*` keys of a GGUF file: value, type, element type."""
    fields = gguf.GGUFReader(path).fields.items()
    found = {}
    for key, field in fields:
        if key.startswith("tokenizer."):
            item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            found[key] = field.contents(), field.types[0], item
    return found


def contents(plan: TensorPlan, type_name: str, random: np.random.Generator) -> Iterator[np.ndarray]:
    """The tensor's bytes in pieces."""
    if plan.fill in ("matrix", "noise"):
        # 1/sqrt of the summed length keeps the size of activations from layer to layer
        yield from chunks(random, type_name, prod(plan.shape), plan.shape[-1] ** -0.5)
        return
    count = prod(plan.shape)
    constants = {"one": np.ones(count), "half": np.full(count, 0.5), "decay": -np.linspace(0.05, 1.0, count)}
    yield constants[plan.fill].astype(np.float32).view(np.uint8)


def write_model(path: Path, shape: Shape, mix: Mix, tokenizer_from: Path, seed: int = 1) -> dict[str, Any]:
    """Write the file; returns its facts (bytes, weights, vocabulary). Raises ValueError: rows are not whole blocks."""
    tokenizer = tokenizer_of(tokenizer_from)
    vocabulary = len(tokenizer["tokenizer.ggml.tokens"][0])
    plans = [(plan, type_of(plan, mix, shape.layers)) for plan in tensors(shape, vocabulary)]
    writer = gguf.GGUFWriter(str(path), shape.architecture)
    writer.add_name(f"random-{shape.architecture}-{mix.body}")
    writer.add_quantization_version(2)
    for key, value in metadata(shape).items():
        _add(writer, f"{shape.architecture}.{key}", value)
    for key, (value, kind, item) in tokenizer.items():
        writer.add_key_value(key, value, kind, sub_type=item)
    for plan, type_name in plans:
        _announce(writer, plan, type_name)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(seed)
    for plan, type_name in plans:
        _write(writer, plan, type_name, random)
    writer.close()
    weights = sum(prod(plan.shape) for plan, _ in plans)
    return {"file": str(path), "bytes": path.stat().st_size, "weights": weights, "vocabulary": vocabulary}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _nbytes(plan: TensorPlan, type_name: str) -> int:
    storage = TYPES_BY_NAME[type_name]
    if plan.shape[-1] % storage.elements:
        raise ValueError(
            f"{plan.name}: rows of {plan.shape[-1]} are not whole {type_name} blocks of {storage.elements}"
        )
    return prod(plan.shape) // storage.elements * storage.nbytes


def _announce(writer: gguf.GGUFWriter, plan: TensorPlan, type_name: str) -> None:
    # the number, not the package's enum: the package does not know the newest types
    number: Any = TYPES_BY_NAME[type_name].id
    writer.add_tensor_info(plan.name, plan.shape, np.dtype(np.float32), _nbytes(plan, type_name), raw_dtype=number)


def _write(writer: gguf.GGUFWriter, plan: TensorPlan, type_name: str, random: np.random.Generator) -> None:
    """Append one tensor: the package's own call wants it whole in memory."""
    file = writer.fout[0] if writer.fout else None
    if file is None:
        raise RuntimeError("the file is not open")
    writer.write_padding(file, file.tell())
    for piece in contents(plan, type_name, random):
        piece.tofile(file)
    writer.write_padding(file, _nbytes(plan, type_name))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Write a random-weight GGUF model of a real architecture's shape.")
    made.add_argument("--preset", required=True, choices=PRESETS)
    made.add_argument("--quant", default="Q4_0", choices=[*TYPES, *MIXES], help="a type for all matrices, or a mix")
    made.add_argument("--head", choices=TYPES, help="the type of the embedding and output matrix")
    made.add_argument("--tokenizer-from", required=True, type=Path, metavar="GGUF")
    made.add_argument("--layers", type=int, help="instead of the preset's")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("-o", "--output", required=True, type=Path)
    return made


def main() -> None:
    """Write the file that the command line asks for and print its facts as a JSON line."""
    asked = parser().parse_args()
    shape = PRESETS[asked.preset]
    if asked.layers:
        shape = replace(shape, layers=asked.layers)
    facts = write_model(asked.output, shape, mix_of(asked.quant, asked.head), asked.tokenizer_from, asked.seed)
    print(json.dumps({"preset": asked.preset, "quant": asked.quant, **facts}))


if __name__ == "__main__":
    main()
