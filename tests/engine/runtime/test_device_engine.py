"""An engine whose arrays lie in memory that the host does not see: the same answers, and little travels."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata_engine.config import SamplingParams, SpecConfig
from strata_engine.errors import UsageError
from strata_engine.placement.sides import Sides
from strata_kernels.reference.ops import ReferenceOps
from strata_kernels.split.ops import SplitOps
from tests.support.engines import ids_of, ids_request, tiny_engine
from tests.support.reference_device import DeviceBackend, ReferenceDevice
from tests.support.tiny_models import save_tiny, tiny_model

FAMILIES = ("llama", "qwen3_moe", "qwen3_5", "qwen3_5_moe")
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=8)
SEEDED = SamplingParams(temperature=0.9, top_k=20, seed=4, max_tokens=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = save_tiny(tiny_model(family), tmp_path_factory.mktemp(family))
        return made[family]

    return get


def answers(path: Path, backend: Any, **config: Any) -> list[list[int]]:
    """What several prompts at once get, one of them longer than a step, then one that begins like the first."""
    draw = random.Random(3)
    prompts = [draw.choices(range(3, 128), k=size) for size in (5, 40, 17)]
    with tiny_engine(path, backend, **config) as engine:
        streams = [
            engine.submit(ids_request(*prompt), params)
            for prompt, params in zip(prompts, (GREEDY, GREEDY, SEEDED), strict=True)
        ]
        found = [ids_of(list(stream)) for stream in streams]
        found.append(ids_of(list(engine.submit(ids_request(*prompts[1], 9, 9), GREEDY))))
        engine.check()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_processor(saved, family):
    device = ReferenceDevice()
    assert answers(saved(family), DeviceBackend(device)) == answers(saved(family), None)
    assert {"linear", "attention", "largest"} <= set(device.ran)


SPLITS = [
    (family, near, far) for family in FAMILIES for near in (0, 1, 2) for far in ((0, 2) if "moe" in family else (0,))
]


@pytest.mark.parametrize(("family", "near_layers", "far_experts"), SPLITS)
def test_a_split_model_gives_the_same_answers(saved, family, near_layers, far_experts):
    layers = tiny_model(family).config.num_hidden_layers
    sides = Sides(layers, min(near_layers, layers), far_experts)
    near = ReferenceDevice()
    ops = SplitOps(near, ReferenceOps(), sides.of, sides.of_layers)
    assert answers(saved(family), DeviceBackend(ops)) == answers(saved(family), None)
    assert ("experts" in near.ran) == ("moe" in family and near_layers > far_experts)


def test_experts_in_memory_cost_two_copies_a_layer(saved):
    config = tiny_model("qwen3_moe").config
    sides = Sides(config.num_hidden_layers, config.num_hidden_layers, config.num_hidden_layers)
    ops = SplitOps(ReferenceDevice(), ReferenceOps(), sides.of, sides.of_layers)
    steps = []
    end = ops.end
    ops.end = lambda: steps.append(end()) or steps[-1]  # type: ignore[method-assign]
    answers(saved("qwen3_moe"), DeviceBackend(ops))
    # the row's input and its router's logits go down, the result comes up; the first copy is the embedded row's
    assert {step.copies for step in steps} == {1 + 3 * config.num_hidden_layers}


def test_stacked_experts_go_where_single_ones_go():
    sides = Sides(layers=4, near_layers=3, far_experts=2)
    for name in ("{}.gate_exps", "{}.gate_up_exps", "{}.expert.7.down"):
        assert [sides.of(name.format(layer)) for layer in range(4)] == ["far", "far", "far", "near"]
    assert [sides.of(f"{layer}.shared_gate") for layer in range(4)] == ["far", "near", "near", "near"]
    assert (sides.of("embed.table"), sides.of("embed"), sides.of("norm")) == ("far", "near", "near")


def test_layers_and_experts_go_where_the_config_says(saved):
    device = ReferenceDevice()
    found = answers(saved("qwen3_moe"), DeviceBackend(device), gpu_layers=2, cpu_experts=2)
    assert found == answers(saved("qwen3_moe"), None) and "experts" not in device.ran and "attention" in device.ran


def test_the_placement_is_in_the_report(saved):
    with tiny_engine(saved("llama"), DeviceBackend(ReferenceDevice()), gpu_layers=1) as engine:
        placed = [choice for choice in engine.report().choices if choice["what"] == "placement"]
    layers = tiny_model("llama").config.num_hidden_layers
    assert [choice["taken"] for choice in placed] == [f"the last 1 of {layers} layers"]


def test_without_a_device_there_is_nothing_to_place_on(saved):
    with pytest.raises(UsageError, match="want a GPU"):
        tiny_engine(saved("llama"), None, gpu_layers=1)


TOY = Path(__file__).parents[2] / "fixtures" / "toy"


@pytest.mark.parametrize(("method", "draft"), [("mtp", None), ("dflash", f"{TOY}-dflash")])
def test_drafts_on_a_device_change_no_answer(method, draft):
    spec, found = SpecConfig(method, draft=draft, n_max=3, adaptive=False), []
    for backend, chosen in ((DeviceBackend(ReferenceDevice()), spec), (None, SpecConfig())):
        with tiny_engine(TOY, backend, page_tokens=16, spec=chosen) as engine:
            events = list(engine.submit(ids_request(*range(20, 40), *range(20, 32)), GREEDY))
            found.append(ids_of(events))
            if chosen.method != "none":
                assert events[-1].drafts is not None and events[-1].drafts.drafted
    assert found[0] == found[1]
