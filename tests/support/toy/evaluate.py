"""Asks the toy held-out sums through our own engine: python -m tests.support.toy.evaluate PATH [--count 200].

An answer is right when its last number is the result; every question is one whose pair of numbers was never trained on.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass
from pathlib import Path

from strata_backends.cpu import CpuBackend
from strata_engine.chat import ChatRequest, Message
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.events import Text
from strata_engine.runtime.engine import Engine
from tests.support.engines import model_files
from tests.support.toy.sums import Problem, draw

GREEDY = SamplingParams(temperature=0.0, max_tokens=120)


@dataclass(frozen=True)
class Marked:
    """One question with what came back."""

    problem: Problem
    answer: str

    @property
    def right(self) -> bool:
        numbers = re.findall(r"\d+", self.answer)
        return bool(numbers) and int(numbers[-1]) == self.problem.result


def ask(engine: Engine, problems: list[Problem], thinking: bool) -> list[Marked]:
    """The answers, as many at once as the engine runs sequences."""
    marked = []
    for at in range(0, len(problems), engine.parts.config.max_sequences):
        some = problems[at : at + engine.parts.config.max_sequences]
        requests = [ChatRequest((Message.of("user", p.question),), thinking=thinking) for p in some]
        streams = [engine.submit(request, GREEDY) for request in requests]
        for problem, stream in zip(some, streams, strict=True):
            marked.append(Marked(problem, "".join(e.text for e in stream if isinstance(e, Text))))
    return marked


def held_out_problems(count: int, seed: int = 5) -> list[Problem]:
    rng = random.Random(seed)
    return [draw(rng, of_test=True) for _ in range(count)]


def open_toy(path: Path, kernels: str = "auto", **config: object) -> Engine:
    """The toy in `path` (a directory or a GGUF file) with room for eight questions at once."""
    small = {"context_tokens": 512, "max_sequences": 8, "kernels": kernels, **config}
    return Engine.open(model_files(path), EngineConfig(**small), CpuBackend())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--kernels", default="auto")
    args = parser.parse_args()
    problems = held_out_problems(args.count)
    with open_toy(args.path, args.kernels) as engine:
        for thinking in (True, False):
            marked = ask(engine, problems, thinking)
            right = sum(one.right for one in marked)
            print(f"thinking {'on ' if thinking else 'off'}: {right} of {len(marked)} right")
            for wrong in [one for one in marked if not one.right][:3]:
                print(f"  {wrong.problem.question} -> {wrong.answer!r}, not {wrong.problem.result}")


if __name__ == "__main__":
    main()
