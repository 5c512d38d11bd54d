#!/usr/bin/env python3
"""Process start to the first token on the terminal, ours against the peer's, and where our time goes.

Ours is the wall time of `llmrun run --jsonl` from exec to the first text event, measured from outside. Theirs is the
peer driver's own `start_to_first_token_ms`. The breakdown times the imports and the loading in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from common import ROOT, emit, llmrun, peer, run_json, spread

STEPS = {
    "python": "pass",
    "command line": "import strata_cli.main, strata_cli.app, strata_cli.commands.chat",
    "torch": "import torch",
    "engine": "import strata_cli.commands.chat, strata_cli.local as l; l.import_engine()",
}


def main() -> None:
    options = read_options()
    ours: list[float] = []
    theirs: list[float] = []
    inside: list[dict] = []
    for number in range(options.rounds + 1):
        first_s, finish = first_token(options)
        peer_ms = run_json(peer(options.peer_driver, "first", options.model, options.lib, "--prompt", options.prompt))
        if number == 0:
            continue  # the first round fills the page cache for both
        ours.append(first_s * 1000)
        theirs.append(peer_ms["start_to_first_token_ms"])
        inside.append(finish["timings"])
        emit(kind="round", round=number, ours_ms=round(ours[-1], 1), theirs_ms=theirs[-1])
    steps = {name: spread([process_ms(code) for _ in range(options.rounds)])["median"] for name, code in STEPS.items()}
    prompt_ms = spread([1000 * t["first_token_s"] for t in inside])["median"]
    emit(kind="summary", ours_ms=spread(ours), theirs_ms=spread(theirs), process_ms=steps, prompt_ms=prompt_ms)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--peer-driver", required=True, help="script that drives llama.cpp's library")
    parser.add_argument("--lib", required=True, help="folder with the peer's shared libraries")
    parser.add_argument("--prompt", default="What is the capital of France?")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def first_token(options: argparse.Namespace) -> tuple[float, dict]:
    """Seconds from exec to the first text, and the Finish event."""
    command = llmrun("run", "--no-server", "--temp", "0", "-n", "8", options.model, options.prompt, "--jsonl", "-q")
    began = time.perf_counter()
    first_s, finish = 0.0, {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        for line in process.stdout or ():
            event = json.loads(line)
            if event["type"] == "text" and not first_s:
                first_s = time.perf_counter() - began
            if event["type"] == "finish":
                finish = event
    if process.returncode or not first_s:
        sys.exit(f"{' '.join(command)} gave {process.returncode}")
    return first_s, finish


def process_ms(code: str) -> float:
    """Wall time of a fresh process that runs some code."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
