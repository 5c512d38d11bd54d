"""Writes small valid GGUF files of any architecture, tensor set and storage types, for tests.

The `gguf` package does the writing, so our reader is tested against somebody else's writer. Shapes are torch shapes
(rows first). Storage types the package cannot encode (Q4_K, Q5_K, Q6_K) are encoded in tests/support/k_quants.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import gguf
import numpy as np

from benches.random_blocks import chunks
from tests.support.k_quants import K_PACKERS
from tests.support.tiny_tokenizer import tokenizer_metadata

ENCODED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4", *K_PACKERS)


def encode(array: np.ndarray, type_name: str) -> np.ndarray:
    """The array's stored form: a float array for F32 and F16, else u8 [.., bytes of a row].

    A type that nothing here encodes (not in ENCODED) gets random codes of the array's spread, the same each time.
    """
    array = np.ascontiguousarray(array, dtype=np.float32)
    if type_name == "F32":
        return array
    if type_name == "F16":
        return array.astype(np.float16)
    if type_name in K_PACKERS:
        return K_PACKERS[type_name](array)
    if type_name not in ENCODED:
        seed = np.random.default_rng(crc32(array.tobytes()))
        pieces = list(chunks(seed, type_name, array.size, float(array.std())))
        return np.concatenate(pieces).reshape(*array.shape[:-1], -1)
    return gguf.quants.quantize(array, gguf.GGMLQuantizationType[type_name])


def decode(array: np.ndarray, type_name: str) -> np.ndarray:
    """What `array` becomes after being stored as `type_name` and read back by the gguf package: f32, same shape."""
    stored = encode(array, type_name)
    return np.asarray(gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[type_name]), dtype=np.float32)


def choose_type(array: np.ndarray, wanted: str) -> str:
    """`wanted` for matrices whose rows are whole blocks, F32 for all else (as real files do with norms and biases)."""
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[wanted]][0]
    return wanted if array.ndim >= 2 and array.shape[-1] % block == 0 else "F32"


def write_gguf(
    path: Path | str,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    types: Mapping[str, str] | str = "F32",
    tokenizer: bool | Mapping[str, Any] = False,
    splits: int = 1,
) -> list[Path]:
    """Write one file, or `splits` files named STEM-0000k-of-0000n.gguf beside `path`; returns the paths in order.

    metadata    key -> value; "{a}." at the start of a key stands for the architecture. int -> u32 (i32 if negative, u64
                if large), float -> f32, bool, str, list of one of these. None leaves a key out.
    types       one name for all matrices (norms stay F32), or tensor name -> type name (F32 where absent)
    tokenizer   True: a byte-level vocabulary padded to the rows of token_embd.weight (at least 300); a mapping: the
                same with these keys replacing or adding to the `tokenizer.*` ones (None removes a key)
    """
    path = Path(path)
    per_file = -(-len(tensors) // splits) if splits > 1 else 0
    writer = gguf.GGUFWriter(str(path), architecture, split_max_tensors=per_file)
    pairs = {key.replace("{a}", architecture, 1): value for key, value in metadata.items()}
    if tokenizer is not False:
        rows = tensors["token_embd.weight"].shape[0] if "token_embd.weight" in tensors else 300
        pairs |= tokenizer_metadata(rows)
        pairs |= dict(tokenizer) if isinstance(tokenizer, Mapping) else {}
    for key, value in pairs.items():
        if value is not None and key != "general.architecture":
            writer.add_key_value(key, value, value_type(value), element_type(value))
    for name, array in tensors.items():
        type_name = choose_type(array, types) if isinstance(types, str) else types.get(name, "F32")
        writer.add_tensor(name, encode(array, type_name), raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return writer.format_shard_names(path)


def element_type(value: object) -> gguf.GGUFValueType | None:
    """Of a list of whole numbers some of which need 64 bits; the writer takes 32 by itself."""
    large = isinstance(value, (list, tuple)) and any(isinstance(n, int) and n >= 2**31 for n in value)
    return gguf.GGUFValueType.INT64 if large else None


def value_type(value: object) -> gguf.GGUFValueType:
    """The GGUF type a Python value is written as."""
    kinds = gguf.GGUFValueType
    if isinstance(value, (bool, np.bool_)):
        return kinds.BOOL
    if isinstance(value, int):
        return kinds.INT32 if value < 0 else kinds.UINT32 if value < 2**32 else kinds.UINT64
    if isinstance(value, float):
        return kinds.FLOAT32
    if isinstance(value, (str, bytes)):
        return kinds.STRING
    if isinstance(value, (list, tuple)):
        return kinds.ARRAY
    raise TypeError(f"no GGUF type for {type(value).__name__}")
