"""The functions of three driver libraries, under one set of names: their names, arguments and numbers.

Checked against cuda.h of CUDA 13.1 and hip_runtime_api.h of HIP 7.1, both in the package of the pinned compiler
(tests/kernels/test_gpu_driver_tables.py reads them: names, arguments, numbers). Numbers of HIP attributes are the same
in public bindings made from ROCm 5, 6 and 7. musa.h is in no public package: its names are those that OpenXLA's, IREE's
and torch_musa's sources ask libmusa.so for; its numbers 75, 76, 2 and 100 are those of Ollama's MUSA port, the others
are CUDA's, which it follows. No function of these tables was ever called on real hardware by this project.
Source: https://docs.nvidia.com/cuda/cuda-driver-api/, https://rocm.docs.amd.com/projects/HIP/en/latest/reference/
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# p: a pointer or a handle, q: a size or a device address (64 bits), i: an int or an enum, u: an unsigned int
TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "q": ctypes.c_uint64, "i": ctypes.c_int, "u": ctypes.c_uint}

# our name -> arguments; every function returns a status, 0 = fine
SIGNATURES = {
    "init": "u",
    "version": "p",
    "device_count": "p",
    "device_get": "pi",
    "device_name": "pii",
    "attribute": "pii",
    "properties": "pi",
    "error_text": "ip",
    "device_set": "i",
    "context_retain": "pi",
    "context_release": "i",
    "context_set": "p",
    "memory_info": "pp",
    "alloc": "pq",
    "free": "q",
    "host_alloc": "pqu",
    "host_free": "p",
    "upload": "qpqp",
    "download": "pqqp",
    "copy": "qqqp",
    "fill": "qiqp",
    "stream_create": "pu",
    "stream_destroy": "p",
    "stream_wait": "p",
    "event_create": "pu",
    "event_record": "pp",
    "event_wait": "p",
    "event_elapsed": "ppp",
    "event_destroy": "p",
    "module_load": "pp",
    "module_unload": "p",
    "module_function": "ppp",
    "function_set": "pii",
    "launch": "puuuuuuuppp",
    "capture_begin": "pi",
    "capture_end": "pp",
    "graph_make": "pppqq",
    "graph_destroy": "p",
    "graph_launch": "pp",
    "graph_free": "p",
}

# a driver without all of these has no graphs: steps are then replayed launch by launch
GRAPHS = ("capture_begin", "capture_end", "graph_make", "graph_destroy", "graph_launch", "graph_free")

NON_BLOCKING = 1  # flag of a stream: it does not wait for the default stream; the same number in all three
THREAD_LOCAL = 1  # mode of a capture: what other threads do does not end it; the same number in all three
MAX_DYNAMIC_SHARED = 8  # of a function: attribute number

OUT_OF_MEMORY = 2  # statuses, the same in all three
NO_DEVICE = 100
BAD_IMAGES = (200, 209, 218, 301)  # invalid image, no code for this device, invalid text, file
LOST = (700, 702, 709, 715, 716, 717, 718, 719)  # the context cannot be used after one of these


@dataclass(frozen=True)
class Table:
    """One driver library. `names`: ours -> what the library may call it, the first found is taken.

    `warp`, `units`, `major`, `minor`, `shared`: numbers of device attributes (0: there is none).
    `shared_freely`: bytes of shared memory that a launch may take unasked (0: all there are).
    `contexts`: a thread selects a context, else a device. `text_returned`: error_text takes the status alone and
    returns the text itself.
    """

    kind: str
    libraries: tuple[str, ...]
    remedy: str
    names: Mapping[str, tuple[str, ...]]
    warp: int
    units: int
    major: int
    minor: int
    shared: int
    shared_freely: int
    arch_prefix: str
    contexts: bool = True
    text_returned: bool = False


def _cuda_names(prefix: str) -> dict[str, tuple[str, ...]]:
    plain = {
        "init": "Init",
        "version": "DriverGetVersion",
        "device_count": "DeviceGetCount",
        "device_get": "DeviceGet",
        "device_name": "DeviceGetName",
        "attribute": "DeviceGetAttribute",
        "error_text": "GetErrorString",
        "context_retain": "DevicePrimaryCtxRetain",
        "context_release": "DevicePrimaryCtxRelease_v2",
        "context_set": "CtxSetCurrent",
        "memory_info": "MemGetInfo_v2",
        "alloc": "MemAlloc_v2",
        "free": "MemFree_v2",
        "host_alloc": "MemHostAlloc",
        "host_free": "MemFreeHost",
        "upload": "MemcpyHtoDAsync_v2",
        "download": "MemcpyDtoHAsync_v2",
        "copy": "MemcpyDtoDAsync_v2",
        "fill": "MemsetD8Async",
        "stream_create": "StreamCreate",
        "stream_destroy": "StreamDestroy_v2",
        "stream_wait": "StreamSynchronize",
        "event_create": "EventCreate",
        "event_record": "EventRecord",
        "event_wait": "EventSynchronize",
        "event_elapsed": "EventElapsedTime",
        "event_destroy": "EventDestroy_v2",
        "module_load": "ModuleLoadData",
        "module_unload": "ModuleUnload",
        "module_function": "ModuleGetFunction",
        "function_set": "FuncSetAttribute",
        "launch": "LaunchKernel",
        "capture_end": "StreamEndCapture",
        "graph_destroy": "GraphDestroy",
        "graph_launch": "GraphLaunch",
        "graph_free": "GraphExecDestroy",
    }
    return {ours: (prefix + name,) for ours, name in plain.items()}


# EventElapsedTime_v2 differs in no argument; the old name is in every driver. GraphInstantiateWithFlags takes three
# arguments; GraphInstantiate_v2, hipGraphInstantiate and the plain name of older drivers take five, of which the last
# three are null here, so five are always passed and what a function does not take is not looked at.
CUDA = Table(
    kind="cuda",
    libraries=("libcuda.so.1", "libcuda.so"),
    remedy="install NVIDIA's driver; in a container start it with the GPUs passed through",
    names=_cuda_names("cu")
    | {
        "capture_begin": ("cuStreamBeginCapture_v2",),
        "graph_make": ("cuGraphInstantiateWithFlags", "cuGraphInstantiate_v2"),
    },
    warp=10,
    units=16,
    major=75,
    minor=76,
    shared=97,
    shared_freely=48 << 10,
    arch_prefix="sm_",
)

MUSA = Table(
    kind="musa",
    libraries=("libmusa.so", "libmusa.so.1", "/usr/local/musa/lib/libmusa.so"),
    remedy="install the MUSA driver and SDK for this device",
    names=_cuda_names("mu")
    | {
        "context_release": ("muDevicePrimaryCtxRelease_v2", "muDevicePrimaryCtxRelease"),
        "memory_info": ("muMemGetInfo_v2", "muMemGetInfo"),
        "alloc": ("muMemAlloc_v2", "muMemAlloc"),
        "free": ("muMemFree_v2", "muMemFree"),
        "upload": ("muMemcpyHtoDAsync_v2", "muMemcpyHtoDAsync"),
        "download": ("muMemcpyDtoHAsync_v2", "muMemcpyDtoHAsync"),
        "copy": ("muMemcpyDtoDAsync_v2", "muMemcpyDtoDAsync"),
        "stream_destroy": ("muStreamDestroy_v2", "muStreamDestroy"),
        "event_destroy": ("muEventDestroy_v2", "muEventDestroy"),
        "capture_begin": ("muStreamBeginCapture_v2", "muStreamBeginCapture"),
        "graph_make": ("muGraphInstantiateWithFlags", "muGraphInstantiate_v2", "muGraphInstantiate"),
    },
    warp=10,
    units=16,
    major=75,
    minor=76,
    shared=97,
    shared_freely=72 << 10,  # as the vendor's compiler has it for mp_22
    arch_prefix="mp_",
)

HIP = Table(
    kind="hip",
    libraries=(
        "libamdhip64.so",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "/opt/rocm/lib/libamdhip64.so",
    ),
    remedy="install ROCm's runtime (libamdhip64.so); the account must be in the groups render and video",
    names={
        "init": ("hipInit",),
        "version": ("hipDriverGetVersion",),
        "device_count": ("hipGetDeviceCount",),
        "device_get": ("hipDeviceGet",),
        "device_name": ("hipDeviceGetName",),
        "attribute": ("hipDeviceGetAttribute",),
        "properties": ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties"),
        "error_text": ("hipGetErrorString",),
        "device_set": ("hipSetDevice",),
        "memory_info": ("hipMemGetInfo",),
        "alloc": ("hipMalloc",),
        "free": ("hipFree",),
        "host_alloc": ("hipHostMalloc",),
        "host_free": ("hipHostFree",),
        "upload": ("hipMemcpyHtoDAsync",),
        "download": ("hipMemcpyDtoHAsync",),
        "copy": ("hipMemcpyDtoDAsync",),
        "fill": ("hipMemsetD8Async",),
        "stream_create": ("hipStreamCreateWithFlags",),
        "stream_destroy": ("hipStreamDestroy",),
        "stream_wait": ("hipStreamSynchronize",),
        "event_create": ("hipEventCreateWithFlags",),
        "event_record": ("hipEventRecord",),
        "event_wait": ("hipEventSynchronize",),
        "event_elapsed": ("hipEventElapsedTime",),
        "event_destroy": ("hipEventDestroy",),
        "module_load": ("hipModuleLoadData",),
        "module_unload": ("hipModuleUnload",),
        "module_function": ("hipModuleGetFunction",),
        "launch": ("hipModuleLaunchKernel",),
        "capture_begin": ("hipStreamBeginCapture",),
        "capture_end": ("hipStreamEndCapture",),
        "graph_make": ("hipGraphInstantiate",),
        "graph_destroy": ("hipGraphDestroy",),
        "graph_launch": ("hipGraphLaunch",),
        "graph_free": ("hipGraphExecDestroy",),
    },
    warp=87,
    units=63,
    major=0,
    minor=0,
    shared=74,
    shared_freely=0,
    arch_prefix="gfx",
    contexts=False,
    text_returned=True,
)

TABLES = {table.kind: table for table in (CUDA, HIP, MUSA)}
