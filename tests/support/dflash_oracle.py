"""DFlash and DFlash2 in plain torch f64, row by row, written from notes/speculative.md 1 and 2; random drafters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WIDTH, VOCAB, HEADS, KV_HEADS, HEAD = 64, 96, 4, 2, 32
TARGET_LAYERS, TAPS, MASK, BLOCK = 4, (0, 2, 3), 95, 6


def config_json(layers: int = 2, **changes: Any) -> dict[str, Any]:
    """A config.json as published drafters have it. Keys of dflash_config are given as own={...}; None removes a key."""
    own = {"mask_token_id": MASK, "target_layer_ids": list(TAPS), "block_size": BLOCK}
    own |= changes.pop("own", {})
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "num_target_layers": TARGET_LAYERS,
        "vocab_size": VOCAB,
        "dflash_config": {key: value for key, value in own.items() if value is not None},
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 5}


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of a drafter under its published name, f32."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, cols: int) -> Tensor:
        return torch.randn(rows, cols, generator=generator) / math.sqrt(cols)

    def norm(width: int) -> Tensor:
        return 1 + 0.3 * torch.randn(width, generator=generator)

    width, inner, own = config["hidden_size"], config["intermediate_size"], config["dflash_config"]
    found = {
        "fc.weight": matrix(width, len(own.get("target_layer_ids") or TAPS) * width),
        "hidden_norm.weight": norm(width),
        "norm.weight": norm(width),
    }
    for n in range(config["num_hidden_layers"]):
        at = f"layers.{n}."
        found |= {at + "input_layernorm.weight": norm(width), at + "post_attention_layernorm.weight": norm(width)}
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            found[f"{at}self_attn.{name}_proj.weight"] = matrix(heads * HEAD, width)
        found[at + "self_attn.o_proj.weight"] = matrix(width, HEADS * HEAD)
        found |= {at + "self_attn.q_norm.weight": norm(HEAD), at + "self_attn.k_norm.weight": norm(HEAD)}
        found |= {at + "mlp.gate_proj.weight": matrix(inner, width), at + "mlp.up_proj.weight": matrix(inner, width)}
        found[at + "mlp.down_proj.weight"] = matrix(width, inner)
        if "selector_rank" in own:
            taps, group = own["conv_kernel_size"], own["conv_group_size"]
            for name in ("attention_conv", "mlp_conv"):
                found[f"{at}{name}.base_kernel"] = torch.randn(2, taps, width, generator=generator)
                found[f"{at}{name}.kernel_projection.weight"] = 0.5 * matrix(2 * taps * width // group, width)
    if "selector_rank" in own:
        rank = own["selector_rank"]
        found["candidate_selector.hidden_projection.weight"] = matrix(rank, width)
        for name in ("predecessor_codebook", "successor_codebook"):
            found[f"candidate_selector.{name}"] = torch.randn(config["vocab_size"], rank, generator=generator)
    return found


@dataclass
class Oracle:
    """A drafter over a target's table [V, W] and head [V, W]."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    table: Tensor
    head: Tensor
    _context: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].double()

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * self[name]

    def rotate(self, x: Tensor, position: int) -> Tensor:
        """One row [heads, head width], halves against each other over the whole head."""
        half = x.shape[-1] // 2
        angle = position * self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def key_and_value(self, x: Tensor, layer: int, position: int) -> tuple[Tensor, Tensor]:
        at = f"layers.{layer}.self_attn."
        key = self.norm((self[at + "k_proj.weight"] @ x).view(KV_HEADS, HEAD), at + "k_norm.weight")
        return self.rotate(key, position), (self[at + "v_proj.weight"] @ x).view(KV_HEADS, HEAD)

    def context(self, features: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
        """Per layer the key and value of each position, from taps [n, taps * W]."""
        rows = [self.norm(self["fc.weight"] @ row.double(), "hidden_norm.weight") for row in features]
        layers = range(self.config["num_hidden_layers"])
        return [[self.key_and_value(row, n, p) for p, row in enumerate(rows)] for n in layers]

    def block(self, features: Tensor, anchor: int, rows: int) -> Tensor:
        """What the head multiplies of each row, [rows, W]; the anchor stands at position len(features)."""
        start, past = len(features), self.context(features)
        ids = [anchor] + [self.config["dflash_config"]["mask_token_id"]] * (rows - 1)
        x = self.table[ids].double()
        for n in range(self.config["num_hidden_layers"]):
            at = f"layers.{n}."
            x = x + self.sublayer(
                x, n, "input_layernorm", "attention_conv", lambda y, n=n: self.mix(y, n, start, past[n])
            )
            x = x + self.sublayer(x, n, "post_attention_layernorm", "mlp_conv", lambda y, at=at: self.inner(y, at))
        return self.norm(x, "norm.weight")

    def logits(self, features: Tensor, anchor: int, rows: int) -> Tensor:
        return self.block(features, anchor, rows) @ self.head.double().T

    def sublayer(self, x: Tensor, n: int, norm: str, conv: str, run: Any) -> Tensor:
        normed = self.norm(x, f"layers.{n}.{norm}.weight")
        if f"layers.{n}.{conv}.base_kernel" not in self.tensors:
            return run(normed)
        base, change = self[f"layers.{n}.{conv}.base_kernel"], self[f"layers.{n}.{conv}.kernel_projection.weight"]
        group = self.config["dflash_config"]["conv_group_size"]

        def filtered(rows: Tensor, side: int) -> Tensor:
            out = torch.zeros_like(rows)
            for i in range(len(rows)):
                delta = (change @ normed[i]).view(2, base.shape[1], -1)
                for t in range(min(base.shape[1], i + 1)):
                    out[i] += (base[side, t] + delta[side, t].repeat_interleave(group)) * rows[i - t]
            return out

        return filtered(run(filtered(normed, 0)), 1)

    def mix(self, y: Tensor, n: int, start: int, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        at, kind = f"layers.{n}.self_attn.", (self.config.get("layer_types") or ["full_attention"] * (n + 1))[n]
        own = [self.key_and_value(row, n, start + i) for i, row in enumerate(y)]
        window = self.config["sliding_window"] if kind == "sliding_attention" else 1 << 30
        causal = self.config.get("is_causal", self.config["dflash_config"].get("causal", kind == "sliding_attention"))
        out = []
        for i, row in enumerate(y):
            query = self.norm((self[at + "q_proj.weight"] @ row).view(HEADS, HEAD), at + "q_norm.weight")
            query = self.rotate(query, start + i)
            last = i if causal else len(y) - 1
            low = max(0, start + i - (window - 1))
            seen = [*past, *own[: last + 1]][low:]
            heads = []
            for h in range(HEADS):
                keys, values = (torch.stack([pair[part][h // (HEADS // KV_HEADS)] for pair in seen]) for part in (0, 1))
                heads.append(torch.softmax(keys @ query[h] / math.sqrt(HEAD), 0) @ values)
            out.append(self[at + "o_proj.weight"] @ torch.cat(heads))
        return torch.stack(out)

    def inner(self, y: Tensor, at: str) -> Tensor:
        gate, up = (y @ self[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return (torch.nn.functional.silu(gate) * up) @ self[at + "mlp.down_proj.weight"].T

    def walk(self, hidden: Tensor, anchor: int) -> list[int]:
        """The greedy path of DFlash2 over rows [n, W] that guess."""
        own = self.config["dflash_config"]
        before, after = (self[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
        last, chosen = anchor, []
        for row in hidden:
            scores = self.head.double() @ row * own.get("output_multiplier", 1.0)
            if cap := own.get("final_logit_softcapping"):
                scores = cap * torch.tanh(scores / cap)
            best = sorted(range(VOCAB), key=lambda v: (-float(scores[v]), v))[: own["selector_top_k"]]
            seen = self["candidate_selector.hidden_projection.weight"] @ row
            edge = {v: float(scores[v] + (before[last] * seen * after[v]).sum()) for v in best}
            last = min(edge, key=lambda v: (-edge[v], v))
            chosen.append(last)
        return chosen
