"""The tables of driver functions against the vendors' headers, which lie in the package of the pinned compiler."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from strata_kernels.gpu import driver_tables as tables
from strata_kernels.gpu.driver_tables import CUDA, GRAPHS, HIP, MUSA, SIGNATURES, TABLES

HEADERS = {
    "cuda": ("nvidia/include/cuda.h", "CUresult CUDAAPI"),
    "hip": ("amd/include/hip/hip_runtime_api.h", "hipError_t"),
}
SIZES = re.compile(r"\b(size_t|CUdeviceptr|unsigned long long|hipDeviceptr_t)\b")
NUMBERS = re.compile(
    r"\b(CUdevice|hipDevice_t|int|CUresult|\w*_attribute|\w*Attribute_t|\w*CaptureMode|unsigned char)\b"
)
CASES = [(table, name) for table in (CUDA, HIP) for name in table.names if name != "error_text" or table is CUDA]


def header(kind: str) -> str:
    """A vendor's header without its comments."""
    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None, "the pinned compiler is not installed"
    text = (Path(spec.origin).parent / "backends" / HEADERS[kind][0]).read_text(encoding="utf-8", errors="replace")
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


@pytest.fixture(scope="module")
def headers() -> dict[str, str]:
    return {kind: header(kind) for kind in HEADERS}


def letter(argument: str) -> str:
    """What our signatures call an argument as a header writes it."""
    if "*" in argument:
        return "p"
    if SIZES.search(argument):
        return "q"
    if re.search(r"\bunsigned (int\b)?(?!char|long)", argument):
        return "u"
    return "i" if NUMBERS.search(argument) else "p"  # what is left are handles


def declared(text: str, result: str, name: str) -> str:
    """The arguments of a function as our letters."""
    found = re.search(rf"^{result} {name}\s*\((.*?)\)\s*;", text, re.S | re.M)
    assert found, f"{name} is not declared"
    arguments = re.sub(r"__dparm\(.*?\)|=\s*\w+", "", found.group(1))
    return "".join(letter(part) for part in arguments.split(","))


@pytest.mark.parametrize(("table", "name"), CASES, ids=lambda value: getattr(value, "kind", value))
def test_a_function_is_exported_and_takes_what_we_pass(headers, table, name):
    text = headers[table.kind]
    symbol = table.names[name][0]
    plain = symbol.removesuffix("R0600")
    if table is CUDA:
        plain = re.sub(r"_v\d$", "", symbol)
        renamed = re.search(rf"#define {plain}\s+(?:__CUDA_API_PT[SD][ZS]\()?(\w+)", text)
        if name in ("event_elapsed", "graph_make"):  # newer names that differ in no argument we pass: see the table
            plain = {"cuGraphInstantiateWithFlags": "cuGraphInstantiate"}.get(plain, plain)
        else:
            assert (renamed.group(1) if renamed else plain) == symbol
    takes = declared(text, HEADERS[table.kind][1], plain)
    ours = SIGNATURES[name]
    if table is HIP or name == "graph_make":  # there addresses of the device are void*; here null stands for flags
        takes, ours = (s.replace("p", "q") for s in (takes, ours))
    assert ours.startswith(takes) if name == "graph_make" else ours == takes


@pytest.mark.parametrize(
    ("kind", "name", "number"),
    [
        ("cuda", "CU_DEVICE_ATTRIBUTE_WARP_SIZE", CUDA.warp),
        ("cuda", "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", CUDA.units),
        ("cuda", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", CUDA.major),
        ("cuda", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", CUDA.minor),
        ("cuda", "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", CUDA.shared),
        ("cuda", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", tables.MAX_DYNAMIC_SHARED),
        ("cuda", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL", tables.THREAD_LOCAL),
        ("cuda", "CU_STREAM_NON_BLOCKING", tables.NON_BLOCKING),
        ("cuda", "CUDA_ERROR_OUT_OF_MEMORY", tables.OUT_OF_MEMORY),
        ("cuda", "CUDA_ERROR_NO_DEVICE", tables.NO_DEVICE),
        ("hip", "hipErrorOutOfMemory", tables.OUT_OF_MEMORY),
        ("hip", "hipErrorNoDevice", tables.NO_DEVICE),
        ("hip", "hipDeviceAttributeWarpSize", HIP.warp),
        ("hip", "hipDeviceAttributeMultiprocessorCount", HIP.units),
        ("hip", "hipDeviceAttributeMaxSharedMemoryPerBlock", HIP.shared),
        ("hip", "hipStreamCaptureModeThreadLocal", tables.THREAD_LOCAL),
        ("hip", "hipStreamNonBlocking", tables.NON_BLOCKING),
    ],
)
def test_a_number_is_the_headers(headers, kind, name, number):
    assert value_of(headers[kind], name) == number


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_statuses_are_what_we_take_them_for(headers, kind):
    text = headers[kind]
    names = {number: name for name, number in re.findall(r"((?:CUDA_ERROR|hipError)\w+)\s*=\s*(\d+)", text)}
    images = " ".join(names[str(number)] for number in tables.BAD_IMAGES).upper()
    lost = " ".join(names[str(number)] for number in tables.LOST if str(number) in names).upper()
    assert "IMAGE" in images and "BINARY" in images
    assert "ILLEGAL" in lost and "LAUNCH" in lost
    assert "MEMORY" not in lost.replace("ILLEGAL_ADDRESS", "").replace("MEMORYALLOCATION", "")


def test_musa_is_asked_for_the_same_functions_as_cuda():
    assert set(MUSA.names) == set(CUDA.names)
    for name, symbols in CUDA.names.items():
        assert symbols[0].replace("cu", "mu", 1) in MUSA.names[name]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_a_table_has_all_functions(table):
    assert set(table.names) <= set(SIGNATURES)
    assert set(SIGNATURES) - set(table.names) <= {
        "properties", "device_set", "context_retain", "context_release", "context_set", "function_set",
    }  # fmt: skip
    assert set(GRAPHS) <= set(table.names)


def value_of(text: str, name: str) -> int:
    """The number of an enumerator or of a macro; enumerators without one count on."""
    macro = re.search(rf"#define {name}\s+(0x[0-9a-fA-F]+|\d+)", text)
    if macro:
        return int(macro.group(1), 0)
    for body in re.findall(r"enum [\w ]*\s*\{([^}]*)\}", text):
        values: dict[str, int] = {}
        last = -1
        for part in filter(None, (part.strip() for part in body.split(","))):
            found, _, given = (piece.strip() for piece in part.partition("="))
            last = last + 1 if not given else values[given] if given in values else _number(given)
            values[found] = last
        if name in values:
            return values[name]
    raise AssertionError(f"{name} is not in the header")


def _number(text: str) -> int:
    try:
        return int(text.rstrip("uUlL"), 0)
    except ValueError:
        return 0  # an expression; none that we ask for
