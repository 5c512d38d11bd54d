"""A comparison of speculation methods in four printed forms: md, csv, json, jsonl, all with the same numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_engine.bench.compare import PLAIN, CompareRow
from strata_engine.bench.report import table

SCHEMA = "llmrun.bench.spec.v1"
_HEADS = ("test", "spec", "right", "accept (n-1)/N", "n/N", "accepted", "step ms", "t/s", "plain t/s", "speed-up",
          "same answers")  # fmt: skip
_LEFT = ("test", "spec", "same answers")
_NOTES = (
    "N: decode steps; n: tokens, the first of which came with the prompt. t/s: tokens after the first.",
    "plain t/s: the same answers without drafts in the same engine, run in turn; speed-up: t/s over it.",
)


@dataclass(frozen=True)
class Compared:
    """A whole run. The dicts are plain JSON data."""

    rows: Sequence[CompareRow]
    model: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    started: str = ""

    def data(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "started": self.started,
            "commit": self.commit,
            "versions": self.versions,
            "machine": self.machine,
            "model": self.model,
            "rows": [{**row.data(), "drafter": row.drafter} for row in self.rows],
        }


def render(found: Compared, form: str) -> str:
    """The comparison as text ending in a newline. `form` is one of report.FORMATS."""
    document = found.data()
    if form == "json":
        return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    rows = document.pop("rows")
    if form == "jsonl":
        return "".join(json.dumps({**document, **row}, ensure_ascii=False) + "\n" for row in rows)
    return _csv(document, rows) if form == "csv" else _md(rows)


def _csv(document: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    model = {f"model_{name}": value for name, value in document["model"].items()}
    buffer = io.StringIO()
    lines = [
        {"commit": document["commit"], **model, **row, "by_position": " ".join(map(str, row["by_position"]))}
        for row in rows
    ]
    for line in lines:
        del line["drafter"]
    writer = csv.DictWriter(buffer, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _md(rows: list[dict[str, Any]]) -> str:
    heads = [head for head in _HEADS if head != "right" or any(row["asked"] for row in rows)]
    cells = [[_cells(row)[head] for head in heads] for row in rows]
    places = [f"{row['test']}, {row['spec']}: kept by position {_histogram(row)}" for row in rows if row["rounds"]]
    return table(heads, cells, left=_LEFT) + "\n" + "\n".join([*_NOTES, *places]) + "\n"


def _histogram(row: dict[str, Any]) -> str:
    kept = [f"{n}: {count} ({100 * count / row['rounds']:.0f} %)" for n, count in enumerate(row["by_position"], 1)]
    return f"of {row['rounds']} rounds {', '.join(kept) or 'none'}"


def _cells(row: dict[str, Any]) -> dict[str, str]:
    rate = row["accept_rate"]
    same = "yes" if row["same_answers"] else f"no: first difference at {row['difference']}"
    return {
        "test": row["test"],
        "spec": row["spec"],
        "right": f"{row['right']} of {row['asked']}",
        "accept (n-1)/N": f"{row['accept_length']:.2f}",
        "n/N": f"{row['accept_length_with_first']:.2f}",
        "accepted": "" if rate is None else f"{100 * rate:.0f} %",
        "step ms": f"{row['step_ms']:g}",
        "t/s": f"{row['tps']:g}",
        "plain t/s": f"{row['plain_tps']:g}",
        "speed-up": "" if row["spec"] == PLAIN else f"{row['speed_up']:.2f}",
        "same answers": same,
    }
