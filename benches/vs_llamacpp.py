#!/usr/bin/env python3
"""Prefill and decode speed of llmrun against llama.cpp's library: same files, same threads, rounds alternating.

Each round runs both programs in a process of its own, in the order A B, then B A, so that a drift of the machine's
clock hits both alike. Prints a JSON line a round, a line a file, depth and mode with the medians, the ratios and, with
--quality, the divergence from the exact forward; with --table a markdown table of all of them at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.common import ROOT, emit, llmrun, peer, run_json, spread  # noqa: E402

Speeds = dict[str, dict[str, list[float]]]


def main() -> None:
    """Measure every file at every depth."""
    options = read_options()
    rows: list[dict] = []
    for model in options.models:
        nats = divergences(model, options) if options.quality else {}
        for depth in map(int, options.depth.split(",")):
            rows += measure(options, model, depth, nats)
    if options.table:
        print(table(rows), flush=True)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="GGUF files")
    parser.add_argument("--peer-driver", required=True, help="script that drives llama.cpp's library")
    parser.add_argument("--lib", required=True, help="folder with the peer's shared libraries")
    parser.add_argument("--depth", default="0", help="tokens of context before the test, e.g. 0,4096")
    parser.add_argument("--modes", default="exact", help="ours: exact, fast or both")
    parser.add_argument("--quality", action="store_true", help="divergence from the exact forward beside each speed")
    parser.add_argument("--table", action="store_true", help="a markdown table at the end")
    for name, value in (("pp", 512), ("tg", 128), ("reps", 3), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def divergences(model: str, options: argparse.Namespace) -> dict[str, float]:
    """Mean nats of each mode."""
    command = [sys.executable, str(ROOT / "benches" / "quality.py"), model, "--modes", options.modes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"quality.py failed: {done.stderr[-2000:]}")
    return quality_by_mode(done.stdout)


def quality_by_mode(lines: str) -> dict[str, float]:
    """Mean nats from the lines that quality.py prints."""
    return {line["mode"]: line["mean_nats"] for line in map(json.loads, lines.splitlines())}


def measure(options: argparse.Namespace, model: str, depth: int, nats: dict[str, float]) -> list[dict]:
    """All rounds of one file at one depth; one row for each test and mode."""
    tests = [f"{kind}{count}" for kind, count in (("pp", options.pp), ("tg", options.tg)) if count]
    modes = options.modes.split(",")
    found: Speeds = {side: {test: [] for test in tests} for side in (*modes, "llama.cpp")}
    facts: dict = {}
    for number in range(options.rounds):
        sides = [*modes, "llama.cpp"]
        for side in sides if number % 2 == 0 else reversed(sides):
            run = theirs if side == "llama.cpp" else ours
            speeds, more = run(options, model, depth, tests, side)
            facts.update(more)
            for test, value in speeds.items():
                found[side][test].append(value)
            emit(kind="round", model=Path(model).name, depth=depth, round=number, side=side, tps=speeds)
    rows = summary(found, modes, nats)
    rows = [{"model": Path(model).name, "depth": depth, "threads": options.threads, **row} for row in rows]
    for row in rows:
        emit(kind="summary", rounds=options.rounds, **row, **facts)
    return rows


def summary(found: Speeds, modes: list[str], nats: dict[str, float]) -> list[dict]:
    """Medians, spreads and ratios. `best_ratio` compares the fastest rounds: what interruptions spoil least."""
    rows = []
    for mode in modes:
        for test, values in found[mode].items():
            peers = found["llama.cpp"][test]
            mine, other = spread(values), spread(peers)
            ratio, best = mine["median"] / other["median"], max(values) / max(peers)
            rows.append(
                {
                    "test": test,
                    "mode": mode,
                    "ours": mine,
                    "theirs": other,
                    "ratio": round(ratio, 3),
                    "best_ratio": round(best, 3),
                    "mean_nats": nats.get(mode),
                }
            )
    return rows


def ours(
    options: argparse.Namespace, model: str, depth: int, tests: list[str], mode: str
) -> tuple[dict[str, float], dict]:
    """One run of `llmrun bench`."""
    shape = ["-p", options.pp, "-n", options.tg, "-d", depth, "-r", options.reps, "-t", options.threads]
    document = run_json(llmrun("bench", model, *map(str, shape), "--mode", mode, "-o", "json", "-q"))
    rows = {row["test"]: row["median_tps"] for row in document["rows"]}
    facts = {name: document[name] for name in ("commit", "versions", "machine")}
    return {test: rows[f"{test}@d{depth}"] for test in tests}, facts


def theirs(
    options: argparse.Namespace, model: str, depth: int, tests: list[str], _side: str
) -> tuple[dict[str, float], dict]:
    """One run of the peer's driver."""
    shape = {"threads": options.threads, "pp": options.pp, "tg": options.tg, "depth": depth, "reps": options.reps}
    flags = [text for name, value in shape.items() for text in (f"--{name}", str(value))]
    line = run_json(peer(options.peer_driver, "bench", model, options.lib, *flags))
    suffix = f"@d{depth}" if depth else ""
    return {test: line[test + suffix] for test in tests}, {"peer_buffers": line.get("buffers")}


def table(rows: list[dict]) -> str:
    """The rows as markdown."""
    heads = "file|test|mode|threads|llmrun tok/s|llama.cpp tok/s|ratio|ratio of best|KL to exact, nats".split("|")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        test = row["test"] + (f" @ d{row['depth']}" if row["depth"] else "")
        speeds = [f"{row[side]['median']:.1f} ± {row[side]['mad']:.1f}" for side in ("ours", "theirs")]
        nats = "" if row["mean_nats"] is None else f"{row['mean_nats']:.1e}"
        ratios = [f"{row['ratio']:.2f}", f"{row['best_ratio']:.2f}"]
        cells = [row["model"], test, row["mode"], str(row["threads"]), *speeds, *ratios, nats]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
