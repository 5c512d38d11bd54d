"""What a forward leaves for drafters, against transformers: streams after layers, rows after the final norm."""

from __future__ import annotations

import random

import pytest
import torch

from strata_engine.core.sequence import Hold
from strata_engine.draft.base import Wants
from tests.support.forward import Runner
from tests.support.tiny_exp import tiny_exp
from tests.support.tiny_models import FAMILIES, memory_source, tiny_model

IDS = random.Random(8).choices(range(6, 128), k=40)


def seen_by(model, modules: dict[str, torch.nn.Module], before: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """The output of each module for IDS, [rows, ...]; of those in `before` the input."""
    found: dict[str, torch.Tensor] = {}

    def note(name):
        def hook(_, args, kwargs, output):
            first = args[0] if args else kwargs["hidden_states"]
            value = first if name in before else output
            found[name] = (value[0] if isinstance(value, tuple) else value)[0].clone()

        return hook

    hooks = [module.register_forward_hook(note(name), with_kwargs=True) for name, module in modules.items()]
    with torch.no_grad():
        model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    return found


def features_of(source, ops, wants: Wants, chunks: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(final, taps, logits of the last row) of IDS in chunks."""
    runner, hold, parts, at = Runner(source, ops, wants=wants), Hold(), [], 0
    logits = None
    for size in chunks:
        logits = runner.executor.run([runner.span(hold, IDS[at : at + size], 1)])
        left = runner.executor.features(size)
        parts.append([torch.tensor(ops.host(array)) for array in (left.final, left.taps)])
        at += size
    final, taps = (torch.cat(part) for part in zip(*parts, strict=True))
    return final, taps, torch.tensor(logits[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_taps_and_final_rows_equal_transformers(family, ops):
    model = tiny_model(family)
    layers = model.model.layers
    taps = (0, len(layers) - 1)
    wanted = seen_by(model, {"first": layers[0], "last": layers[-1], "final": model.model.norm})
    final, tapped, logits = features_of(memory_source(model), ops, Wants(True, taps), [17, 1, 22])
    assert (final - wanted["final"]).abs().max() <= 1e-4
    assert (tapped - torch.cat([wanted["first"], wanted["last"]], dim=1)).abs().max() <= 1e-4
    plain = Runner(memory_source(model), ops)
    hold = Hold()
    for piece in (IDS[:17], IDS[17:18]):
        plain.executor.run([plain.span(hold, piece, 1)])
    assert torch.equal(torch.tensor(plain.executor.run([plain.span(hold, IDS[18:], 1)])[0]), logits)


def test_of_several_streams_a_tap_is_what_the_next_layer_reads_and_the_final_row_has_all(ops):
    model = tiny_exp()
    layers = model.model.layers
    mixers = {str(n): getattr(layer, "linear_attn", None) or layer.self_attn for n, layer in enumerate(layers)}
    modules = {**mixers, "head": model.lm_head, "streams": layers[-1]}
    wanted = seen_by(model, modules, before=(*mixers, "head"))
    taps = (0, 1, len(layers) - 1)
    final, tapped, _ = features_of(memory_source(model), ops, Wants(True, taps), [17, 1, 22])
    assert (tapped - torch.cat([wanted["1"], wanted["2"], wanted["head"]], dim=1)).abs().max() <= 1e-4
    assert (final - wanted["streams"].reshape(len(IDS), -1)).abs().max() <= 1e-4


def test_a_drafter_that_wants_only_taps_gets_no_final_row(ops):
    runner = Runner(memory_source(tiny_model("llama")), ops, wants=Wants(taps=(1,)))
    runner.executor.run([runner.span(Hold(), IDS, 0)])
    left = runner.executor.features(len(IDS))
    assert left.final is None and left.taps.shape == (len(IDS), 64)
    assert Runner(memory_source(tiny_model("llama")), ops).executor.features(3) is None
