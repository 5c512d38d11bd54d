"""A wrong layout is noticed on the first long prompt, a right one is not complained of."""

from __future__ import annotations

import numpy as np

from strata_engine.draft.layout import LEAST_TOKENS, PROBES, Layouts
from strata_engine.models.dflash_config import read_dflash
from strata_kernels.reference.ops import ReferenceOps
from tests.support.dflash_case import Case
from tests.support.dflash_oracle import BLOCK, config_json
from tests.support.tiny_models import MemorySource


def layouts(from_anchor: bool) -> Layouts:
    return Layouts(read_dflash(MemorySource({}, config_json()), from_anchor=from_anchor))


def tried(from_anchor: bool, truth: str, share: float = 1.0) -> list[str]:
    """What is said after a prompt of which a drafter of layout `truth` guesses this share right."""
    found, tokens = layouts(from_anchor), list(range(200))
    random = np.random.default_rng(0)
    for at in found.anchors(0, 199):
        best = np.arange(at, at + BLOCK) + (truth == "B")
        found.count(tokens, at, np.where(random.random(BLOCK) < share, best, -1))
    assert found.tried == PROBES * (BLOCK - 1)
    return found.notes()


def test_the_other_layout_is_named_when_it_guesses_clearly_better():
    [note] = tried(from_anchor=False, truth="B", share=0.6)
    assert "taken as A" in note and '"sample_from_anchor": true' in note
    [note] = tried(from_anchor=True, truth="A", share=0.6)
    assert "taken as B" in note and '"sample_from_anchor": false' in note


def test_nothing_is_said_of_the_right_one_or_without_evidence():
    assert tried(from_anchor=False, truth="A", share=0.6) == []
    assert tried(from_anchor=True, truth="B", share=0.6) == []
    assert tried(from_anchor=False, truth="B", share=0.05) == []


def test_one_long_prompt_is_tried_and_its_context_is_as_if_it_had_not_been():
    case, plain = Case(ReferenceOps(), rows=128), Case(ReferenceOps(), rows=128)
    plain.drafter._layouts.done = True
    found = case.propose(case.ready("a", 80))
    assert found == plain.propose(plain.ready("a", 80))
    counts = case.drafter._layouts
    assert counts.done and counts.tried == PROBES * (BLOCK - 1)
    case.propose(case.ready("b", 80))
    assert counts.tried == PROBES * (BLOCK - 1)
    assert case.drafter.report()["layout"] == "A"


def test_short_prompts_are_left_alone():
    case = Case(ReferenceOps())
    case.propose(case.ready("a", LEAST_TOKENS - 1))
    assert not case.drafter._layouts.done
