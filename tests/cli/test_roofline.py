"""fit --roofline and fit with cards, named or there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strata_backends.cards import CARDS
from strata_cli import devices
from strata_engine.placement.catalog_traffic import catalog_traffic
from tests.support import machine_trees as trees
from tests.support.command import call, values
from tests.support.machine_trees import amd, m1000

TOY = str(Path(__file__).resolve().parents[1] / "fixtures/toy")


def document(tmp_path: Path, *args: str) -> dict[str, Any]:
    done = call(["--json", *args], values(tmp_path))
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_table_has_every_card_and_catalog_model(tmp_path):
    found = document(tmp_path, "fit", "--roofline")
    assert found["schema"] == "llmrun.roofline.v1"
    assert {(row["card"], row["model"]) for row in found["rows"]} == {(c, m) for c in CARDS for m in catalog_traffic()}
    for row in found["rows"]:
        parts = row["dense_bytes"] + row["expert_bytes"] + row["kv_bytes"] + row["state_bytes"]
        assert row["token_bytes"] == parts
        assert not row["fits"] or 0 < row["floor_ms"] < row["expected_ms"]


def test_a_row_is_the_bytes_by_the_peak_rate_beside_what_was_measured(tmp_path):
    args = ("fit", "qwen3.5-fq", "--roofline", "--card", "m1000-64gb", "--ctx", "2000")
    [row] = document(tmp_path, *args)["rows"]
    assert row["floor_ms"] == pytest.approx(1e3 * row["token_bytes"] / 136.5e9, rel=1e-3)
    assert row["expected_ms"] == pytest.approx(row["floor_ms"] / 0.75 + 5, rel=1e-3)
    assert row["measured"]["decode_tps"] == 20.923 and "SGLang" in row["measured"]["by"]


def test_what_does_not_fit_into_one_memory_has_no_figures(tmp_path):
    [row] = document(tmp_path, "fit", "flash-next:iq3_s", "--roofline", "--card", "m1000-32gb")["rows"]
    assert (row["fits"], row["floor_ms"], row["expected_tps"]) == (False, None, None)


def test_the_text_says_what_is_assumed_and_who_measured(tmp_path):
    done = call(["fit", "qwen3", "--roofline", "--card", "m1000-64gb,h200"], values(tmp_path))
    assert done.code == 0 and done.out.count("qwen3:gptq-int4") == 2
    for part in ("75% of the peak rate", "1.5 ms (cuda)", "5 ms (musa)", "assumed", "measured: SGLang-MUSA"):
        assert part in done.out


def test_files_are_read_for_a_model_that_is_here(tmp_path):
    rows = document(tmp_path, "fit", TOY, "--roofline", "--card", "h200")["rows"]
    assert rows[0]["stored_bytes"] == pytest.approx(7.2e6, rel=0.1) and rows[0]["on_card"] == 1


@pytest.mark.parametrize("args", [["--roofline"], []])
def test_an_unknown_card_is_refused_with_the_list(tmp_path, args):
    done = call(["fit", "qwen3", "--card", "voodoo-2", *args], values(tmp_path))
    assert done.code == 2 and "rx-7900-xtx" in done.err


@pytest.mark.parametrize(
    ("model", "card", "says"),
    [
        ("qwen3", "rx-7900-xtx", "all 48 layers on it"),
        ("qwen3", "rx-9070", "of them with the processor"),
        ("qwen3.8-27b:w4a16", "rx-9070", "the last "),
        ("flash-next:iq3_s", "m1000-32gb", "does not fit"),
    ],
)
def test_fit_says_what_would_live_where(tmp_path, model, card, says):
    done = call(["--json", "fit", model, "--card", card], values(tmp_path))
    [place] = json.loads(done.out)["placements"]  # whatever this machine's own memory is
    assert says in place["says"] and place["device"] == card
    assert place["card_bytes"] + place["host_bytes"] == catalog_traffic()[_full(model)].stored_bytes


def _full(model: str) -> str:
    return {"qwen3": "qwen3:gptq-int4"}.get(model, model.replace("flash-next", "qwen3.8-flash-next"))


def test_cards_that_are_there_are_used_with_their_free_memory(tmp_path, monkeypatch):
    machine = replace(amd(trees.RX_9070_XT, trees.W7900), variables={"HIP_VISIBLE_DEVICES": "0,1"})
    monkeypatch.setattr(devices, "place_of", lambda app: machine.place(tmp_path / "root"))
    found = document(tmp_path, "fit", TOY)["placements"]
    assert [(p["device"], p["says"]) for p in found] == [
        ("hip:0", "all 4 layers on it"),
        ("hip:1", "all 4 layers on it"),
    ]
    assert found[0]["free_bytes"] == 17095983104 - 27979776
    text = call(["fit", TOY], values(tmp_path)).out
    assert "on hip:1 (Radeon PRO W7900, 48.3 GB): all 4 layers on it (estimate)" in text


def test_one_memory_for_both_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "place_of", lambda app: m1000().place(tmp_path / "root"))
    [place] = document(tmp_path, "fit", TOY)["placements"]
    assert place["unified"] and place["device"] == "musa:0"
