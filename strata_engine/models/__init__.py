"""Which class runs which architecture: one line a name. Importing this imports no torch.

A GGUF file is looked up by `general.architecture`, a Hugging Face checkpoint by `architectures`, then `model_type`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from strata_engine.errors import UsageError
from strata_engine.formats.base import WeightSource

if TYPE_CHECKING:
    from strata_engine.models.base import Model

GGUF = {
    "llama": ("llama", "Llama"),
    "qwen2": ("qwen2", "Qwen2"),
    "qwen3": ("qwen3", "Qwen3"),
    "qwen3moe": ("qwen3_moe", "Qwen3Moe"),
    "qwen3next": ("qwen3_next", "Qwen3Next"),
    "qwen35": ("qwen3_5", "Qwen35"),
    "qwen35moe": ("qwen3_5", "Qwen35Moe"),
    "qwen3vl": ("qwen3_vl", "Qwen3Vl"),
    "qwen4exp": ("qwen4_exp", "Qwen4Exp"),
}
HUGGING_FACE = {
    "LlamaForCausalLM": ("llama", "Llama"),
    "MistralForCausalLM": ("llama", "Llama"),
    "Qwen2ForCausalLM": ("qwen2", "Qwen2"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3Moe"),
    "Qwen3NextForCausalLM": ("qwen3_next", "Qwen3Next"),
    "Qwen3_5ForCausalLM": ("qwen3_5", "Qwen35"),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", "Qwen35"),
    "Qwen3_5MoeForCausalLM": ("qwen3_5", "Qwen35Moe"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5", "Qwen35Moe"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl", "Qwen3Vl"),
    "Qwen4ExpForCausalLM": ("qwen4_exp", "Qwen4Exp"),
    "Qwen4ExpForConditionalGeneration": ("qwen4_exp", "Qwen4Exp"),
}
_MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen4_exp": "Qwen4ExpForConditionalGeneration",
    "qwen4_exp_text": "Qwen4ExpForCausalLM",
}


def runs_family(family: str) -> bool:
    """Is there a class for what the catalog calls a family: a model_type or a GGUF architecture?"""
    return family in _MODEL_TYPES or family in GGUF


def architecture_of(source: WeightSource) -> str:
    """What the checkpoint calls itself; "" when it does not say."""
    metadata = source.metadata()
    if source.kind == "gguf":
        return str(metadata.get("general.architecture") or "")
    config = metadata.get("config") or {}
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    kind = str(config.get("model_type") or "")
    return _MODEL_TYPES.get(kind, kind)


def find_model(source: WeightSource) -> type[Model]:
    """The class for a checkpoint. Raises UsageError naming the architecture and what is supported."""
    name = architecture_of(source)
    table = GGUF if source.kind == "gguf" else HUGGING_FACE
    if name not in table:
        where = source.paths[0] if source.paths else source.kind
        said = f"architecture {name!r} is not supported" if name else "the checkpoint names no architecture"
        raise UsageError(f"{where}: {said}", hint=f"supported: {', '.join(table)}", details={"architecture": name})
    module, kind = table[name]
    return getattr(import_module(f"strata_engine.models.{module}"), kind)
