"""All operations of a GPU, group by group."""

from __future__ import annotations

from strata_kernels.gpu.delta import DeltaOps
from strata_kernels.gpu.dense import DenseOps
from strata_kernels.gpu.linear import LinearOps


class GpuOps(DeltaOps, DenseOps, LinearOps):
    """The Ops protocol on one device: see ops.py. `launcher` and `allocator` are the device."""
