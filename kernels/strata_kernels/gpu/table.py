"""Which kernels there are: data only, and finding one. Importing a kernel's module imports triton.

To add a kernel: its source in triton/, a line in KERNELS, an op here that launches it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# name -> module (below strata_kernels.triton); the function has the kernel's name
KERNELS: dict[str, str] = {
    "rms_norm": "norm",
    "add": "elementwise",
    "silu_mul": "elementwise",
    "gelu": "elementwise",
    "layer_norm": "norm",
    "gather": "rows",
    "put_rows": "rows",
    "argmax_parts": "choose",
    "argmax_rows": "choose",
    "largest_parts": "choose",
    "sigmoid_mul": "gates",
    "add_scaled": "gates",
    "gated_norm": "gates",
    "short_conv": "conv",
    "short_conv_rows": "conv",
    "short_conv_keep": "conv",
    "block_conv": "conv",
    "delta_rule": "delta",
    "delta_wait": "delta",
    "route": "router",
    "expert_counts": "router",
    "expert_plan": "router",
    "expert_combine": "router",
    "expert_take": "router",
    "expert_hidden": "experts",
    "expert_down": "experts",
    "expert_tiles": "expert_tiles",
    "embed_floats": "embed",
    "embed_cells": "embed",
    "gemv_floats": "gemv",
    "gemv_cells": "gemv",
    "gemm_floats": "gemm",
    "gemm_cells": "gemm",
    "halve_rows": "halves",
    "take_columns": "halves",
    "rope": "rope",
    "kv_store": "kv",
    "attention_split": "attention",
    "attention_join": "attention",
    "attention_prompt": "attention",
    "index_raw": "sparse",
    "index_blocks": "sparse",
    "index_scores": "sparse",
    "index_pick": "sparse",
    "stream_norm": "streams",
    "silu_scaled": "streams",
    "stream_mix": "streams",
    "stream_add": "streams",
    "stream_gate": "streams",
    "ngram_rows": "streams",
    "ngram_keep": "streams",
}


def find_kernel(name: str) -> Any:
    """The function that @triton.jit made. Raises KeyError for an unknown name."""
    module = import_module(f"strata_kernels.triton.{KERNELS[name]}")
    return getattr(module, name)
