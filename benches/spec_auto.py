#!/usr/bin/env python3
"""Decode speed of `--spec METHOD` against plain decoding on prompts, both engines in one process, answers alternating.

Greedy answers to every prompt of a JSONL file (`id`, `category`, `prompt`), repeated. Takes the least time of either
engine for each, checks that the answers are the same, and prints the ratio of each round (the first is cold), of each
prompt and of each category. The engine with drafts keeps what it learned from prompt to prompt, as a server's does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in (".", "backends", "kernels")]

from strata_backends.cpu import CpuBackend  # noqa: E402
from strata_engine.chat import ChatRequest, Message, Part  # noqa: E402
from strata_engine.config import EngineConfig, SamplingParams, SpecConfig  # noqa: E402
from strata_engine.events import Finish, Reasoning, Text  # noqa: E402
from strata_engine.registry.files import LocalFile, ModelFiles  # noqa: E402
from strata_engine.runtime.engine import Engine  # noqa: E402


def open_engine(path: Path, method: str, context: int) -> Engine:
    """An engine for one sequence at a time."""
    files = ModelFiles(path.stem, str(path), str(path), (LocalFile(path, path.name, "weights", path.stat().st_size),))
    config = EngineConfig(context_tokens=context, max_sequences=1, spec=SpecConfig(method))
    return Engine.open(files, config, CpuBackend())


def decode(engine: Engine, prompt: str, tokens: int) -> tuple[float, list[int]]:
    """Seconds from the first token of a greedy answer to its last, and its ids."""
    stream = engine.submit(
        ChatRequest((Message("user", (Part("text", prompt),)),)), SamplingParams(max_tokens=tokens, temperature=0.0)
    )
    found, seconds = list[int](), 0.0
    for event in stream:
        if isinstance(event, (Text, Reasoning, Finish)):
            found += [token.id for token in event.tokens]
        if isinstance(event, Finish):
            seconds = event.timings.decode_s
    if len(found) < 2 or seconds <= 0:
        raise SystemExit(f"an answer of {len(found)} tokens in {seconds} s tells no speed: {prompt[:60]!r}")
    return seconds, found


def main() -> None:
    """Measure every prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    asked = [json.loads(line) for line in options.prompts.read_text().splitlines() if line]
    engines = [open_engine(options.model, method, 1024) for method in ("none", options.method)]
    best = defaultdict[tuple[str, int], float](lambda: float("inf"))
    for number in range(options.rounds):
        cold = [0.0, 0.0]
        for at, entry in enumerate(asked):
            answers = dict[int, list[int]]()
            for which in (0, 1) if (number + at) % 2 else (1, 0):
                seconds, answers[which] = decode(engines[which], entry["prompt"], options.tokens)
                best[entry["id"], which] = min(best[entry["id"], which], seconds)
                cold[which] += seconds
            if answers[0] != answers[1]:
                sys.exit(f"{entry['id']}: the answers differ")
        print(json.dumps({"round": number, "ratio": round(cold[0] / cold[1], 4)}), flush=True)
    sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for entry in asked:
        plain, drafted = (best[entry["id"], which] for which in (0, 1))
        print(json.dumps({"id": entry["id"], "ratio": round(plain / drafted, 4)}))
        for which, seconds in enumerate((plain, drafted)):
            sums[entry["category"]][which] += seconds
    print(json.dumps({"ratios": {name: round(a / b, 4) for name, (a, b) in sums.items()}}))
    print(json.dumps({"speculation": engines[1].report().speculation}, default=str))
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    main()
