"""The toy's task, mathematics and trainer; the trained files themselves are tested in test_fixture.py."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

from tests.support.toy import sums
from tests.support.toy.export import toy_config
from tests.support.toy.layers import logits, trunk
from tests.support.toy.mtp import drafts, make_mtp
from tests.support.toy.optimise import Recipe, Trainer, orthogonal
from tests.support.toy.shape import Parameters, Shape, make_trunk

SMALL = Shape(vocabulary=96, width=64, heads=4, kv_heads=2, head_width=32, rotary=16, key_heads=2, value_heads=4,
              delta_width=16, experts=8, chosen=2, expert_width=32, shared_width=48)  # fmt: skip


def small_trunk(seed: int = 3) -> Parameters:
    """Every parameter drawn: norms at their first value would hide faults."""
    torch.manual_seed(seed)
    return {n: v + 0.1 * torch.randn_like(v) if v.ndim == 1 else v for n, v in make_trunk(SMALL).items()}


def transformers_model(values: Parameters):
    from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    config = {k: v for k, v in toy_config(SMALL, [5, 6], mtp=False).items() if k not in ("architectures", "model_type")}
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**config)).float().eval()
    model.load_state_dict(values)
    return model


@pytest.mark.parametrize("operation", "+-")
def test_the_worked_steps_are_right(operation):
    for a in range(100):
        for b in range(a + 1 if operation == "-" else 100):
            *shown, tens = [int(n) for n in re.findall(r"= (\d+)", sums.steps(a, b, operation))]
            result = a + b if operation == "+" else a - b
            assert 10 * tens + shown[-1] % 10 == result


def test_no_held_out_pair_is_trained_on():
    rng = random.Random(1)
    for of_test in (True, False):
        for _ in range(2000):
            a, b = (int(n) for n in re.findall(r"\d+", sums.draw(rng, of_test).steps)[:2])
            assert sums.held_out(a, b) == sums.held_out(b, a) == of_test
    assert 0.05 < sum(sums.held_out(a, b) for a in range(100) for b in range(100)) / 10_000 < 0.15


@pytest.mark.parametrize("tokens", [1, 31, 64, 75])
def test_logits_equal_transformers(tokens):
    values = small_trunk()
    ids = torch.randint(0, SMALL.vocabulary, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    with torch.no_grad():
        theirs = transformers_model(values)(ids).logits
        ours = logits(values, trunk(values, SMALL, ids)[0])
    assert (theirs - ours).abs().max() < 2e-5


def test_chained_drafts_equal_a_cache_that_is_fed_step_by_step():
    values = small_trunk()
    torch.manual_seed(4)
    head = {n: v + 0.1 * torch.randn_like(v) if v.ndim == 1 else v for n, v in make_mtp(SMALL, values).items()}
    ids = torch.randint(0, SMALL.vocabulary, (1, 12))
    with torch.no_grad():
        hidden, _ = trunk(values, SMALL, ids)
        found = drafts(values, head, SMALL, ids, hidden, 3)
        # A second draft from slot 4 as an engine makes it: true rows up to slot 4, then the first draft's row.
        rows = torch.cat([hidden[:, :5], found[0][:, 4:5]], 1)
        padded = torch.cat([rows, rows[:, :1]], 1)
        again = drafts(values, head, SMALL, ids[:, :7], padded, 1)[0]
    assert (again[0, 5] - found[1][0, 4]).abs().max() < 1e-5


def test_orthogonal_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((32, 48), (48, 32), (3, 16, 40)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(*shape)))
        assert 0.3 < values.min() and values.max() < 1.4


def train(steps: int, upto: int, folder: Path) -> tuple[Parameters, list[float]]:
    values = small_trunk()
    losses = []

    def loss(step: int) -> torch.Tensor:
        ids = torch.randint(0, SMALL.vocabulary, (2, 17), generator=torch.Generator().manual_seed(step))
        rows = logits(values, trunk(values, SMALL, ids[:, :-1])[0])
        found = torch.nn.functional.cross_entropy(rows.flatten(0, 1), ids[:, 1:].flatten())
        losses.append(found.item())
        if step == upto:
            raise KeyboardInterrupt
        return found

    trainer = Trainer("small", values, Recipe(steps, warm=2), loss, lambda: "", folder / "state.pt", lambda _: None)
    trainer.save_every_s = 0
    try:
        trainer.run()
    except KeyboardInterrupt:
        losses.pop()
    return values, losses


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole, losses = train(4, 9, tmp_path / "whole")
    _, first = train(4, 2, tmp_path / "parts")
    parts, second = train(4, 9, tmp_path / "parts")
    assert first + second == losses and len(first) == 2
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
