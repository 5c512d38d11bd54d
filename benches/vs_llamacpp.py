#!/usr/bin/env python3
"""Prefill and decode speed of llmrun against llama.cpp's library: same file, same threads, rounds alternating.

Each round runs both programs in a process of its own, in the order A B, then B A, so that a drift of the machine's
clock hits both alike. Prints one JSON line a round and one with the medians and the ratios ours / theirs.
"""

from __future__ import annotations

import argparse

from common import emit, llmrun, peer, run_json, spread


def main() -> None:
    options = read_options()
    test = {"pp": options.pp, "tg": options.tg}
    names = [f"{kind}{count}" for kind, count in test.items() if count]
    found: dict[str, dict[str, list[float]]] = {side: {n: [] for n in names} for side in ("ours", "theirs")}
    facts: dict = {}
    for number in range(options.rounds):
        for side in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            speeds, more = (ours if side == "ours" else theirs)(options, names)
            facts.update(more)
            for name, value in speeds.items():
                found[side][name].append(value)
            emit(kind="round", round=number, side=side, tps=speeds)
    rows = {
        name: {
            "ours": spread(found["ours"][name]),
            "theirs": spread(found["theirs"][name]),
            "ratio": round(spread(found["ours"][name])["median"] / spread(found["theirs"][name])["median"], 4),
        }
        for name in names
    }
    emit(kind="summary", depth=options.depth, threads=options.threads, rounds=options.rounds, tests=rows, **facts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--peer-driver", required=True, help="script that drives llama.cpp's library")
    parser.add_argument("--lib", required=True, help="folder with the peer's shared libraries")
    for name, value in (("pp", 512), ("tg", 128), ("depth", 0), ("reps", 3), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def ours(options: argparse.Namespace, names: list[str]) -> tuple[dict[str, float], dict]:
    shape = ["-p", options.pp, "-n", options.tg, "-d", options.depth, "-r", options.reps, "-t", options.threads]
    document = run_json(llmrun("bench", options.model, *map(str, shape), "-o", "json", "-q"))
    rows = {row["test"]: row["median_tps"] for row in document["rows"]}
    facts = {name: document[name] for name in ("commit", "versions", "machine", "model")}
    return {name: rows[f"{name}@d{options.depth}"] for name in names}, facts


def theirs(options: argparse.Namespace, names: list[str]) -> tuple[dict[str, float], dict]:
    shape = {
        "threads": options.threads,
        "pp": options.pp,
        "tg": options.tg,
        "depth": options.depth,
        "reps": options.reps,
    }
    flags = [text for name, value in shape.items() for text in (f"--{name}", str(value))]
    line = run_json(peer(options.peer_driver, "bench", options.model, options.lib, *flags))
    suffix = f"@d{options.depth}" if options.depth else ""
    return {name: line[name + suffix] for name in names}, {"peer_buffers": line.get("buffers")}


if __name__ == "__main__":
    main()
