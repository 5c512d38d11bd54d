"""All operations of a GPU, group by group."""

from __future__ import annotations

from strata_kernels.gpu.attention import AttentionOps
from strata_kernels.gpu.delta import DeltaOps
from strata_kernels.gpu.dense import DenseOps
from strata_kernels.gpu.experts import ExpertOps
from strata_kernels.gpu.streams import StreamOps


class GpuOps(AttentionOps, DeltaOps, ExpertOps, StreamOps, DenseOps):
    """The Ops protocol on one device: see ops.py. `launcher` and `allocator` are the device."""
