#!/usr/bin/env python3
"""Process start to the first token on the terminal, ours against the peer's, and where our time goes.

Ours is the wall time of `llmrun run --jsonl` from exec to the first text event, measured from outside. Theirs is the
peer driver's own `start_to_first_token_ms`. CPU seconds and peak memory are those of our whole process: on a shared
machine they say more than the wall time. The breakdown times imports in fresh processes. `commands_cpu_s`: least CPU
time of the light commands (wanted: --help 0.4 s, one Tab 0.1 s).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

from common import ROOT, emit, llmrun, peer, run_json, spread

LIGHT = {
    "--help": ["--help"],
    "tab": ["__complete", "bash", "--", "llmrun", "chat", "smol"],
    "ls": ["ls", "--all"],
}
STEPS = {
    "python": "pass",
    "command line": "import strata_cli.main, strata_cli.app, strata_cli.commands.chat",
    "numpy": "import numpy",
    "engine": "import strata_cli.commands.chat, strata_cli.local as l; l.import_engine()",
}


def main() -> None:
    options = read_options()
    ours: list[float] = []
    theirs: list[float] = []
    inside: list[dict] = []
    used: list[resource.struct_rusage] = []
    for number in range(options.rounds + 1):
        first_s, finish, usage = first_token(options)
        peer_ms = run_json(peer(options.peer_driver, "first", options.model, options.lib, "--prompt", options.prompt))
        if number == 0:
            continue  # the first round fills the page cache for both
        ours.append(first_s * 1000)
        theirs.append(peer_ms["start_to_first_token_ms"])
        inside.append(finish["timings"])
        used.append(usage)
        emit(kind="round", round=number, ours_ms=round(ours[-1], 1), theirs_ms=theirs[-1])
    steps = {name: spread([process_ms(code) for _ in range(options.rounds)])["median"] for name, code in STEPS.items()}
    prompt_ms = spread([1000 * t["first_token_s"] for t in inside])["median"]
    cpu_s = spread([u.ru_utime + u.ru_stime for u in used])
    peak_mb = spread([u.ru_maxrss / 1024 for u in used])
    ours_too = {"ours_cpu_s": cpu_s, "ours_peak_mb": peak_mb, "process_ms": steps, "prompt_ms": prompt_ms}
    light = {name: min(cpu_seconds(llmrun(*args)) for _ in range(options.rounds)) for name, args in LIGHT.items()}
    emit(kind="summary", ours_ms=spread(ours), theirs_ms=spread(theirs), commands_cpu_s=light, **ours_too)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--peer-driver", required=True, help="script that drives llama.cpp's library")
    parser.add_argument("--lib", required=True, help="folder with the peer's shared libraries")
    parser.add_argument("--prompt", default="What is the capital of France?")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def first_token(options: argparse.Namespace) -> tuple[float, dict, resource.struct_rusage]:
    """Seconds from exec to the first text, the Finish event, and what the whole process used."""
    command = llmrun("run", "--no-server", "--temp", "0", "-n", "8", options.model, options.prompt, "--jsonl", "-q")
    began = time.perf_counter()
    first_s, finish = 0.0, {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        for line in process.stdout or ():
            event = json.loads(line)
            if event["type"] == "text" and not first_s:
                first_s = time.perf_counter() - began
            if event["type"] == "finish":
                finish = event
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # reaped here: Popen must not look for it again
    if process.returncode or not first_s:
        sys.exit(f"{' '.join(command)} gave {process.returncode}")
    return first_s, finish, usage


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return round(used.ru_utime + used.ru_stime, 3)


def process_ms(code: str) -> float:
    """Wall time of a fresh process that runs some code."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
