"""The toy with its own draft head and its DFlash drafter: the same answers as plain decoding, in fewer steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_cli.main import main

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TOY, DFLASH = FIXTURES / "toy", FIXTURES / "toy-dflash"


@pytest.fixture
def llmrun(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path))

    def run(*args: str) -> tuple[str, str]:
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out, err

    return run


@pytest.mark.parametrize("form", [TOY, TOY / "toy-Q8_0.gguf"], ids=["safetensors", "gguf"])
def test_three_methods_give_the_same_right_answers_in_fewer_steps(llmrun, form):
    asked = ("--suite", "gsm8k-like", "--questions", "8", "-r", "1", "--spec", "none,mtp,dflash", "--draft", DFLASH)
    out, _ = llmrun("bench", form, *asked, "--spec-n-max", "7", "--spec-adaptive", "off", "-o", "json")
    none, mtp, dflash = json.loads(out)["rows"]
    assert [row["spec"] for row in (none, mtp, dflash)] == ["none", "mtp", "dflash"]
    assert all(row["same_answers"] for row in (none, mtp, dflash))
    assert none["right"] == mtp["right"] == dflash["right"] >= 7
    assert none["accept_length"] == 1.0
    assert dflash["accept_length"] >= 3.0  # (n-1)/N, of at most 8
    assert mtp["steps"] < none["steps"] / 2


def test_the_draft_head_keeps_most_of_its_chain(llmrun):
    asked = ("--suite", "sums", "--questions", "8", "-r", "1", "--spec", "mtp", "--spec-n-max", "3")
    out, _ = llmrun("bench", TOY, *asked, "--spec-adaptive", "off", "-o", "json")
    (row,) = json.loads(out)["rows"]
    assert row["same_answers"] and row["accept_length"] >= 2.8  # (n-1)/N, of at most 4


@pytest.mark.parametrize("method", [("mtp",), ("ngram",), ("dflash", "--draft", DFLASH)], ids=lambda m: m[0])
def test_run_says_what_drafts_and_gives_the_text_of_plain_decoding(llmrun, method):
    asked = ("run", TOY, "What is 37 + 26?", "--temp", "0")
    plain, _ = llmrun(*asked)
    # a controller that finds steps quick enough need not draft at all
    out, err = llmrun(*asked, "--spec", *method, "--spec-strict", "--spec-adaptive", "off", "--stats")
    assert out == plain and "63" in out
    assert f"drafter {method[0]}: " in err
    assert "accept length (n-1)/N" in err
