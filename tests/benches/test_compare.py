"""The comparison with a peer: what it makes of measured speeds, and the machine's limits it is held against."""

from __future__ import annotations

import json

import pytest

from benches import roofline, vs_llamacpp
from tests.support.tiny_llama import tiny_llama


def test_a_row_holds_medians_spread_both_ratios_and_the_divergence():
    found = {"exact": {"tg8": [90.0, 100.0, 130.0]}, "llama.cpp": {"tg8": [40.0, 50.0, 52.0]}}
    (row,) = vs_llamacpp.summary(found, ["exact"], {"exact": 1e-6})
    assert row["ours"] == {"median": 100.0, "mad": 10.0}
    assert row["theirs"] == {"median": 50.0, "mad": 2.0}
    assert (row["ratio"], row["best_ratio"], row["mean_nats"]) == (2.0, 2.5, 1e-6)


def test_the_table_has_a_line_for_each_row_and_says_the_depth():
    found = {"exact": {"tg8": [100.0]}, "fast": {"tg8": [150.0]}, "llama.cpp": {"tg8": [50.0]}}
    rows = vs_llamacpp.summary(found, ["exact", "fast"], {"fast": 0.002})
    rows = [{"model": "m.gguf", "depth": 4096, "threads": 2, **row} for row in rows]
    lines = vs_llamacpp.table(rows).splitlines()
    assert len(lines) == 4
    assert lines[2] == "| m.gguf | tg8 @ d4096 | exact | 2 | 100.0 ± 0.0 | 50.0 ± 0.0 | 2.00 | 2.00 |  |"
    assert lines[3].endswith("| 3.00 | 3.00 | 2.0e-03 |")


def test_divergences_are_read_by_mode():
    lines = "\n".join(json.dumps({"mode": mode, "mean_nats": n}) for mode, n in (("exact", 0.1), ("fast", 0.2)))
    assert vs_llamacpp.quality_by_mode(lines) == {"exact": 0.1, "fast": 0.2}


def test_a_prompt_token_meets_every_matrix_of_every_layer_once(tmp_path):
    # per layer: q, k, v, o of 64 wide rows with half as many kv rows, and three of 96 x 64
    wanted = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64)
    assert roofline.products_a_token(str(tiny_llama(tmp_path / "m.gguf"))) == wanted


@pytest.mark.parametrize("bits", [8, 16])
def test_the_fastest_product_is_measured(bits):
    assert 0.1 < roofline.product_gop_s(1, bits) < 1e5
