"""Writes the toy and its drafter as Hugging Face checkpoints: bf16 safetensors, configs, tokenizer, template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tests.support.toy.dflash import Drafter
from tests.support.toy.shape import Parameters, Shape
from tests.support.toy.vocabulary import END, MASK, STOP

CONTEXT = 2048  # rows of 256 tokens were trained; longer prompts run, but nothing is promised about them

# The Qwen3.5 form as far as the toy has seen it: thoughts of earlier turns are dropped, a thought is opened for the
# reply, and enable_thinking=false closes it at once.
TEMPLATE = """\
{%- for message in messages %}
    {%- set text = message.content | trim %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {%- set text = text.split('</think>')[-1] | trim %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def rounded(values: Parameters) -> Parameters:
    """As bf16 holds them; f32. Drafters are trained on the trunk that ships."""
    return {name: value.detach().to(torch.bfloat16).to(torch.float32) for name, value in values.items()}


def save_weights(values: Parameters, file: Path) -> None:
    stored = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in values.items()}
    save_file(stored, file, metadata={"format": "pt"})


def save_toy(directory: Path, shape: Shape, tokenizer: Tokenizer, values: Parameters) -> None:
    """`values`: the trunk and the MTP head (names that start with "mtp.")."""
    directory.mkdir(parents=True, exist_ok=True)
    save_weights(values, directory / "model.safetensors")
    stops = [tokenizer.token_to_id(STOP), tokenizer.token_to_id(END)]
    config = toy_config(shape, stops, mtp=any(name.startswith("mtp.") for name in values))
    _write(directory / "config.json", config)
    generation = {"eos_token_id": stops, "pad_token_id": stops[1], "do_sample": False}
    _write(directory / "generation_config.json", generation)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": STOP,
        "pad_token": END,
        "model_max_length": CONTEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    _write(directory / "tokenizer_config.json", settings)


def toy_config(shape: Shape, stops: list[int], mtp: bool) -> dict[str, Any]:
    """config.json of a text-only Qwen3.5 mixture."""
    kinds = ["full_attention" if shape.attends(n) else "linear_attention" for n in range(shape.layers)]
    rope = {
        "rope_type": "default",
        "rope_theta": shape.theta,
        "partial_rotary_factor": shape.rotary / shape.head_width,
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
    }
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "layer_types": kinds,
        "full_attention_interval": shape.attention_every,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "attn_output_gate": True,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.delta_width,
        "linear_value_head_dim": shape.delta_width,
        "linear_conv_kernel_dim": shape.kernel,
        "mamba_ssm_dtype": "float32",
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_intermediate_size": shape.expert_width,
        "shared_expert_intermediate_size": shape.shared_width,
        "rms_norm_eps": shape.epsilon,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "mtp_num_hidden_layers": int(mtp),
        "mtp_use_dedicated_embeddings": False,
        "eos_token_id": stops[0],
        "pad_token_id": stops[1],
        "use_cache": True,
    }


def save_dflash(directory: Path, drafter: Drafter, shape: Shape, tokenizer: Tokenizer, values: Parameters) -> None:
    """The drafter in the layout of published ones (speculative.md 1.5, 1.6)."""
    directory.mkdir(parents=True, exist_ok=True)
    save_weights(values, directory / "model.safetensors")
    own = {
        "mask_token_id": tokenizer.token_to_id(MASK),
        "target_layer_ids": list(drafter.taps),
        "block_size": drafter.block,
        "sample_from_anchor": False,
        "causal": False,
    }
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": shape.width,
        "intermediate_size": drafter.inner,
        "num_hidden_layers": drafter.layers,
        "layer_types": ["full_attention"] * drafter.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": drafter.theta,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "num_target_layers": shape.layers,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
        "block_size": drafter.block,
        "dflash_config": own,
    }
    _write(directory / "config.json", config)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
