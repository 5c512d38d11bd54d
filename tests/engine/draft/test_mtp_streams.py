"""The draft head of Flash-Next as a drafter: streams are chained; drafts do not depend on what was guessed before."""

from __future__ import annotations

import random

import pytest
import torch

from strata_engine.draft.base import DraftContext
from strata_engine.draft.mtp import MtpDrafter, open_mtp
from strata_engine.errors import NotFound
from strata_engine.models.exp_draft import load_stream_draft
from strata_engine.models.load import load_model
from strata_engine.models.qwen4_exp import Qwen4Exp
from strata_engine.text.base import TextRules
from strata_kernels.native import NativeOps
from strata_kernels.ops import Ops
from tests.engine.models.test_exp_draft import Case
from tests.support.drafting import Stage
from tests.support.engines import EngineConfig
from tests.support.tiny_models import memory_source

DEPTH = 3


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def make_stage(case: Case, ops: Ops, rows: int = 16) -> Stage:
    source = case.source()
    loaded = load_model(source, ops)
    assert isinstance(loaded.model, Qwen4Exp)
    head = load_stream_draft(source, loaded.model, ops)
    assert head is not None
    return Stage(loaded.model, MtpDrafter(head, DEPTH), ops, rows=rows)


def chain(case: Case, tokens: list[int], depth: int) -> list[int]:
    """After the reference of the head's own tests: its layer reads all rows again for every further guess."""
    found: list[int] = []
    with torch.no_grad():
        streams, taken = case._seen(case.model, torch.tensor([tokens[:-1]])), list(tokens[1:])
        for _ in range(depth):
            result, logits = case._draft(streams, taken)
            found.append(int(logits[-1].argmax()))
            streams, taken = torch.cat([streams, result[-1:]]), [*taken, found[-1]]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_chain_equals_the_reference_after_any_rounds(case, seed):
    draw = random.Random(seed)
    tokens = draw.choices(range(128), k=30)
    stage, at = make_stage(case, NativeOps(1)), 12
    sequence = stage.start("one", tokens[:11])
    stage.read(sequence, tokens[11], chunk=5)
    while at < len(tokens):
        stage.propose(draw.randint(1, DEPTH), sequence)
        size = min(draw.randint(1, DEPTH + 1), len(tokens) - at)
        stage.advance((sequence, tokens[at : at + size]))
        at += size
    found = stage.propose(DEPTH, sequence)
    assert list(found[0].tokens) == chain(case, tokens, DEPTH)
    fresh = make_stage(case, NativeOps(1), rows=32)
    other = fresh.start("other", tokens[:-1])
    fresh.read(other, tokens[-1], chunk=32)
    assert fresh.propose(DEPTH, other) == found


def test_the_head_is_found_in_the_targets_own_files_or_said_to_be_missing(case):
    ops, config, rules = NativeOps(1), EngineConfig(), TextRules(None, None)
    source = case.source()
    drafter = open_mtp(DraftContext(load_model(source, ops).model, source, ops, config, rules))
    assert drafter.report()["states_width"] == 4 * 64
    plain = memory_source(case.model)
    with pytest.raises(NotFound, match="no draft head"):
        open_mtp(DraftContext(load_model(plain, ops).model, plain, ops, config, rules))
