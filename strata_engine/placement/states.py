"""What recurrent layers and draft blocks mean for bytes, from headers alone. No torch.

A recurrent layer is known by its short convolution; its state has as many elements as value heads x key width x value
width, which follow from the shapes of its tensors and one number of the config.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.placement.streams import is_conv

_CONV = re.compile(r"(blk\.\d+\.ssm_conv1d\.weight|(?:.+\.)?layers\.\d+\.linear_attn\.conv1d\.weight)")
_NORM = re.compile(r"blk\.\d+\.ssm_norm\.weight|(?:.+\.)?layers\.\d+\.linear_attn\.norm\.weight")
_DECAY = re.compile(r"blk\.\d+\.ssm_a|(?:.+\.)?layers\.\d+\.linear_attn\.A_log")
_SHARED_ROUTER = re.compile(r"blk\.\d+\.ffn_gate_inp_shexp\.weight|(?:.+\.)?mlp\.shared_expert_gate\.weight")
_SHARED_GATE = re.compile(r"blk\.\d+\.ffn_gate_shexp\.weight|(?:.+\.)?mlp\.shared_expert\.gate_proj\.weight")
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class StateUse:
    """Bytes of a sequence's state over all layers, more for each draft, and floats of a row in a recurrent layer."""

    slot_bytes: int = 0
    row: int = 0
    draft_bytes: int = 0


def state_use(source: WeightSource) -> StateUse:
    """Nothing where no layer is recurrent, or when the checkpoint does not say."""
    tensors = source.tensors()
    convs = [meta for name, meta in tensors.items() if _CONV.fullmatch(name)]
    value_width = next((meta.shape[0] for name, meta in tensors.items() if _NORM.fullmatch(name)), 0)
    heads = next((meta.shape[0] for name, meta in tensors.items() if _DECAY.fullmatch(name)), 0)
    if not convs or not heads:
        return StateUse()
    channels, kernel = convs[0].shape[0], convs[0].shape[-1]
    values = heads * value_width
    keys = (channels - values) // 2
    matrix = heads * _key_width(source, keys) * value_width
    slot = 4 * len(convs) * ((kernel - 1) * channels + matrix)
    draft = 4 * len(convs) * (channels + keys + values + 2 * heads)  # as StateMemory.draft_bytes
    return StateUse(slot, 2 * channels + 2 * values + 2 * heads, draft)


def _key_width(source: WeightSource, keys: int) -> int:
    metadata = source.metadata()
    if source.kind == "gguf":
        found = metadata.get(f"{metadata.get('general.architecture')}.ssm.state_size")
    else:
        config = metadata.get("config") or {}
        found = (config.get("text_config") or config).get("linear_key_head_dim", 128)
    return found if isinstance(found, int) and 0 < found <= keys else min(keys, 128)


def shared_row(source: WeightSource) -> int:
    """Floats of a row in a shared expert, beside its input."""
    inner = [meta.shape[0] for name, meta in source.tensors().items() if _SHARED_GATE.fullmatch(name)]
    return 2 * max(inner) if inner else 0


def held_shape(name: str, meta: TensorMeta) -> tuple[int, ...]:
    """The shape in which a tensor is held: convolutions are plain vectors, the router of a shared expert is a row."""
    if _CONV.fullmatch(name) or is_conv(name):
        elements = 1
        for size in meta.shape:
            elements *= size
        return (elements,)
    return (1, meta.shape[-1]) if _SHARED_ROUTER.fullmatch(name) else meta.shape


def is_draft(source: WeightSource, name: str) -> bool:
    """Is it part of the blocks that predict further tokens (MTP)? They are loaded on demand only."""
    if source.kind != "gguf":
        return name.startswith("mtp.")
    metadata = source.metadata()
    prefix = metadata.get("general.architecture")
    drafts, blocks = metadata.get(f"{prefix}.nextn_predict_layers"), metadata.get(f"{prefix}.block_count")
    block = _BLOCK.match(name)
    if not isinstance(drafts, int) or not isinstance(blocks, int) or block is None:
        return False
    return int(block[1]) >= blocks - drafts
