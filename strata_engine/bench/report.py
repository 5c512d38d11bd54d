"""Results of a speed run and their printed forms: md, csv, json, jsonl. All print the same rounded numbers."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from strata_engine.bench.plan import SpeedTest

SCHEMA = "llmrun.bench.v1"
FORMATS = ("md", "csv", "json", "jsonl")


@dataclass(frozen=True)
class Setting:
    """What varies between rows besides the test."""

    threads: int
    batch: int
    kv_type: str
    kernels: str
    mode: str


@dataclass(frozen=True)
class Row:
    """One measured test. `samples`: tokens per second in order.

    `bytes_per_token`: for plain generation only. `products_per_token`: for plain prompts only.
    """

    test: SpeedTest
    setting: Setting
    samples: tuple[float, ...]
    bytes_per_token: int | None = None
    bandwidth_gb_s: float | None = None  # what this machine's memory gives, measured in the same run
    products_per_token: int | None = None
    product_gop_s: float | None = None  # the fastest matrix product of these kernels, measured in the same run

    def data(self) -> dict[str, Any]:
        """Flat JSON data, rounded once for every form."""
        median = statistics.median(self.samples)
        shown = rounded(median)
        found: dict[str, Any] = {
            "test": self.test.key,
            "n_prompt": self.test.prompt_tokens,
            "n_gen": self.test.generate_tokens,
            "n_depth": self.test.depth_tokens,
            **asdict(self.setting),
            "median_tps": shown,
            "mad_tps": rounded(statistics.median(abs(s - median) for s in self.samples), shown),
            "samples": [rounded(s, shown) for s in self.samples],
            "bytes_per_token": self.bytes_per_token,
            "bandwidth_share": None,
            "products_per_token": self.products_per_token,
            "product_share": None,
        }
        if self.bytes_per_token and self.bandwidth_gb_s:
            found["bandwidth_share"] = round(median * self.bytes_per_token / (self.bandwidth_gb_s * 1e9), 4)
        if self.products_per_token and self.product_gop_s:
            found["product_share"] = round(2 * median * self.products_per_token / (self.product_gop_s * 1e9), 4)
        return found


@dataclass(frozen=True)
class Result:
    """A whole run. The dicts are plain JSON data: model, machine, versions."""

    rows: tuple[Row, ...]
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
            "threads": sorted({row.setting.threads for row in self.rows}),
            "rows": [row.data() for row in self.rows],
        }


def rounded(value: float, like: float | None = None) -> float:
    """Two decimals, or four significant digits where the value (or the one it belongs to) is below 1."""
    return round(value, 2) if abs(value if like is None else like) >= 1 else float(f"{value:.4g}")


def render(result: Result, form: str) -> str:
    """The result as text ending in a newline. `form` is one of FORMATS."""
    return {"md": _md, "csv": _csv, "json": _json, "jsonl": _jsonl}[form](result)


def _json(result: Result) -> str:
    return json.dumps(result.data(), ensure_ascii=False, indent=2) + "\n"


def _jsonl(result: Result) -> str:
    document = result.data()
    rows = document.pop("rows")
    return "".join(json.dumps({**document, **row}, ensure_ascii=False) + "\n" for row in rows)


def _csv(result: Result) -> str:
    buffer = io.StringIO()
    model = {f"model_{k}": v for k, v in result.model.items()}
    lines = [
        {"commit": result.commit, **model, **row.data(), "samples": " ".join(map(str, row.data()["samples"]))}
        for row in result.rows
    ]
    writer = csv.DictWriter(buffer, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _md(result: Result) -> str:
    varying = [n for n in ("batch", "kv_type", "kernels", "mode") if len({row.data()[n] for row in result.rows}) > 1]
    heads = ["model", "size", "params", "backend", "threads", *varying, "test", "t/s", "of the limit"]
    cells = [_md_cells(result, row.test, row.data(), varying) for row in result.rows]
    return table(heads, cells, left=("model", "backend", "kv_type", "kernels", "mode"))


def table(heads: Sequence[str], cells: Sequence[Sequence[str]], left: Sequence[str]) -> str:
    """A Markdown table with even columns; those not in `left` are flush right."""
    right = set(heads) - set(left)
    widths = [max(len(heads[i]), *(len(c[i]) for c in cells)) for i in range(len(heads))]
    rule = "".join(f"| {'-' * (w - 1)}{':' if h in right else '-'} " for h, w in zip(heads, widths, strict=True))
    lines = [_md_line(heads, heads, widths, right), rule + "|"]
    return "\n".join([*lines, *(_md_line(c, heads, widths, right) for c in cells)]) + "\n"


def _md_line(cells: Sequence[str], heads: Sequence[str], widths: Sequence[int], right: set[str]) -> str:
    padded = (c.rjust(w) if h in right else c.ljust(w) for c, h, w in zip(cells, heads, widths, strict=True))
    return "| " + " | ".join(padded) + " |"


def _md_cells(result: Result, test: SpeedTest, data: dict[str, Any], varying: Sequence[str]) -> list[str]:
    model = result.model
    share = data["bandwidth_share"] if data["product_share"] is None else data["product_share"]
    return [
        f"{model.get('architecture', '')} {model.get('quant', '')}".strip() or str(model.get("name", "")),
        f"{model.get('size_bytes', 0) / 2**20:.2f} MiB",
        f"{model.get('parameters', 0) / 1e6:.2f} M",
        str(model.get("backend", "")),
        str(data["threads"]),
        *(str(data[name]) for name in varying),
        test.label,
        f"{_tps(data['median_tps'], data)} ± {_tps(data['mad_tps'], data)}",
        "" if share is None else f"{100 * share:.0f} %",
    ]


def _tps(value: float, data: dict[str, Any]) -> str:
    return f"{value:.2f}" if data["median_tps"] >= 1 else f"{value:g}"
