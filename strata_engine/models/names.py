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
    "{n}.qkv": ("blk.{n}.attn_qkv.weight", "model.layers.{n}.linear_attn.in_proj_qkv.weight"),
    "{n}.z": ("blk.{n}.attn_gate.weight", "model.layers.{n}.linear_attn.in_proj_z.weight"),
    "{n}.qkvz": ("blk.{n}.ssm_in.weight", "model.layers.{n}.linear_attn.in_proj_qkvz.weight"),
    "{n}.alpha": ("blk.{n}.ssm_alpha.weight", "model.layers.{n}.linear_attn.in_proj_a.weight"),
    "{n}.beta": ("blk.{n}.ssm_beta.weight", "model.layers.{n}.linear_attn.in_proj_b.weight"),
    "{n}.ba": ("blk.{n}.ssm_ba.weight", "model.layers.{n}.linear_attn.in_proj_ba.weight"),
    "{n}.conv": ("blk.{n}.ssm_conv1d.weight", "model.layers.{n}.linear_attn.conv1d.weight"),
    "{n}.decay": ("blk.{n}.ssm_a", "model.layers.{n}.linear_attn.A_log"),
    "{n}.dt_bias": ("blk.{n}.ssm_dt.bias", "model.layers.{n}.linear_attn.dt_bias"),
    "{n}.state_norm": ("blk.{n}.ssm_norm.weight", "model.layers.{n}.linear_attn.norm.weight"),
    "{n}.out": ("blk.{n}.ssm_out.weight", "model.layers.{n}.linear_attn.out_proj.weight"),
    "{n}.shared_router": ("blk.{n}.ffn_gate_inp_shexp.weight", "model.layers.{n}.mlp.shared_expert_gate.weight"),
    "{n}.shared_gate": ("blk.{n}.ffn_gate_shexp.weight", "model.layers.{n}.mlp.shared_expert.gate_proj.weight"),
    "{n}.shared_up": ("blk.{n}.ffn_up_shexp.weight", "model.layers.{n}.mlp.shared_expert.up_proj.weight"),
    "{n}.shared_down": ("blk.{n}.ffn_down_shexp.weight", "model.layers.{n}.mlp.shared_expert.down_proj.weight"),
    "{n}.hc1_norm": ("blk.{n}.hc_attn_norm.weight", "model.layers.{n}.attn_hyper_connection.hc_norm.weight"),
    "{n}.hc1_down": (
        "blk.{n}.hc_attn_down.weight",
        "model.layers.{n}.attn_hyper_connection.input_mix_weight_down.weight",
    ),
    "{n}.hc1_up": ("blk.{n}.hc_attn_up.weight", "model.layers.{n}.attn_hyper_connection.input_mix_weight_up.weight"),
    "{n}.hc1_inject": (
        "blk.{n}.hc_attn_inject.weight",
        "model.layers.{n}.attn_hyper_connection.block_inject_weight.weight",
    ),
    "{n}.hc2_norm": ("blk.{n}.hc_ffn_norm.weight", "model.layers.{n}.mlp_hyper_connection.hc_norm.weight"),
    "{n}.hc2_down": (
        "blk.{n}.hc_ffn_down.weight",
        "model.layers.{n}.mlp_hyper_connection.input_mix_weight_down.weight",
    ),
    "{n}.hc2_up": ("blk.{n}.hc_ffn_up.weight", "model.layers.{n}.mlp_hyper_connection.input_mix_weight_up.weight"),
    "{n}.hc2_inject": (
        "blk.{n}.hc_ffn_inject.weight",
        "model.layers.{n}.mlp_hyper_connection.block_inject_weight.weight",
    ),
    "mix_norm": ("output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight"),
    "mix_down": ("output_hc_down.weight", "model.hyper_connection_mixer.input_mix_weight_down.weight"),
    "mix_up": ("output_hc_up.weight", "model.hyper_connection_mixer.input_mix_weight_up.weight"),
    "{n}.index_q": ("blk.{n}.indexer.q_proj.weight", ""),
    "{n}.index_k": ("blk.{n}.indexer.k_proj.weight", ""),
    "{n}.index_qk": ("", "model.layers.{n}.self_attn.indexer.index_qk_proj.weight"),
    "{n}.index_q_norm": ("blk.{n}.indexer.q_norm.weight", "model.layers.{n}.self_attn.indexer.q_layernorm.weight"),
    "{n}.index_k_norm": ("blk.{n}.indexer.k_norm.weight", "model.layers.{n}.self_attn.indexer.k_layernorm.weight"),
    "{n}.ple_key": ("blk.{n}.ple_key.weight", "model.layers.{n}.ple.key_proj.weight"),
    "{n}.ple_value": ("blk.{n}.ple_value.weight", "model.layers.{n}.ple.value_proj.weight"),
    "{n}.ple_norm_key": ("blk.{n}.ple_norm_key.weight", "model.layers.{n}.ple.norm_key.weight"),
    "{n}.ple_norm_query": ("blk.{n}.ple_norm_query.weight", "model.layers.{n}.ple.norm_query.weight"),
    "{n}.ple_norm_conv": ("blk.{n}.ple_norm_conv.weight", "model.layers.{n}.ple.norm_conv.weight"),
    "{n}.ple_conv": ("blk.{n}.ple_conv1d.weight", "model.layers.{n}.ple.conv1d.weight"),
    "{n}.router": ("blk.{n}.ffn_gate_inp.weight", "model.layers.{n}.mlp.gate.weight"),
    "{n}.gate_exps": ("blk.{n}.ffn_gate_exps.weight", ""),
    "{n}.up_exps": ("blk.{n}.ffn_up_exps.weight", ""),
    "{n}.down_exps": ("blk.{n}.ffn_down_exps.weight", "model.layers.{n}.mlp.experts.down_proj"),
    "{n}.gate_up_exps": ("blk.{n}.ffn_gate_up_exps.weight", "model.layers.{n}.mlp.experts.gate_up_proj"),
    "{n}.expert.{e}.gate": ("", "model.layers.{n}.mlp.experts.{e}.gate_proj.weight"),
    "{n}.expert.{e}.up": ("", "model.layers.{n}.mlp.experts.{e}.up_proj.weight"),
    "{n}.expert.{e}.down": ("", "model.layers.{n}.mlp.experts.{e}.down_proj.weight"),
    "{n}.draft": ("blk.{n}.nextn.eh_proj.weight", "mtp.fc.weight"),
    "{n}.draft_embed_norm": ("blk.{n}.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
    "{n}.draft_hidden_norm": ("blk.{n}.nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"),
    "{n}.draft_norm": ("blk.{n}.nextn.shared_head_norm.weight", "mtp.norm.weight"),
    "{n}.draft_embed": ("blk.{n}.nextn.embed_tokens.weight", "mtp.embed_tokens.weight"),
    "{n}.draft_head": ("blk.{n}.nextn.shared_head_head.weight", "mtp.lm_head.weight"),
    "{n}.gate_bias": ("blk.{n}.ffn_gate.bias", "model.layers.{n}.mlp.gate_proj.bias"),
    "{n}.up_bias": ("blk.{n}.ffn_up.bias", "model.layers.{n}.mlp.up_proj.bias"),
    "{n}.down_bias": ("blk.{n}.ffn_down.bias", "model.layers.{n}.mlp.down_proj.bias"),
}

_LAYER, _EXPERT = re.compile(r"^(\d+)\."), re.compile(r"expert\.(\d+)\.")

# computed from the config instead, old checkpoints store it; constants of n-gram tables, which exp_config.py reads
NOT_NEEDED = re.compile(
    r"(.*\.)?rotary_emb\.inv_freq|blk\.\d+\.attn_rot_embd"
    r"|.*\.ple_embedding\.(layer_multipliers|ngram_heads_vocab_sizes|ngram_heads_offsets)"
)
# heads that predict further tokens are loaded on demand (mtp.py)
DRAFT = re.compile(r"mtp\..+|blk\.(\d+)\..+")


def is_draft(name: str, layers: int) -> bool:
    """Is a stored tensor part of a draft head, given the number of the model's own layers?"""
    found = DRAFT.fullmatch(name)
    return found is not None and (found[1] is None or int(found[1]) >= layers)


@dataclass(frozen=True)
class RowSplit:
    """A matrix that is several: `groups` equal runs of rows, each with rows of the first part, the second, and so on.

    `runs`: (our name of a part, rows of it in a group). Names that come twice are one part: all rows of the first run,
    then all of the second. Rows do not depend on each other, so this holds for every storage type.
    """

    groups: int
    runs: tuple[tuple[str, int], ...]

    def rows_of(self, name: str) -> int:
        """Rows of a part."""
        return self.groups * sum(size for part, size in self.runs if part == name)

    @property
    def names(self) -> list[str]:
        """The parts, in order."""
        return list(dict.fromkeys(name for name, _ in self.runs))


@dataclass(frozen=True)
class Wanted:
    """A tensor that a model needs. `name` is ours; `shape` rows first.

    `use`: matrix (multiplied, may be packed) | experts (a stack of matrices, see mixture.py) | table (rows are
    looked up) | mapped (a table larger than memory: it stays in its file whatever was asked) | vector (small, becomes
    f32) | halves (a matrix whose left and right columns become two). A matrix of one row may be stored as a vector.
    `stored`: the checkpoint's name where the table's does not hold. `split`: the parts that a matrix is cut into.
    `change`, of a vector: "plus one" (norms that are centred on zero) | "decay" (-exp of what is stored).
    """

    name: str
    shape: tuple[int, ...]
    use: str
    stored: str = ""
    split: RowSplit | None = None
    change: str = ""

    def stored_name(self, kind: str) -> str:
        """The checkpoint's name in this kind of file."""
        return self.stored or stored_name(self.name, kind)


def half_names(name: str) -> tuple[str, str]:
    """Our names of the left and the right columns of a matrix whose input is two vectors side by side."""
    return f"{name}.left", f"{name}.right"


def expert_group(name: str) -> str | None:
    """What all experts' matrices of one layer and projection share, such as "3.gate"; None for other names."""
    return _EXPERT.sub("", name) if _EXPERT.search(name) else None


def stored_name(name: str, kind: str) -> str:
    """Our name as the checkpoint spells it; "" when that kind never stores it. `kind`: gguf | safetensors."""
    key = _EXPERT.sub("expert.{e}.", _LAYER.sub("{n}.", name))
    stored = NAMES[key][0 if kind == "gguf" else 1]
    layer, expert = _LAYER.match(name), _EXPERT.search(name)
    stored = stored.replace("{n}", layer[1]) if layer else stored
    return stored.replace("{e}", expert[1]) if expert else stored
