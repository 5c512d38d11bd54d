"""The toy's DFlash drafter: two layers that fill a block of masks in one pass (speculative.md 1, layout A)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tests.support.toy.layers import rotate
from tests.support.toy.shape import Parameters, Shape, matrix


@dataclass(frozen=True)
class Drafter:
    """A block is the anchor and block - 1 masks; `taps` are the trunk's layers whose residual it looks at."""

    layers: int = 2
    inner: int = 512
    block: int = 8
    theta: float = 10_000.0
    taps: tuple[int, ...] = (0, 1, 3)


def make_dflash(drafter: Drafter, shape: Shape, trunk: Parameters) -> Parameters:
    """First values. Its norms are plain (1 means 1), unlike the trunk's."""
    width, queries, keys = shape.width, shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    out = (2 * drafter.layers) ** -0.5
    values = {
        "fc.weight": matrix(width, len(drafter.taps) * width),
        "hidden_norm.weight": torch.ones(width),
        "norm.weight": 1 + trunk["model.norm.weight"].detach(),
    }
    for layer in range(drafter.layers):
        at = f"layers.{layer}."
        values |= {
            at + "input_layernorm.weight": torch.ones(width),
            at + "post_attention_layernorm.weight": torch.ones(width),
            at + "self_attn.q_proj.weight": matrix(queries, width),
            at + "self_attn.k_proj.weight": matrix(keys, width),
            at + "self_attn.v_proj.weight": matrix(keys, width),
            at + "self_attn.o_proj.weight": matrix(width, queries, out),
            at + "self_attn.q_norm.weight": torch.full((shape.head_width,), 1.2),
            at + "self_attn.k_norm.weight": torch.full((shape.head_width,), 1.2),
            at + "mlp.gate_proj.weight": matrix(drafter.inner, width),
            at + "mlp.up_proj.weight": matrix(drafter.inner, width),
            at + "mlp.down_proj.weight": matrix(width, drafter.inner, out),
        }
    return values


@dataclass(frozen=True)
class Blocks:
    """What one pass works on: anchors i64 [batch, count], positions of the tokens that start a block."""

    anchors: torch.Tensor
    mask_id: int


def fill(
    trunk: Parameters,
    p: Parameters,
    drafter: Drafter,
    shape: Shape,
    ids: torch.Tensor,
    taps: list[torch.Tensor],
    blocks: Blocks,
) -> torch.Tensor:
    """Rows of all blocks, [batch, anchors, block, width]; row i guesses the token at anchor + i, row 0 nothing.

    A block sees the context strictly before its anchor, and all of its own rows in both directions.
    """
    batch, time = ids.shape
    count, size = blocks.anchors.shape[1], drafter.block
    offsets = torch.arange(size)
    positions = (blocks.anchors[..., None] + offsets).flatten(1)  # [batch, rows]
    tokens = torch.full((batch, count, size), blocks.mask_id)
    tokens[:, :, 0] = ids.gather(1, blocks.anchors)
    hidden = F.embedding(tokens.flatten(1), trunk["model.embed_tokens.weight"])
    context = F.linear(torch.cat([taps[layer] for layer in drafter.taps], -1), p["fc.weight"])
    context = _norm(context, p["hidden_norm.weight"])
    before = torch.arange(time) < blocks.anchors[..., None]  # [batch, anchors, time]
    before = before.repeat_interleave(size, 1)
    block = torch.arange(count).repeat_interleave(size)
    inside = (block[:, None] == block).expand(batch, -1, -1)
    allowed = torch.cat([before, inside], -1)[:, None]
    for layer in range(drafter.layers):
        at = f"layers.{layer}."
        x = _norm(hidden, p[at + "input_layernorm.weight"])
        hidden = hidden + _attention(p, at + "self_attn.", drafter, shape, (x, context), positions, allowed)
        x = _norm(hidden, p[at + "post_attention_layernorm.weight"])
        inner = F.silu(F.linear(x, p[at + "mlp.gate_proj.weight"])) * F.linear(x, p[at + "mlp.up_proj.weight"])
        hidden = hidden + F.linear(inner, p[at + "mlp.down_proj.weight"])
    return _norm(hidden, p["norm.weight"]).view(batch, count, size, -1)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def _attention(
    p: Parameters,
    at: str,
    drafter: Drafter,
    shape: Shape,
    inputs: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    allowed: torch.Tensor,
) -> torch.Tensor:
    """Block rows ask; context rows (not normed again, no queries) and block rows answer."""
    x, context = inputs

    def heads(rows: torch.Tensor, name: str, count: int) -> torch.Tensor:
        return F.linear(rows, p[at + name]).view(*rows.shape[:2], count, shape.head_width).transpose(1, 2)

    def turned(rows: torch.Tensor, name: str, count: int, where: torch.Tensor) -> torch.Tensor:
        normed = _norm(heads(rows, name + "_proj.weight", count), p[at + name + "_norm.weight"])
        return rotate(normed, where, shape.head_width, drafter.theta)

    own = positions[:, None]
    query = turned(x, "q", shape.heads, own)
    past = torch.arange(context.shape[1])
    key = torch.cat([turned(context, "k", shape.kv_heads, past), turned(x, "k", shape.kv_heads, own)], 2)
    value = torch.cat([heads(rows, "v_proj.weight", shape.kv_heads) for rows in (context, x)], 2)
    group = shape.heads // shape.kv_heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
    return F.linear(mixed.transpose(1, 2).flatten(2), p[at + "o_proj.weight"])
