"""The toy's task: the sums of strata_engine/bench/sums.py as conversations, with or without thinking."""

from __future__ import annotations

import random
from dataclasses import dataclass

from strata_engine.bench.sums import Problem, draw, held_out, steps

__all__ = ["Problem", "Turn", "draw", "held_out", "steps", "turn"]

SYSTEMS = ("You are a helpful assistant.", "You teach sums. Show each step.", "Give short and exact answers.")


@dataclass(frozen=True)
class Turn:
    """A conversation up to the reply to learn: `prompt` as the chat template renders it, then `reply`."""

    prompt: str
    reply: str
    problem: Problem


def turn(rng: random.Random, of_test: bool, think: bool | None = None) -> Turn:
    """One conversation. When it thinks, the steps are worked inside <think>; else in the answer itself."""
    think = rng.random() < 0.5 if think is None else think
    prompt = ""
    if rng.random() < 0.3:
        prompt += f"<|im_start|>system\n{rng.choice(SYSTEMS)}<|im_end|>\n"
    if rng.random() < 0.2:  # an earlier turn: its reasoning is dropped, as the template drops it
        earlier = draw(rng, of_test)
        shown = earlier.answer if rng.random() < 0.5 else f"{earlier.steps}\n{earlier.answer}"
        prompt += f"<|im_start|>user\n{earlier.question}<|im_end|>\n<|im_start|>assistant\n{shown}<|im_end|>\n"
    problem = draw(rng, of_test)
    prompt += f"<|im_start|>user\n{problem.question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    if think:
        return Turn(prompt, f"{problem.steps}\n</think>\n\n{problem.answer}<|im_end|>", problem)
    return Turn(prompt + "\n</think>\n\n", f"{problem.steps}\n{problem.answer}<|im_end|>", problem)
