"""The four printed forms of one result hold the same numbers."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_engine.bench.plan import SpeedTest
from strata_engine.bench.report import Result, Row, Setting, render, rounded

SETTING = Setting(threads=2, batch=512, kv_type="f16", kernels="auto", mode="exact")
MODEL = {"name": "m", "architecture": "llama", "quant": "Q4_1", "size_bytes": 98_362_432, "parameters": 134_515_008,
         "backend": "CPU", "sha256": "b1"}  # fmt: skip


def result(*samples: float) -> Result:
    rows = (
        Row(SpeedTest(512, 0), SETTING, samples, products_per_token=100_000_000, product_gop_s=50.0),
        Row(SpeedTest(0, 128, 4096), SETTING, samples, bytes_per_token=98_000_000, bandwidth_gb_s=20.0),
        Row(SpeedTest(8, 4), Setting(1, 512, "f16", "auto", "exact"), samples),
    )
    return Result(rows, MODEL, {"cpu": "x"}, {"torch": "2"}, "abc", "2026-12-01T00:00:00Z")


def from_md(text: str) -> list[tuple[str, float, float]]:
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    test, speed = lines[0].index("test"), lines[0].index("t/s")
    found = []
    for line in lines[2:]:
        median, mad = line[speed].split(" ± ")
        name, _, depth = line[test].partition(" @ d")
        found.append((f"{name}@d{depth or 0}", float(median), float(mad)))
    return found


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=7))
def test_all_forms_hold_the_same_numbers(samples: list[float]):
    found = result(*samples)
    document = json.loads(render(found, "json"))
    wanted = [(r["test"], r["median_tps"], r["mad_tps"]) for r in document["rows"]]
    lines = [json.loads(line) for line in render(found, "jsonl").splitlines()]
    assert [(r["test"], r["median_tps"], r["mad_tps"]) for r in lines] == wanted
    table = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    assert [(r["test"], float(r["median_tps"]), float(r["mad_tps"])) for r in table] == wanted
    assert [[float(s) for s in r["samples"].split()] for r in table] == [r["samples"] for r in document["rows"]]
    assert from_md(render(found, "md")) == wanted


def test_the_document_names_schema_machine_model_and_threads():
    document = json.loads(render(result(10.0), "json"))
    assert document["schema"] == "llmrun.bench.v1"
    assert (document["commit"], document["threads"], document["model"]["sha256"]) == ("abc", [1, 2], "b1")
    assert document["rows"][0]["test"] == "pp512@d0"


def test_spread_is_the_median_distance_from_the_median():
    row = json.loads(render(result(10.0, 12.0, 11.0, 30.0, 11.5), "json"))["rows"][0]
    assert (row["median_tps"], row["mad_tps"]) == (11.5, 0.5)


def test_the_share_of_bandwidth_is_given_for_generation_only():
    rows = json.loads(render(result(100.0), "json"))["rows"]
    assert [r["bandwidth_share"] for r in rows] == [None, 0.49, None]
    assert "49 %" in render(result(100.0), "md")


def test_the_share_of_the_fastest_product_is_given_for_prompts_only():
    rows = json.loads(render(result(100.0), "json"))["rows"]
    assert [r["product_share"] for r in rows] == [0.4, None, None]
    assert "40 %" in render(result(100.0), "md")


def test_the_table_has_the_familiar_columns_and_even_lines():
    lines = render(result(1234.5), "md").splitlines()
    assert re.split(r"\s*\|\s*", lines[0].strip("| "))[:7] == [
        "model", "size", "params", "backend", "threads", "test", "t/s",
    ]  # fmt: skip
    assert len({len(line) for line in lines}) == 1
    assert "1234.50 ± 0.00" in lines[2]


@pytest.mark.parametrize(("value", "wanted"), [(1234.567, 1234.57), (0.0123456, 0.01235), (0.0, 0.0)])
def test_small_speeds_keep_four_digits(value: float, wanted: float):
    assert rounded(value) == wanted
