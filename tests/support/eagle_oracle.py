"""EAGLE-3 in plain torch f64, row by row, written from notes/speculative.md 4.4; random drafters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

WIDTH, VOCAB, SMALL, HEADS, KV_HEADS, HEAD = 64, 128, 40, 4, 2, 32
LAYERS, TAPS = 4, (0, 1, 2)
EPS, THETA = 1e-5, 10000.0


def config_json(**changes: Any) -> dict[str, Any]:
    """A config.json in EAGLE's own layout; None removes a key."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": VOCAB,
        "draft_vocab_size": SMALL,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS), "use_aux_hidden_state": True},
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def random_tensors(seed: int = 0, embedding: bool = True) -> dict[str, Tensor]:
    """Every tensor under its published name; the drafter's vocabulary is a random choice of the target's."""
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, cols: int) -> Tensor:
        return torch.randn(rows, cols, generator=draw) / math.sqrt(cols)

    def norm() -> Tensor:
        return 1 + 0.3 * torch.randn(WIDTH, generator=draw)

    chosen = torch.randperm(VOCAB, generator=draw)[:SMALL].sort().values
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[chosen] = True
    found = {
        "d2t": chosen - torch.arange(SMALL),
        "t2d": mask,
        "fc.weight": matrix(WIDTH, 3 * WIDTH),
        "norm.weight": norm(),
        "lm_head.weight": 3 * matrix(SMALL, WIDTH),
        "midlayer.self_attn.o_proj.weight": matrix(WIDTH, HEADS * HEAD),
        "midlayer.mlp.gate_proj.weight": matrix(96, WIDTH),
        "midlayer.mlp.up_proj.weight": matrix(96, WIDTH),
        "midlayer.mlp.down_proj.weight": matrix(WIDTH, 96),
    }
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        found[f"midlayer.{name}.weight"] = norm()
    for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        found[f"midlayer.self_attn.{name}_proj.weight"] = matrix(heads * HEAD, 2 * WIDTH)
    return found | ({"embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=draw)} if embedding else {})


@dataclass
class Oracle:
    """A drafter over all rows at once, without a cache: every draft runs the whole sequence again."""

    tensors: Mapping[str, Tensor]
    table: Tensor  # the target's embedding, where the drafter stores none
    norm_output: bool = False

    def drafts(self, tokens: list[int], taps: Tensor, depth: int) -> tuple[list[int], Tensor]:
        """Tokens of the target, and logits f64 [depth, SMALL]. `taps` [n, 3 W] of all `tokens` but the last."""
        states = [row @ self._get("fc").T for row in taps.double()]
        taken, found, logits = list(tokens[1:]), [], []
        for _ in range(depth):
            left = self._layer(self._table()[torch.tensor(taken)], torch.stack(states))[-1]
            normed = _norm(left, self._get("norm"))
            logits.append(normed @ self._get("lm_head").T)
            own = int(logits[-1].argmax())
            found.append(own + int(self.tensors["d2t"][own]))
            states.append(normed if self.norm_output else left)
            taken.append(found[-1])
        return found, torch.stack(logits)

    def _get(self, name: str) -> Tensor:
        return self.tensors[f"{name}.weight"].double()

    def _table(self) -> Tensor:
        return self.tensors.get("embed_tokens.weight", self.table).double()

    def _layer(self, embedded: Tensor, states: Tensor) -> Tensor:
        def own(name: str) -> Tensor:
            return self._get(f"midlayer.{name}")

        both = torch.cat([_norm(embedded, own("input_layernorm")), _norm(states, own("hidden_norm"))], -1)
        q, k, v = (both @ own(f"self_attn.{name}_proj").T for name in "qkv")
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(0, 1) for part in (q, k, v))
        q, k = _rotated(q), _rotated(k)
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 0) for part in (k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(HEAD)
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        states = states + mixed.transpose(0, 1).flatten(1) @ own("self_attn.o_proj").T
        normed = _norm(states, own("post_attention_layernorm"))
        inner = torch.nn.functional.silu(normed @ own("mlp.gate_proj").T) * (normed @ own("mlp.up_proj").T)
        return states + inner @ own("mlp.down_proj").T


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def _rotated(x: Tensor) -> Tensor:
    """x [heads, n, HEAD], turned by position; halves are pairs."""
    angles = torch.arange(x.shape[1])[:, None] / THETA ** (torch.arange(0, HEAD, 2).double() / HEAD)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)
