"""The toy's mathematics in plain torch, written from notes/models.md 3.3 to 3.5; rows are [batch, time, width]."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.toy.shape import Parameters, Shape

Queries = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """Root mean square norm whose weight is stored less one."""
    return F.rms_norm(x, (x.shape[-1],), 1 + weight, epsilon)


def rotate(x: torch.Tensor, positions: torch.Tensor, rotary: int, theta: float) -> torch.Tensor:
    """Rotate the first `rotary` elements, halves against each other; positions [.., time] broadcast to x's."""
    frequency = theta ** (-torch.arange(0, rotary, 2, dtype=torch.float32) / rotary)
    angle = positions.to(torch.float32)[..., None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x.split([rotary // 2, rotary // 2, x.shape[-1] - rotary], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def queries(p: Parameters, shape: Shape, at: str, x: torch.Tensor, positions: torch.Tensor) -> Queries:
    """Rotated queries and keys, values, output gates; each [batch, heads, time, head width], keys repeated per head."""
    batch, time, _ = x.shape

    def heads(name: str, count: int, width: int) -> torch.Tensor:
        return F.linear(x, p[f"{at}{name}.weight"]).view(batch, time, count, width).transpose(1, 2)

    query, gate = heads("q_proj", shape.heads, 2 * shape.head_width).chunk(2, -1)
    key = heads("k_proj", shape.kv_heads, shape.head_width)
    value = heads("v_proj", shape.kv_heads, shape.head_width)
    query = rotate(norm(query, p[at + "q_norm.weight"]), positions, shape.rotary, shape.theta)
    key = rotate(norm(key, p[at + "k_norm.weight"]), positions, shape.rotary, shape.theta)
    group = shape.heads // shape.kv_heads
    return query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), gate


def gate_out(p: Parameters, at: str, mixed: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """The gated heads through the output matrix: [batch, time, width]."""
    rows = (mixed * torch.sigmoid(gate)).transpose(1, 2).flatten(2)
    return F.linear(rows, p[at + "o_proj.weight"])


def attention(p: Parameters, shape: Shape, at: str, x: torch.Tensor) -> torch.Tensor:
    query, key, value, gate = queries(p, shape, at, x, torch.arange(x.shape[1]))
    return gate_out(p, at, F.scaled_dot_product_attention(query, key, value, is_causal=True), gate)


def delta_net(p: Parameters, shape: Shape, at: str, x: torch.Tensor) -> torch.Tensor:
    """The gated delta net, chunk by chunk (models.md 3.4, last paragraph)."""
    batch, time, _ = x.shape
    mixed = F.linear(x, p[at + "in_proj_qkv.weight"])
    z = F.linear(x, p[at + "in_proj_z.weight"])
    beta = torch.sigmoid(F.linear(x, p[at + "in_proj_b.weight"]))
    step = F.softplus(F.linear(x, p[at + "in_proj_a.weight"]) + p[at + "dt_bias"])
    decay = -p[at + "A_log"].exp() * step
    taps = p[at + "conv1d.weight"][:, 0]
    padded = F.pad(mixed, (0, 0, shape.kernel - 1, 0))
    mixed = F.silu(sum(padded[:, j : j + time] * taps[:, j] for j in range(shape.kernel)))
    out = _chunks(shape, mixed, beta, decay)
    out = F.rms_norm(out, (shape.delta_width,), p[at + "norm.weight"], shape.epsilon)
    out = out * F.silu(z).view(batch, time, shape.value_heads, shape.delta_width)
    return F.linear(out.flatten(2), p[at + "out_proj.weight"])


def _chunks(shape: Shape, mixed: torch.Tensor, beta: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """The recurrence over [batch, time, ..], as [batch, time, value heads, width]."""
    batch, time, _ = mixed.shape
    size, spare = shape.chunk, -time % shape.chunk
    if spare:  # rows that neither decay nor write
        mixed, beta, decay = (F.pad(t, (0, 0, 0, spare)) for t in (mixed, beta, decay))

    def cut(t: torch.Tensor, heads: int) -> torch.Tensor:  # [batch, heads, chunks, size, width]
        return t.reshape(batch, -1, size, heads, t.shape[-1] // heads).permute(0, 3, 1, 2, 4)

    query, key, value = mixed.split([shape.keys, shape.keys, shape.values], -1)
    query, key, value = cut(query, shape.key_heads), cut(key, shape.key_heads), cut(value, shape.value_heads)
    beta, total = cut(beta, shape.value_heads), cut(decay, shape.value_heads)[..., 0].cumsum(-1)
    query = query * torch.rsqrt(query.square().sum(-1, keepdim=True) + 1e-6) * shape.delta_width**-0.5
    key = key * torch.rsqrt(key.square().sum(-1, keepdim=True) + 1e-6)
    again = shape.value_heads // shape.key_heads
    seen = (query @ key.mT).repeat_interleave(again, 1)
    alike = (key @ key.mT).repeat_interleave(again, 1)
    query, key = query.repeat_interleave(again, 1), key.repeat_interleave(again, 1)
    lower = torch.ones(size, size, dtype=torch.bool).tril()
    fade = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -1e9).exp()
    grown = total[..., None].exp()
    right = torch.cat([value * beta, key * beta * grown], -1)
    solved = torch.linalg.solve_triangular((alike * fade * beta).tril(-1), right, upper=False, unitriangular=True)
    fresh, read = solved.split([shape.delta_width, shape.delta_width], -1)
    last = (key * (total[..., -1:] - total)[..., None].exp()).mT
    keep = total[..., -1].exp()[..., None, None]
    state = torch.zeros(batch, shape.value_heads, shape.delta_width, shape.delta_width)
    out = []
    # unbind, not an index: the gradient of an index is a full tensor of zeros for each chunk
    for parts in zip(*(t.unbind(2) for t in (fresh, read, query * grown, seen * fade, last, keep)), strict=True):
        new, old, asks, sees, writes, kept = parts
        delta = new - old @ state
        out.append(asks @ state + sees @ delta)
        state = state * kept + writes @ delta
    rows = torch.stack(out, 2).permute(0, 2, 3, 1, 4)
    return rows.reshape(batch, time + spare, shape.value_heads, shape.delta_width)[:, :time]


def mixture(p: Parameters, shape: Shape, at: str, x: torch.Tensor, balance: list[torch.Tensor] | None) -> torch.Tensor:
    """Routed experts and the shared one. `balance` collects how unevenly the experts are used (1 = evenly).

    Every expert computes every row and the gate makes the unchosen ones zero: on a CPU three large products beat a
    gather and many small ones.
    """
    rows = x.flatten(0, -2)
    chance = F.linear(rows, p[at + "gate.weight"]).softmax(-1)
    best, index = chance.topk(shape.chosen, -1)
    gates = torch.zeros_like(chance).scatter(1, index, best / best.sum(-1, keepdim=True))
    if balance is not None:
        share = (gates.detach() > 0).float().mean(0) / shape.chosen
        balance.append(shape.experts * (share * chance.mean(0)).sum())
    inner = F.linear(rows, p[at + "experts.gate_up_proj"].flatten(0, 1)).view(-1, shape.experts, 2, shape.expert_width)
    inner = F.silu(inner[:, :, 0]) * inner[:, :, 1] * gates[..., None]
    routed = inner.flatten(1) @ p[at + "experts.down_proj"].transpose(1, 2).flatten(0, 1)
    shared = at + "shared_expert."
    hidden = F.silu(F.linear(rows, p[shared + "gate_proj.weight"])) * F.linear(rows, p[shared + "up_proj.weight"])
    own = F.linear(hidden, p[shared + "down_proj.weight"])
    own = own * torch.sigmoid(F.linear(rows, p[at + "shared_expert_gate.weight"]))
    return (routed + own).view_as(x)


def trunk(
    p: Parameters, shape: Shape, ids: torch.Tensor, balance: list[torch.Tensor] | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The final normed rows [batch, time, width], and the residual after each layer (what drafters look at)."""
    hidden = F.embedding(ids, p["model.embed_tokens.weight"])
    taps = []
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        x = norm(hidden, p[at + "input_layernorm.weight"])
        if shape.attends(layer):
            hidden = hidden + attention(p, shape, at + "self_attn.", x)
        else:
            hidden = hidden + delta_net(p, shape, at + "linear_attn.", x)
        x = norm(hidden, p[at + "post_attention_layernorm.weight"])
        hidden = hidden + mixture(p, shape, at + "mlp.", x, balance)
        taps.append(hidden)
    return norm(hidden, p["model.norm.weight"]), taps


def logits(p: Parameters, rows: torch.Tensor) -> torch.Tensor:
    return F.linear(rows, p["lm_head.weight"])
