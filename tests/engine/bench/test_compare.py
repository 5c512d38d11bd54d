"""Methods side by side: the arithmetic on scripted answers, the order of runs, and a real engine with real drafts."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.bench.compare import ComparePlan, CompareRow, Comparison
from strata_engine.bench.compare_report import Compared, render
from strata_engine.bench.suites import Case
from strata_engine.chat import TokenRequest
from strata_engine.config import SpecConfig
from strata_engine.errors import CheckFailed
from strata_engine.events import Drafts, Finish, Text, Timings, Token, Usage
from tests.support.engines import tiny_engine

CASES = [Case("a", TokenRequest(ids=(1,)), 21, "7"), Case("b", TokenRequest(ids=(2,)), 21, "9")]
DRAFTS = Drafts(steps=8, rounds=6, drafted=18, accepted=12, by_position=(6, 4, 2))


class ScriptedEngine:
    """21 tokens in every answer; with drafts 8 steps. Times are taken in turn from a list."""

    def __init__(self, method: str, times: dict[bool, list[float]], ids: dict[str, list[int]] | None = None) -> None:
        self.method, self.times, self.ids = method, times, ids or {}
        self.asked: list[tuple[int, bool]] = []

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def report(self) -> Any:
        return SimpleNamespace(speculation={"drafters": {self.method: {"most": 3}}} if self.method != "none" else {})

    def submit(self, request: TokenRequest, params: Any) -> list[Any]:
        self.asked.append((request.ids[0], params.speculate))
        times = self.times[params.speculate]
        spent = times.pop(0) if len(times) > 1 else times[0]
        tokens = tuple(map(Token, self.ids.get(self.method, range(21))))
        drafts = None if self.method == "none" else DRAFTS if params.speculate else Drafts(steps=20)
        finish = Finish("stop", Usage(1, len(tokens)), Timings(decode_s=spent), tokens=tokens[-1:], drafts=drafts)
        return [Text("so 7", tokens[:-1]), finish]


def compared(*engines: ScriptedEngine, repetitions: int = 1) -> list[CompareRow]:
    by_method = {engine.method: engine for engine in engines}
    plan = ComparePlan(tuple(by_method), (lambda engine: ("t", CASES),), by_method.__getitem__, repetitions)
    return list(Comparison(plan, lambda text: None, lambda engine: {"name": "m"}).rows())


def test_the_numbers_of_a_row_follow_from_counts_and_times():
    none, mtp = compared(ScriptedEngine("none", {False: [2.0]}), ScriptedEngine("mtp", {False: [2.0], True: [1.0]}))
    found = none.data()
    assert (found["steps"], found["accept_length"], found["accept_length_with_first"]) == (40, 1.0, 1.05)
    assert (found["step_ms"], found["tps"], found["plain_tps"]) == (100.0, 10.0, 10.0)
    found = mtp.data()
    assert (found["asked"], found["right"], found["tokens"], found["steps"]) == (2, 1, 42, 16)
    assert (found["accept_length"], found["accept_length_with_first"], found["accept_rate"]) == (2.5, 2.625, 0.6667)
    assert (found["step_ms"], found["tps"], found["plain_tps"], found["speed_up"]) == (125.0, 20.0, 10.0, 2.0)
    assert found["by_position"] == [12, 8, 4]
    assert found["same_answers"] and mtp.drafter == {"mtp": {"most": 3}}


def test_runs_with_and_without_drafts_take_turns_and_the_fastest_counts():
    engine = ScriptedEngine("mtp", {False: [9.0, 2.0, 3.0], True: [9.0, 5.0, 1.0]})
    (row,) = compared(engine, repetitions=2)
    warm = [(1, False), (1, True)]
    assert engine.asked == [*warm, (1, False), (1, True), (1, True), (1, False),
                            (2, True), (2, False), (2, False), (2, True)]  # fmt: skip
    assert [(p.plain.decode_s, p.by_method.decode_s) for p in row.pairs] == [(2.0, 1.0), (3.0, 1.0)]


@pytest.mark.parametrize(
    ("ids", "where"),
    [([*range(9), 99, *range(10, 21)], "a token 9"), (list(range(12)), "a token 12"), (list(range(21)), "")],
)
def test_the_first_difference_is_named(ids, where):
    times = {False: [2.0], True: [1.0]}
    rows = compared(ScriptedEngine("none", times), ScriptedEngine("mtp", times, {"mtp": ids}))
    assert [row.difference for row in rows] == ["", where]
    line = render(Compared(rows, {}), "md").splitlines()[3]
    assert ("no: first difference at a token" in line) == bool(where)


def test_no_answer_is_an_error():
    engine = ScriptedEngine("none", {False: [1.0]})
    engine.submit = lambda request, params: [Finish("stop")]  # type: ignore[method-assign]
    with pytest.raises(CheckFailed, match="a: the model gave no token"):
        compared(engine)


def test_all_forms_hold_the_same_numbers():
    times = {False: [2.0], True: [1.0]}
    found = Compared(compared(ScriptedEngine("none", times), ScriptedEngine("mtp", times)), {"name": "m"}, commit="c")
    rows = json.loads(render(found, "json"))["rows"]
    lines = [json.loads(line) for line in render(found, "jsonl").splitlines()]
    table = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    for row, line, cells in zip(rows, lines, table, strict=True):
        assert row.items() <= line.items()
        assert cells["by_position"] == " ".join(map(str, row["by_position"]))
        assert all(
            str(row[name]) == cells[name] for name in ("spec", "tps", "speed_up", "accept_length", "same_answers")
        )
    text = render(found, "md")
    for part in ("accept (n-1)/N", "n/N", "step ms", "| 1 of 2 |", "67 %", "2.00 | yes", "1: 12 (100 %), 2: 8 (67 %)"):
        assert part in text


def test_drafts_of_a_real_engine_change_no_answer(checkpoints):
    def opened(method: str) -> Any:
        spec = SpecConfig(method, n_max=3, adaptive=False, strict=True)
        return tiny_engine(checkpoints["llama"], CpuBackend(), max_sequences=1, spec=spec)

    cases = [replace(case, ignore_eos=True, result=None) for case in CASES]
    plan = ComparePlan(("none", "ngram"), (lambda engine: ("t", cases),), opened)
    none, ngram = [row.data() for row in Comparison(plan, lambda text: None, lambda engine: {}).rows()]
    assert none["same_answers"] and ngram["same_answers"]
    assert ngram["tokens"] == none["tokens"] == 42
    assert ngram["rounds"] > 0 and ngram["steps"] + ngram["accepted"] == 40
