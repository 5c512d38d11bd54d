"""The ctypes face of libllmrun_cpu: finding it, checking its ABI, and its functions with their types.

Knows the C interface (kernels/cpu/abi.h) and nothing of torch or models. `load` is the only way to a Library.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

ABI = 13
MAX_WEIGHTS = 4
NUMBERS = 16
POINTERS = 16

TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
    "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19,
    "IQ4_NL": 20, "IQ3_S": 21, "IQ2_S": 22, "IQ4_XS": 23, "IQ1_M": 29, "BF16": 30, "TQ1_0": 34, "TQ2_0": 35,
    "MXFP4": 39, "NVFP4": 40, "Q1_0": 41, "Q2_0": 42,
    "I4_32": 1000, "I4_128": 1001, "I8_32": 1002, "I8_128": 1003, "F8_32": 1004, "F8_128": 1005,
}  # fmt: skip

# types whose products take the activations as they are, unquantised
FLOAT_ACTIVATIONS = ("F32", "F16", "BF16", "F8_32", "F8_128")

EMBED, RMS_NORM, QUANTIZE, LINEAR, SILU_MUL, ADD, ROPE_TABLE, ROPE, KV_STORE, ATTENTION, GATHER = range(11)
ARGMAX, LOG_SOFTMAX, PACK = range(11, 14)
EXPERT_ROUTE, EXPERT_PLAN, EXPERT_INPUT, EXPERT_LINEAR, EXPERT_HIDDEN, EXPERT_COMBINE = range(14, 20)
SHORT_CONV, DELTA_RULE, GATED_NORM, SIGMOID_MUL, ADD_SCALED = range(20, 25)
COLUMNS = 48
STREAM_NORM, SILU_SCALED, STREAM_MIX, STREAM_ADD, STREAM_GATE, NGRAM_ROWS, SHARD_ROWS = range(60, 67)
INDEX_STORE, INDEX_SELECT, SPARSE_ATTENTION = range(67, 70)
PUT_ROWS, LAYER_NORM, GELU, BLOCK_CONV = range(50, 54)
ADD_TO_OUT, FINE, RENORMALISE = 1, 2, 4
WITH_SILU, TILED_HEADS, WITH_SIGMOID = 1, 1, 1
I8 = 24  # a type of caches only
TANH = 1  # of GELU

STATUS = {
    1: "embed: an id lies outside the table",
    2: "kv_store: a slot lies outside the cache",
    3: "attention: a position, sequence or page number lies outside the cache",
    4: "gather or put_rows: an index lies outside the rows",
    5: "out of memory for the kernels' scratch",
    6: "the program could not run",
    7: "experts: a chosen id is no expert",
    8: "recurrent layer: a sequence's rows are not consecutive, its state slot is out of range or taken twice, "
    "or its certain or pending rows are more than there are",
    9: "linear: the column order of a matrix leaves the row",
}

_FILES = {"win32": "llmrun_cpu.dll", "darwin": "libllmrun_cpu.dylib"}


class KernelsUnavailable(RuntimeError):
    """The native library cannot be used here; the text says why."""


class Op(ctypes.Structure):
    """LlmrunOp of abi.h."""

    _fields_ = [
        ("code", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("n", ctypes.c_int64 * NUMBERS),
        ("p", ctypes.c_void_p * POINTERS),
        ("f", ctypes.c_float * 4),
    ]


@dataclass(frozen=True)
class Library:
    """The loaded library. `builds`: instruction-set builds, slowest first, with why each cannot run ("" = it can)."""

    path: Path
    functions: ctypes.CDLL
    builds: tuple[tuple[str, str], ...]
    features: tuple[str, ...]

    def error(self) -> str:
        """What failed last in this thread."""
        return self.functions.llmrun_error().decode()


def library_path() -> Path:
    """Where the build hook puts the library: beside this file, in lib/."""
    return Path(__file__).parent / "lib" / _FILES.get(sys.platform, "libllmrun_cpu.so")


def _signatures(functions: ctypes.CDLL) -> None:
    text, handle, i32, i64 = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    table = {
        "llmrun_error": (text, []),
        "llmrun_cpu_features": (text, []),
        "llmrun_builds": (text, []),
        "llmrun_build_refused": (text, [text]),
        "llmrun_pool_create": (handle, [i32, text]),
        "llmrun_pool_destroy": (None, [handle]),
        "llmrun_pool_build": (text, [handle]),
        "llmrun_program_create": (handle, [handle, ctypes.POINTER(Op), i64]),
        "llmrun_program_destroy": (None, [handle]),
        "llmrun_program_run": (i32, [handle]),
        "llmrun_row_bytes": (i64, [i32, i64]),
        "llmrun_packed_bytes": (i64, [i32, i64, i64]),
        "llmrun_quantized_bytes": (i64, [i64, i64, i32]),
        "llmrun_top_k": (i64, [handle, i64, i64, handle, handle]),
        "llmrun_want_huge_pages": (None, [handle, i64]),
        "llmrun_drop_mapped": (i64, [handle, i64]),
    }
    for name, (result, arguments) in table.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments


def load(path: Path | None = None) -> Library:
    """The library at `path` (default: the packaged one).

    Raises: KernelsUnavailable when it is not built, does not load, or has another ABI.
    """
    path = path or library_path()
    if not path.exists():
        raise KernelsUnavailable(f"the CPU kernel library is not built ({path.name} is missing beside strata_kernels)")
    try:
        functions = ctypes.CDLL(str(path))
        found = functions.llmrun_abi()
    except (OSError, AttributeError) as error:
        raise KernelsUnavailable(f"{path.name} does not load: {error}") from error
    if found != ABI:
        raise KernelsUnavailable(f"{path.name} has interface {found}, this llmrun needs {ABI}; rebuild it")
    _signatures(functions)
    names = functions.llmrun_builds().decode().split(",")
    builds = tuple((name, functions.llmrun_build_refused(name.encode()).decode()) for name in names)
    features = tuple(part for part in functions.llmrun_cpu_features().decode().split(",") if part)
    return Library(path, functions, builds, features)
