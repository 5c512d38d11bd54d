"""The toy's MTP head: an attention layer that guesses the token after next, chained to go on (models.md 3.9)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.toy.layers import gate_out, mixture, norm, queries
from tests.support.toy.shape import Parameters, Shape, make_layer, matrix

LAYER = "mtp.layers.0."


def make_mtp(shape: Shape, trunk: Parameters) -> Parameters:
    """First values of the head; its last norm starts as the trunk's, whose output matrix it shares."""
    return {
        "mtp.fc.weight": matrix(shape.width, 2 * shape.width),
        "mtp.pre_fc_norm_embedding.weight": torch.zeros(shape.width),
        "mtp.pre_fc_norm_hidden.weight": torch.zeros(shape.width),
        "mtp.norm.weight": trunk["model.norm.weight"].detach().clone(),
        **make_layer(shape, LAYER, attends=True, depth=2),
    }


def drafts(
    trunk: Parameters,
    head: Parameters,
    shape: Shape,
    ids: torch.Tensor,
    hidden: torch.Tensor,
    count: int,
    balance: list[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """`count` chained drafts from every slot at once.

    ids     i64 [batch, time]; hidden: the trunk's final normed rows of them, [batch, time, width]
    Returns y_1 .. y_count, each [batch, time - count, width]: y_s at slot t guesses token t + s + 1. Step s eats token
    t + s; step 1 with the trunk's row t, the later ones with y of the step before. As in an engine's cache, a chained
    step sees the true slots up to t and the chained slots of its own start, not those of other starts.
    """
    time = hidden.shape[1] - count
    slots = torch.arange(time)
    rows = hidden[:, :time]
    true_key = true_value = torch.empty(0)
    own: list[tuple[torch.Tensor, torch.Tensor]] = []
    found = []
    for step in range(1, count + 1):
        token = F.embedding(ids[:, step : step + time], trunk["model.embed_tokens.weight"])
        both = [
            norm(token, head["mtp.pre_fc_norm_embedding.weight"]),
            norm(rows, head["mtp.pre_fc_norm_hidden.weight"]),
        ]
        x = F.linear(torch.cat(both, -1), head["mtp.fc.weight"])
        normed = norm(x, head[LAYER + "input_layernorm.weight"])
        query, key, value, gate = queries(head, shape, LAYER + "self_attn.", normed, slots + step - 1)
        if step == 1:
            true_key, true_value = key, value
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            own.append((key, value))
            mixed = _attend(query, true_key, true_value, own)
        x = x + gate_out(head, LAYER + "self_attn.", mixed, gate)
        x = x + mixture(head, shape, LAYER + "mlp.", norm(x, head[LAYER + "post_attention_layernorm.weight"]), balance)
        rows = norm(x, head["mtp.norm.weight"])
        found.append(rows)
    return found


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, own: list[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """Attention over the true slots up to each one's own and over its own chained slots."""
    time = key.shape[-2]
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    scores = [(query @ key.mT).masked_fill(later, -1e9)]
    scores += [(query * chained).sum(-1, keepdim=True) for chained, _ in own]
    shares = (torch.cat(scores, -1) * query.shape[-1] ** -0.5).softmax(-1)
    mixed = shares[..., :time] @ value
    for at, (_, chained) in enumerate(own):
        mixed = mixed + shares[..., time + at : time + at + 1] * chained
    return mixed
