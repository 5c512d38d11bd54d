"""Writes the toy's checkpoint as a GGUF file: python -m tests.support.toy.to_gguf DIRECTORY FILE [--type Q8_0].

Names, value transforms and the order of value heads as in models.md 6.3 to 6.6; the gguf package does the writing.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from tests.support.tiny_gguf import choose_type, write_gguf

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}  # fmt: skip
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
HEAD = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
ALWAYS_F32 = re.compile(r".*(norm|ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d)\.weight")


def tiled(config: dict[str, Any]) -> np.ndarray:
    """For each value head of the GGUF order (head j reads key head j % keys) the head of the Hugging Face order."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    j = np.arange(values)
    return (j % keys) * (values // keys) + j // keys


def reorder_heads(name: str, value: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """`value` with its value heads in the GGUF order; `name` without the prefix of the layer."""
    order, width = tiled(config), config["linear_value_head_dim"]
    rows = (order[:, None] * width + np.arange(width)).ravel()  # elements, head by head
    skipped = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if name in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        return np.concatenate([value[:skipped], value[skipped:][rows]])
    if name == "linear_attn.in_proj_z.weight":
        return value[rows]
    if name in ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight", "linear_attn.A_log",
                "linear_attn.dt_bias"):  # fmt: skip
        return value[order]
    if name == "linear_attn.out_proj.weight":
        return value[:, rows]
    return value


def tensors(values: dict[str, np.ndarray], config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Hugging Face tensors (f32) as GGUF ones; the MTP layer becomes the block after the last."""
    found: dict[str, np.ndarray] = {}
    for name, value in values.items():
        place = re.match(r"(model\.layers\.(\d+)|mtp\.layers\.0)\.(.*)", name)
        block = f"blk.{place[2] or config['num_hidden_layers']}." if place else f"blk.{config['num_hidden_layers']}."
        own = place[3] if place else name
        value = reorder_heads(own, value, config)
        if re.search(r"norm(_embedding|_hidden)?\.weight$", own) and own != "linear_attn.norm.weight":
            value = value + 1
        if own == "mlp.experts.gate_up_proj":
            gate, up = np.split(value, 2, axis=1)
            found[block + "ffn_gate_exps.weight"], found[block + "ffn_up_exps.weight"] = gate, up
            continue
        if own == "linear_attn.A_log":
            value = -np.exp(value)
        if own == "linear_attn.conv1d.weight":
            value = value[:, 0]
        if own == "mlp.shared_expert_gate.weight":
            value = value[0]
        found[OUTER[own] if own in OUTER else block + (HEAD[own] if own in HEAD else LAYER[own])] = value
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in found.items()}


def metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The hyper-parameters of architecture qwen35moe."""
    rope = config["rope_parameters"]
    mtp = config["mtp_num_hidden_layers"]
    return {
        "general.name": name,
        "general.license": "apache-2.0",
        "{a}.block_count": config["num_hidden_layers"] + mtp,
        "{a}.context_length": config["max_position_embeddings"],
        "{a}.embedding_length": config["hidden_size"],
        "{a}.attention.head_count": config["num_attention_heads"],
        "{a}.attention.head_count_kv": config["num_key_value_heads"],
        "{a}.attention.key_length": config["head_dim"],
        "{a}.attention.value_length": config["head_dim"],
        "{a}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "{a}.rope.freq_base": rope["rope_theta"],
        "{a}.rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
        "{a}.rope.dimension_sections": [*rope["mrope_section"], 0],
        "{a}.full_attention_interval": config["full_attention_interval"],
        "{a}.ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "{a}.ssm.state_size": config["linear_key_head_dim"],
        "{a}.ssm.group_count": config["linear_num_key_heads"],
        "{a}.ssm.time_step_rank": config["linear_num_value_heads"],
        "{a}.ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "{a}.expert_count": config["num_experts"],
        "{a}.expert_used_count": config["num_experts_per_tok"],
        "{a}.expert_feed_forward_length": config["moe_intermediate_size"],
        "{a}.expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "{a}.nextn_predict_layers": mtp or None,
    }


def tokenizer_metadata(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The `tokenizer.*` keys, from tokenizer.json."""
    stored = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = {number: word for word, number in stored["model"]["vocab"].items()}
    kinds = dict.fromkeys(tokens, NORMAL)
    for added in stored["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in stored["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": [tokens[n] for n in range(config["vocab_size"])],
        "tokenizer.ggml.token_type": [kinds[n] for n in range(config["vocab_size"])],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": None,
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": settings["chat_template"],
    }


def write_toy(directory: Path, file: Path, type_name: str = "Q8_0") -> Path:
    """The checkpoint in `directory` as one GGUF file whose matrices are `type_name` where their rows allow it."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    values = {name: value.float().numpy() for name, value in load_file(directory / "model.safetensors").items()}
    found = tensors(values, config)
    types = {n: "F32" if ALWAYS_F32.fullmatch(n) else choose_type(v, type_name) for n, v in found.items()}
    # Rows too short for a block of 256 take a type of 32, as llama.cpp's quantiser does (models.md 6.7).
    if type_name in ("Q4_K", "Q5_K", "Q6_K"):
        short = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}[type_name]
        matrices = [n for n, v in found.items() if v.ndim >= 2 and not ALWAYS_F32.fullmatch(n)]
        types |= {n: choose_type(found[n], short) for n in matrices if types[n] == "F32"}
    write_gguf(file, "qwen35moe", metadata(config, "toy"), found, types, tokenizer_metadata(directory, config))
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", default="Q8_0", help="of the matrices: F32, BF16, Q8_0, Q4_K, ..")
    args = parser.parse_args()
    write_toy(args.directory, args.file, args.type)


if __name__ == "__main__":
    main()
