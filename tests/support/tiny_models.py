"""Tiny random models of each family: made with transformers, kept in memory or on disk, or converted to GGUF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from strata_engine.formats.base import TensorMeta
from tests.support import tiny_hybrid
from tests.support.tiny_gguf import write_gguf

# Tiny tensors gain nothing from threads, and on a busy machine their barriers cost most of the time.
torch.set_num_threads(1)

BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 32},
    "qwen3_moe": {
        "tie_word_embeddings": False,
        "head_dim": 32,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    **tiny_hybrid.OPTIONS,
}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    **tiny_hybrid.CLASSES,
}
FAMILIES = tuple(CLASSES)
GGUF_ARCHITECTURES = {"qwen3_moe": "qwen3moe", **tiny_hybrid.ARCHITECTURES}  # where it is not the name of the family


def tiny_model(family: str, seed: int = 0, **options: Any) -> transformers.PreTrainedModel:
    """A random f32 model; every parameter is drawn, norms and biases too (defaults of 1 and 0 hide faults)."""
    config_class, model_class = CLASSES[family]
    config = config_class(**{**BASE, **OWN[family], **options})
    return draw(lambda: model_class(config), seed)


def draw(make: Callable[[], transformers.PreTrainedModel], seed: int = 0) -> transformers.PreTrainedModel:
    """A model in f32 with every parameter drawn anew."""
    with torch.random.fork_rng():  # some defaults are drawn, too
        torch.manual_seed(seed)
        model = make().to(torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(0.08 * noise)
    return model


def oracle_logits(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits [n, V] of transformers for every position."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def save_tiny(model: transformers.PreTrainedModel, directory: Path) -> Path:
    """As a Hugging Face checkpoint; returns the directory."""
    model.save_pretrained(directory)
    return directory


_TYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8", torch.int32: "I32", torch.int64: "I64", torch.bool: "BOOL",
}  # fmt: skip


class MemorySource:
    """A WeightSource over tensors in memory, in Hugging Face spelling."""

    kind = "safetensors"

    def __init__(self, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any], **generation: Any) -> None:
        self.paths = (Path("model.safetensors"),)
        self._tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        self._metadata = {"config": dict(config), "generation_config": generation}

    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    def tensors(self) -> Mapping[str, TensorMeta]:
        return {
            n: TensorMeta(n, tuple(t.shape), _type(t), self.paths[0], 0, t.nbytes) for n, t in self._tensors.items()
        }

    def read(self, name: str) -> memoryview:
        return memoryview(self._tensors[name].flatten().view(torch.uint8).numpy())

    def close(self) -> None:
        pass


def _type(tensor: torch.Tensor) -> str:
    return _TYPES[tensor.dtype]


def memory_source(model: transformers.PreTrainedModel, **changes: Any) -> MemorySource:
    """The model's tensors and config without touching the disk. `changes` replace config keys; None removes one."""
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    config = {k: v for k, v in {**config, **changes}.items() if v is not None}
    tensors = dict(model.state_dict())
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    return MemorySource(tensors, config)


def write_tiny(model: transformers.PreTrainedModel, family: str, path: Path, types: str = "F32") -> Path:
    """As a GGUF file; returns the path."""
    architecture = GGUF_ARCHITECTURES.get(family, family)
    write_gguf(path, architecture, gguf_metadata(model), gguf_tensors(model, family), types=types)
    return path


def gguf_tensors(model: transformers.PreTrainedModel, family: str, fused: bool = False) -> dict[str, np.ndarray]:
    """The model's tensors under GGUF names, with the q and k rows of llama reordered for adjacent-pair rotation.

    `fused`: gate and up of the experts stay in one tensor.
    """
    from strata_engine.models.names import NAMES

    if family in tiny_hybrid.CLASSES:
        return tiny_hybrid.gguf_tensors(model, family)
    config = model.config
    state = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    heads = {".q": config.num_attention_heads, ".k": config.num_key_value_heads}
    found = {}
    for ours, (gguf_name, hf_name) in NAMES.items():
        for layer in range(config.num_hidden_layers) if "{n}" in ours else [0]:
            value = state.get(hf_name.replace("{n}", str(layer)))
            if value is None or (ours == "head" and config.tie_word_embeddings):
                continue
            if family == "llama" and ours[-2:] in heads:
                value = _adjacent(value, heads[ours[-2:]])
            found[gguf_name.replace("{n}", str(layer))] = np.ascontiguousarray(value)
    return found if fused else _split_experts(found)


def _split_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {}
    for name, value in tensors.items():
        if ".ffn_gate_up_exps." in name:
            gate, up = (np.ascontiguousarray(half) for half in np.split(value, 2, axis=1))
            found[name.replace("gate_up", "gate")], found[name.replace("gate_up", "up")] = gate, up
        else:
            found[name] = value
    return found


def _adjacent(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row i and row i + half of each head become neighbours (the value transform of llama files)."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)


def gguf_metadata(model: transformers.PreTrainedModel) -> dict[str, Any]:
    """The hyper-parameter keys of a decoder."""
    config = model.config
    if hasattr(config, "linear_num_key_heads"):
        return tiny_hybrid.gguf_metadata(config)
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    experts = {}
    if hasattr(config, "num_experts"):
        experts = {
            "{a}.expert_count": config.num_experts,
            "{a}.expert_used_count": config.num_experts_per_tok,
            "{a}.expert_feed_forward_length": config.moe_intermediate_size,
        }
    return experts | {
        "{a}.block_count": config.num_hidden_layers,
        "{a}.context_length": config.max_position_embeddings,
        "{a}.embedding_length": config.hidden_size,
        "{a}.feed_forward_length": config.intermediate_size,
        "{a}.attention.head_count": config.num_attention_heads,
        "{a}.attention.head_count_kv": config.num_key_value_heads,
        "{a}.attention.key_length": head_width,
        "{a}.attention.value_length": head_width,
        "{a}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "{a}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "{a}.rope.dimension_count": head_width,
    }
