"""DFlash2 against an oracle: convolutions over block rows, the walk over the best tokens, and that none of it leaks."""

from __future__ import annotations

import pytest
import torch

from strata_kernels.native import NativeOps
from strata_kernels.reference.ops import ReferenceOps
from tests.support.dflash_case import Case, load
from tests.support.dflash_oracle import SECOND, VOCAB, config_json, random_tensors

SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9, "is_causal": False}


@pytest.fixture(params=["reference", "native"])
def ops(request):
    return ReferenceOps() if request.param == "reference" else NativeOps(2)


def make(ops, own=None, **changes):
    return Case(ops, {**changes, "own": {**SECOND, **(own or {})}})


def logits_of(case):
    return torch.from_numpy(case.ops.host(case.drafter._blocks._logits).copy())


@pytest.mark.parametrize("changes", [{}, SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize(
    "own", [{}, {"output_multiplier": 0.2, "final_logit_softcapping": 3.0}], ids=["plain", "capped"]
)
@pytest.mark.parametrize("length", [1, 20])
def test_every_row_and_the_walk_equal_the_oracle(ops, changes, own, length):
    case = make(ops, own, **changes)
    sequence = case.ready("a", length)
    [found] = case.propose(sequence)
    logits, tokens = case.wanted(sequence)
    assert torch.allclose(logits_of(case)[: len(logits)].double(), logits, atol=2e-4)
    assert found.tokens == tuple(tokens)
    assert found.tokens != tuple(logits.argmax(-1).tolist()), "the walk changed nothing; draw another case"
    assert all(0 < share <= 1 for share in found.confidence)


def test_convolutions_that_pass_through_are_the_first_version_bit_by_bit(ops):
    first = Case(ops)
    tensors = dict(first.tensors)
    config = config_json(own=SECOND, architectures=["DFlash2DraftModel"])
    more = random_tensors(config)
    for name, value in more.items():
        if name.endswith("base_kernel"):
            tensors[name] = torch.zeros_like(value)
            tensors[name][:, 0] = 1
        elif name.endswith("kernel_projection.weight"):
            tensors[name] = torch.zeros_like(value)
        elif name not in tensors:
            tensors[name] = value
    second = Case(ops)
    second.drafter._net = load(ops, config, tensors, second.target)
    second.drafter.bind(second.drafter._room)
    for case in (first, second):
        case.propose(case.ready("a", 20))
    assert torch.equal(logits_of(first), logits_of(second))


def test_blocks_of_a_batch_do_not_leak_into_each_other(ops):
    case = make(ops)
    sequences = [case.ready(name, length, seed=length) for name, length in (("a", 5), ("b", 33), ("c", 16))]
    together = case.propose(*sequences)
    alone = [case.propose(one)[0] for one in sequences]
    assert together == alone


def test_the_walk_sums_to_one_over_its_candidates():
    case = make(ReferenceOps())
    selector = case.net.selector
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1)).numpy()
    ids, values = selector.candidates(logits)
    assert ids.shape == (1, SECOND["selector_top_k"])
    assert set(ids[0]) == set(torch.from_numpy(logits[0]).topk(SECOND["selector_top_k"]).indices.tolist())
    view = torch.zeros(1, SECOND["selector_rank"]).numpy()  # pairs do not count
    tokens, shares = selector.walk(3, logits, view)
    assert tokens == [int(logits.argmax())]
    assert abs(shares[0] - float(torch.softmax(torch.from_numpy(values[0]), 0).max())) < 1e-6
