"""argmax: the first of the largest, and its share of the softmax."""

from __future__ import annotations

import pytest
import torch

from tests.support.op_cases import random, run


def argmax(ops, logits, with_share=True):
    out = torch.full((len(logits),), -1, dtype=torch.int32)
    share = torch.full((len(logits),), -1.0) if with_share else None
    run(ops, lambda: ops.argmax(logits, out, share))
    return out, share


@pytest.mark.parametrize("values", [[3.0, 9.0, 9.0, 1.0], [-1.0] * 37, [float("-inf")] * 20 + [0.0], [5.0]])
def test_the_lowest_index_of_the_maximum(ops, values):
    out, _ = argmax(ops, torch.tensor([values]))
    assert out.item() == values.index(max(values))
    assert torch.equal(argmax(ops, torch.tensor([values]), with_share=False)[0], out)


@pytest.mark.parametrize("count", [1, 5, 33])
@pytest.mark.parametrize("vocab", [8, 1001, 4096])
def test_the_share_is_the_softmax_of_the_maximum(ops, vocab, count):
    logits = random(count, vocab, scale=8.0)
    out, share = argmax(ops, logits)
    wanted = logits.double().softmax(-1).max(-1)
    assert torch.equal(out.long(), wanted.indices)
    torch.testing.assert_close(share.double(), wanted.values, atol=1e-6, rtol=2e-5)


def test_a_row_of_nan_gives_the_first_id_and_no_share(ops):
    out, share = argmax(ops, torch.full((1, 40), float("nan")))
    assert out.item() == 0 and share.isnan().all()
