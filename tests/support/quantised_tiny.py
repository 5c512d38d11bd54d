"""Tiny models whose matrices are stored as quantised checkpoints store them, and the same models with those values.

Codes and scales are made by rounding to nearest; what counts is that both models mean the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from strata_engine.formats.quant.config import read_config
from tests.support import packed_weights as writers
from tests.support.tiny_models import MemorySource, tiny_model

# wide enough for every layout: QQQ needs 64 outputs and 128 inputs
SIZES = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "moe_intermediate_size": 128}
GROUP = 32
_CT = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}


def _compressed(stored: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    ignored = ["lm_head", r"re:.*mlp\.gate$"]
    return {"quant_method": "compressed-tensors", "format": stored, "config_groups": {"g": group}, "ignore": ignored}


def coded(values: np.ndarray, bits: int, group: int, order: np.ndarray | None = None) -> writers.Codes:
    """Rounded to unsigned codes with a zero of its own in each group of columns; `order` scatters the groups."""
    ins = values.shape[1]
    groups = (np.arange(ins) if order is None else order) // group
    count, most = -(-ins // group), (1 << bits) - 1
    low = np.stack([values[:, groups == g].min(1) for g in range(count)], 1)
    high = np.stack([values[:, groups == g].max(1) for g in range(count)], 1)
    scales = np.maximum((high - low) / most, 1e-4).astype(np.float16)
    zeros = np.clip(np.rint(-low / scales), 0, most).astype(int)
    codes = np.clip(np.rint(values / scales[:, groups]) + zeros[:, groups], 0, most).astype(int)
    return writers.Codes(codes, scales, zeros, groups.tolist(), bits)


def _gptq(values: np.ndarray, bits: int = 4, scattered: bool = False) -> dict[str, Tensor]:
    order = np.random.default_rng(1).permutation(values.shape[1]) if scattered else None
    return writers.gptq(coded(values, bits, GROUP, order))


def _qqq(values: np.ndarray, grouped: bool) -> dict[str, Tensor]:
    scale = np.abs(values).max(1) / 127
    if not grouped:
        codes = np.clip(np.rint(values / (16 * scale[:, None])), -8, 7).astype(int) & 15
        return writers.qqq(codes, scale.astype(np.float32), None)
    steps = np.full((values.shape[0], values.shape[1] // 128), 127 / 7, np.float16)
    codes = np.clip(np.rint(values / scale[:, None] / (127 / 7)) + 8, 0, 15).astype(int)
    return writers.qqq(codes, scale.astype(np.float32), steps)


def _int8(values: np.ndarray) -> dict[str, Tensor]:
    scale = torch.from_numpy(np.abs(values).max(1, keepdims=True) / 127).to(torch.bfloat16)
    codes = (torch.from_numpy(values) / scale.float()).round().clamp(-128, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scale}


def _fp8(values: np.ndarray) -> dict[str, Tensor]:
    scale = torch.full((-(-values.shape[0] // 128), -(-values.shape[1] // 128)), float(np.abs(values).max()) / 448)
    return {"weight": (torch.from_numpy(values) / scale[0, 0]).to(torch.float8_e4m3fn), "weight_scale_inv": scale}


@dataclass(frozen=True)
class Scheme:
    """A quantization_config, and how it stores a matrix."""

    config: dict[str, Any]
    write: Callable[[np.ndarray], dict[str, Tensor]]


def _gptq_config(bits: int = 4, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": False, **more}


SCHEMES = {
    "gptq": Scheme(_gptq_config(), _gptq),
    "gptq-desc-act": Scheme(_gptq_config(desc_act=True), lambda values: _gptq(values, scattered=True)),
    "gptq-8": Scheme(_gptq_config(8), lambda values: _gptq(values, 8)),
    "awq": Scheme({"quant_method": "awq", "group_size": GROUP}, lambda v: writers.awq(coded(v, 4, GROUP))),
    "ct-int4": Scheme(_compressed("pack-quantized", _CT), lambda v: writers.packed(coded(v, 4, GROUP), False)),
    "ct-int8": Scheme(_compressed("int-quantized", {"num_bits": 8, "strategy": "channel"}), _int8),
    "fp8": Scheme({"quant_method": "fp8", "weight_block_size": [128, 128]}, _fp8),
    "qqq": Scheme({"quant_method": "qqq", "wbits": 4}, lambda values: _qqq(values, False)),
    "qqq-groups": Scheme({"quant_method": "qqq", "wbits": 4, "group_size": 128}, lambda values: _qqq(values, True)),
}


def quantised(family: str, name: str, **options: Any) -> tuple[MemorySource, transformers.PreTrainedModel]:
    """A checkpoint of the scheme in memory, and a model of transformers that has exactly its values."""
    scheme = SCHEMES[name]
    model = tiny_model(family, **{**SIZES, **options})
    tensors: dict[str, Tensor] = {}
    for key, value in _published(model).items():
        module, _, last = key.rpartition(".")
        layout = read_config(scheme.config).layout(module)
        if value.dim() != 2 or layout is None or last != "weight" or key.endswith(_PLAIN):
            tensors[key] = value
            continue
        parts = scheme.write(value.numpy())
        tensors |= writers.named(module, parts)
        value.copy_(layout.unpack(parts))  # a view of the model's own parameter
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return MemorySource(tensors, {**config, "quantization_config": scheme.config}), model


_PLAIN = ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight")


def _published(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Views of the parameters under the names that checkpoints have: a tensor for each expert and projection."""
    found: dict[str, Tensor] = {}
    for key, value in model.state_dict().items():
        stem = key.rpartition(".")[0]
        if key.endswith("experts.gate_up_proj"):
            half = value.shape[1] // 2
            for e in range(value.shape[0]):
                found[f"{stem}.{e}.gate_proj.weight"] = value[e, :half]
                found[f"{stem}.{e}.up_proj.weight"] = value[e, half:]
        elif key.endswith("experts.down_proj"):
            found |= {f"{stem}.{e}.down_proj.weight": value[e] for e in range(value.shape[0])}
        else:
            found[key] = value
    return found
