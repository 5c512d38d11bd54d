"""All operations of a GPU, group by group."""

from __future__ import annotations

from strata_kernels.gpu.delta import DeltaOps
from strata_kernels.gpu.dense import DenseOps


class GpuOps(DeltaOps, DenseOps):
    """The Ops protocol on one device: see ops.py. `launcher` and `allocator` are the device."""
