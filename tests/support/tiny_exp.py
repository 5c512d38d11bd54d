"""Tiny qwen4_exp models: options for transformers, drawing their weights, and their conversion to GGUF."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from tests.support import tiny_hybrid
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import BASE

OPTIONS: dict[str, Any] = {
    **BASE,
    **tiny_hybrid.OPTIONS["qwen3_5_moe"],
    "hc_count": 4,
    "hc_lowrank": 16,
    "ple_layer_ids": [2],
    "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 1000,
    "make_ngram_vocab_size_divisible_by": 8,
    "seed": 1234,
    "split_ngram_parts": 4,
    "indexer_n_heads": 8,  # with few heads many blocks score exactly 0, and ties may be broken either way
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "eos_token_id": 5,
    "output_gate_type": "sigmoid",
}


def tiny_exp(seed: int = 0, **options: Any) -> transformers.PreTrainedModel:
    """A random f32 model; convolutions are drawn wide, so that the past matters."""
    model = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**{**OPTIONS, **options})).to(torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_((0.3 if "conv1d" in name or "ngram_embedding" in name else 0.08) * noise)
    return model


_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.hyper_connection_mixer.hc_norm.weight": "output_hc_norm.weight",
    "model.hyper_connection_mixer.input_mix_weight_down.weight": "output_hc_down.weight",
    "model.hyper_connection_mixer.input_mix_weight_up.weight": "output_hc_up.weight",
}
_HYPER = {
    "hc_norm.weight": "norm",
    "input_mix_weight_down.weight": "down",
    "input_mix_weight_up.weight": "up",
    "block_inject_weight.weight": "inject",
}
_TABLE = {
    "key_proj.weight": "ple_key",
    "value_proj.weight": "ple_value",
    "norm_key.weight": "ple_norm_key",
    "norm_query.weight": "ple_norm_query",
    "norm_conv.weight": "ple_norm_conv",
    "conv1d.weight": "ple_conv1d",
}


def gguf_tensors(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """Under GGUF names, with GGUF's values, from the description of the formats."""
    config, found, usual = model.config, {}, {}
    for name, tensor in model.state_dict().items():
        if tensor.dtype == torch.int64:
            continue
        value = tensor.detach().float().numpy()
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        if layer is None:
            found[_TOP[name]] = value + 1 if name.endswith("norm.weight") else value
            continue
        n, rest = layer[1], layer[2]
        part, _, last = rest.partition(".")
        if part in ("attn_hyper_connection", "mlp_hyper_connection"):
            short = "attn" if part.startswith("attn") else "ffn"
            found[f"blk.{n}.hc_{short}_{_HYPER[last]}.weight"] = value + ("norm" in last)
        elif last.startswith("ple_embedding."):
            found["per_layer_token_embd.weight"] = value
        elif part == "ple":
            value = value[:, 0] if last == "conv1d.weight" else value
            found[f"blk.{n}.{_TABLE[last]}.weight"] = value + last.startswith("norm")
        elif "indexer.index_qk_proj" in rest:
            rows = config.indexer_n_heads * config.indexer_head_dim
            found[f"blk.{n}.indexer.q_proj.weight"], found[f"blk.{n}.indexer.k_proj.weight"] = (
                value[:rows],
                value[rows:],
            )
        elif "indexer." in rest:
            found[f"blk.{n}.indexer.{'q' if 'q_layernorm' in rest else 'k'}_norm.weight"] = value + 1
        else:
            usual[name] = tensor
    found |= tiny_hybrid.gguf_tensors(_Part(usual, config), "qwen3_5_moe")  # type: ignore[arg-type]
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in found.items()}


class _Part:
    """Some tensors of a model, for a converter that asks a model."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: Any) -> None:
        self._tensors, self.config = tensors, config

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._tensors


def gguf_metadata(model: transformers.PreTrainedModel) -> dict[str, Any]:
    """The hyper-parameter keys."""
    config = model.config
    table = model.model.layers[config.ple_layer_ids[0] - 1].ple.ple_embedding
    return {
        **tiny_hybrid.gguf_metadata(config),
        "{a}.hyper_connection.count": config.hc_count,
        "{a}.hyper_connection.low_rank": config.hc_lowrank,
        "{a}.attention.indexer.head_count": config.indexer_n_heads,
        "{a}.attention.indexer.key_length": config.indexer_head_dim,
        "{a}.attention.indexer.top_k": config.indexer_budget,
        "{a}.attention.compress_ratios": [
            config.indexer_compress_ratio * (kind == "indexed_attention") for kind in config.layer_types
        ],
        "{a}.ple.layers": [config.ple_layer_ids[0] - 1],
        "{a}.ple.ngram_size": config.ngram_size,
        "{a}.ple.heads_per_ngram": config.heads_per_ngram,
        "{a}.ple.conv_kernel": config.ple_conv_kernel_size,
        "{a}.ple.eos_token_id": config.eos_token_id,
        "{a}.ple.layer_multipliers": table.layer_multipliers.tolist(),
        "{a}.ple.head_offsets": table.ngram_heads_offsets.tolist(),
        "{a}.ple.head_vocab_sizes": table.ngram_heads_vocab_sizes.tolist(),
        "{a}.embedding_length_per_layer_input": config.ple_embed_dim // len(table.head_vocab_sizes),
    }


def write_exp(model: transformers.PreTrainedModel, path: Any, types: str = "F32") -> Any:
    """As a GGUF file; returns the path."""
    write_gguf(path, "qwen4exp", gguf_metadata(model), gguf_tensors(model), types=types)
    return path
