"""What an image tower takes while it looks at an image, from headers alone. No torch.

Its weights are counted with all others; here are the activations for the largest image that the context has room for,
up to 4,096 tokens (4 megapixels of Qwen3-VL): published limits are four times that, which few images reach and which
would take gigabytes from every model that mostly reads text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from strata_engine.formats.base import WeightSource

_QKV = re.compile(r"(?:v\.blk|visual\.blocks)\.\d+\.(?:attn_qkv|attn\.qkv)\.weight")
_UP = re.compile(r"(?:v\.blk|visual\.blocks)\.\d+\.(?:ffn_up|mlp\.linear_fc1)\.weight")
_OUT = re.compile(r"mm\.2\.weight|visual\.merger\.linear_fc2\.weight|v\.deepstack\.\d+\.fc2\.weight|"
                  r"visual\.deepstack_merger_list\.\d+\.linear_fc2\.weight")  # fmt: skip
# no matrices for the kernels: the first product over pixels, and the table of positions
_TABLES = re.compile(
    r"v\.patch_embd\.weight(?:\.1)?|v\.position_embd\.weight|visual\.(?:patch_embed\.proj|pos_embed)\.weight"
)
_COUNTED_TOKENS = 4096
_LARGEST_IMAGE = 16777216  # pixels, where the checkpoint says nothing


def sight_bytes(source: WeightSource, context_tokens: int) -> int:
    """Bytes for the largest image of at most `context_tokens` tokens, and 4,096; 0 for a model without a tower."""
    tensors = source.tensors()
    width = next((meta.shape[1] for name, meta in tensors.items() if _QKV.fullmatch(name)), 0)
    if not width:
        return 0
    inner = max((meta.shape[0] for name, meta in tensors.items() if _UP.fullmatch(name)), default=4 * width)
    outs = sum(meta.shape[0] for name, meta in tensors.items() if _OUT.fullmatch(name))
    patch, merge, most = _numbers(source)
    patches = min(most // patch**2, min(context_tokens, _COUNTED_TOKENS) * merge**2)
    # a row: patch pixels, positions, the stream and its keys and values, then what attention or the MLP takes
    row = 2 * 3 * patch**2 + 4 * width + max(5 * width, 2 * width + 2 * inner) + math.ceil(outs / merge**2)
    return 4 * patches * row


def is_sight_table(name: str) -> bool:
    """Is it a tensor of a tower that is not laid out for the kernels?"""
    return _TABLES.fullmatch(name) is not None


def _numbers(source: WeightSource) -> tuple[int, int, int]:
    """Edge of a patch, patches of a token on each side, most pixels of an image."""
    metadata = source.metadata()
    if source.kind == "gguf":
        found = [metadata.get(f"clip.vision.{key}") for key in ("patch_size", "spatial_merge_size", "image_max_pixels")]
    else:
        vision = _mapping(_mapping(metadata.get("config")).get("vision_config"))
        nested = _mapping(metadata.get("processor_config")).get("image_processor")
        own = _mapping(metadata.get("preprocessor_config") or nested)
        most = _mapping(own.get("size")).get("longest_edge", own.get("max_pixels"))
        found = [vision.get("patch_size"), vision.get("spatial_merge_size"), most]
    patch, merge, most = (
        value if isinstance(value, int) and value > 0 else usual
        for value, usual in zip(found, (16, 2, _LARGEST_IMAGE), strict=True)
    )
    return patch, merge, most


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
