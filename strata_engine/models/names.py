"""Our tensor names and how GGUF files and Hugging Face checkpoints spell them. No torch.

`{n}` is the layer, `{e}` the expert. A tensor that we know but do not need is listed in NOT_NEEDED with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# ours: (GGUF, Hugging Face)
NAMES: dict[str, tuple[str, str]] = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm": ("output_norm.weight", "model.norm.weight"),
    "head": ("output.weight", "lm_head.weight"),
    "rope_factors": ("rope_freqs.weight", ""),
    "{n}.norm1": ("blk.{n}.attn_norm.weight", "model.layers.{n}.input_layernorm.weight"),
    "{n}.q": ("blk.{n}.attn_q.weight", "model.layers.{n}.self_attn.q_proj.weight"),
    "{n}.k": ("blk.{n}.attn_k.weight", "model.layers.{n}.self_attn.k_proj.weight"),
    "{n}.v": ("blk.{n}.attn_v.weight", "model.layers.{n}.self_attn.v_proj.weight"),
    "{n}.o": ("blk.{n}.attn_output.weight", "model.layers.{n}.self_attn.o_proj.weight"),
    "{n}.q_bias": ("blk.{n}.attn_q.bias", "model.layers.{n}.self_attn.q_proj.bias"),
    "{n}.k_bias": ("blk.{n}.attn_k.bias", "model.layers.{n}.self_attn.k_proj.bias"),
    "{n}.v_bias": ("blk.{n}.attn_v.bias", "model.layers.{n}.self_attn.v_proj.bias"),
    "{n}.o_bias": ("blk.{n}.attn_output.bias", "model.layers.{n}.self_attn.o_proj.bias"),
    "{n}.q_norm": ("blk.{n}.attn_q_norm.weight", "model.layers.{n}.self_attn.q_norm.weight"),
    "{n}.k_norm": ("blk.{n}.attn_k_norm.weight", "model.layers.{n}.self_attn.k_norm.weight"),
    "{n}.norm2": ("blk.{n}.ffn_norm.weight", "model.layers.{n}.post_attention_layernorm.weight"),
    "{n}.gate": ("blk.{n}.ffn_gate.weight", "model.layers.{n}.mlp.gate_proj.weight"),
    "{n}.up": ("blk.{n}.ffn_up.weight", "model.layers.{n}.mlp.up_proj.weight"),
    "{n}.down": ("blk.{n}.ffn_down.weight", "model.layers.{n}.mlp.down_proj.weight"),
    "{n}.router": ("blk.{n}.ffn_gate_inp.weight", "model.layers.{n}.mlp.gate.weight"),
    "{n}.gate_exps": ("blk.{n}.ffn_gate_exps.weight", ""),
    "{n}.up_exps": ("blk.{n}.ffn_up_exps.weight", ""),
    "{n}.down_exps": ("blk.{n}.ffn_down_exps.weight", "model.layers.{n}.mlp.experts.down_proj"),
    "{n}.gate_up_exps": ("blk.{n}.ffn_gate_up_exps.weight", "model.layers.{n}.mlp.experts.gate_up_proj"),
    "{n}.expert.{e}.gate": ("", "model.layers.{n}.mlp.experts.{e}.gate_proj.weight"),
    "{n}.expert.{e}.up": ("", "model.layers.{n}.mlp.experts.{e}.up_proj.weight"),
    "{n}.expert.{e}.down": ("", "model.layers.{n}.mlp.experts.{e}.down_proj.weight"),
    "{n}.gate_bias": ("blk.{n}.ffn_gate.bias", "model.layers.{n}.mlp.gate_proj.bias"),
    "{n}.up_bias": ("blk.{n}.ffn_up.bias", "model.layers.{n}.mlp.up_proj.bias"),
    "{n}.down_bias": ("blk.{n}.ffn_down.bias", "model.layers.{n}.mlp.down_proj.bias"),
}

_LAYER, _EXPERT = re.compile(r"^(\d+)\."), re.compile(r"expert\.(\d+)\.")

# computed from the config instead; old checkpoints store it
NOT_NEEDED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|blk\.\d+\.attn_rot_embd")


@dataclass(frozen=True)
class Wanted:
    """A tensor that a model needs. `name` is ours; `shape` rows first.

    `use`: matrix (multiplied, may be packed) | experts (a stack of matrices, see mixture.py) | table (rows are
    looked up) | vector (small, becomes f32).
    """

    name: str
    shape: tuple[int, ...]
    use: str


def stored_name(name: str, kind: str) -> str:
    """Our name as the checkpoint spells it; "" when that kind never stores it. `kind`: gguf | safetensors."""
    key = _EXPERT.sub("expert.{e}.", _LAYER.sub("{n}.", name))
    stored = NAMES[key][0 if kind == "gguf" else 1]
    layer, expert = _LAYER.match(name), _EXPERT.search(name)
    stored = stored.replace("{n}", layer[1]) if layer else stored
    return stored.replace("{e}", expert[1]) if expert else stored
