"""Training in steps that survive a kill: the state is saved every minute and batches are drawn by their number."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.support.toy.shape import Parameters

# Newton-Schulz coefficients that drive all singular values towards 1 in five rounds (Jordan et al., Muon, 2024).
ROUNDS, A, B, C = 5, 3.4445, -4.7750, 2.0315


def orthogonal(m: torch.Tensor) -> torch.Tensor:
    """Roughly the nearest matrix with all singular values 1; [.., rows, columns]."""
    tall = m.shape[-2] > m.shape[-1]
    x = m.mT if tall else m
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = A * x + (B * square + C * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal: matrices learn in fewer steps than with Adam."""

    def __init__(self, parameters: list[torch.Tensor], lr: float, decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state["momentum"] = torch.zeros_like(value)
                momentum = state["momentum"].mul_(0.95).add_(value.grad)
                update = orthogonal(value.grad + 0.95 * momentum)
                scale = max(1.0, value.shape[-2] / value.shape[-1]) ** 0.5
                value.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * scale)


def is_matrix(name: str, value: torch.Tensor) -> bool:
    """Whether Muon trains it: inner matrices only; embeddings, head, router, convolutions and norms go to Adam."""
    outer = ("embed_tokens", "lm_head", "conv1d", "mlp.gate.", "shared_expert_gate")
    return value.ndim >= 2 and min(value.shape[-2:]) > 8 and not any(word in name for word in outer)


@dataclass(frozen=True)
class Recipe:
    """Steps and rates. The rate warms up, holds to half time, then falls in a line to 2 %."""

    steps: int
    matrix_rate: float = 0.02
    other_rate: float = 2e-3
    warm: int = 60

    def share(self, step: int) -> float:
        left = 1 - step / self.steps
        return min(1, (step + 1) / self.warm) * min(1, max(0.02, 2 * left))


@dataclass
class Trainer:
    """Trains `values` in place by `loss(step)`; `report()` adds a figure to the log once in `every` steps."""

    name: str
    values: Parameters
    recipe: Recipe
    loss: Callable[[int], torch.Tensor]
    report: Callable[[], str]
    state_file: Path
    log: Callable[[str], None]
    every: int = 200
    save_every_s: float = 60.0
    _spent: float = 0.0  # seconds in steps, over all runs
    _recent: list[float] = field(default_factory=list)

    def run(self) -> None:
        for value in self.values.values():
            value.requires_grad_(True)
        optimisers = self._optimisers()
        step = self._restore(optimisers)
        saved = time.monotonic()
        while step < self.recipe.steps:
            self._step(step, optimisers)
            step += 1
            if step % 50 == 0:
                mean = sum(self._recent) / len(self._recent)
                note = f" {self.report()}" if step % self.every == 0 or step == self.recipe.steps else ""
                self.log(f"{self.name} step {step} loss {mean:.4f} after {self._spent / 60:.1f} min{note}")
                self._recent.clear()
            if time.monotonic() - saved >= self.save_every_s or step == self.recipe.steps:
                self._save(step, optimisers)
                saved = time.monotonic()
        for value in self.values.values():
            value.requires_grad_(False)

    def _optimisers(self) -> list[torch.optim.Optimizer]:
        inner = [v for n, v in self.values.items() if is_matrix(n, v)]
        others = [v for n, v in self.values.items() if not is_matrix(n, v)]
        return [
            Muon(inner, self.recipe.matrix_rate, 0.05),
            torch.optim.AdamW(others, self.recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]

    def _step(self, step: int, optimisers: list[torch.optim.Optimizer]) -> None:
        began = time.monotonic()
        rates = (self.recipe.matrix_rate, self.recipe.other_rate)
        for optimiser, rate in zip(optimisers, rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * self.recipe.share(step)
            optimiser.zero_grad(set_to_none=True)
        loss = self.loss(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.values.values()), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        self._recent.append(loss.item())
        self._spent += time.monotonic() - began

    def _save(self, step: int, optimisers: list[torch.optim.Optimizer]) -> None:
        states = [optimiser.state_dict() for optimiser in optimisers]
        part = self.state_file.with_suffix(".part")
        values = {name: value.detach() for name, value in self.values.items()}
        torch.save({"step": step, "spent": self._spent, "values": values, "states": states}, part)
        os.replace(part, self.state_file)

    def _restore(self, optimisers: list[torch.optim.Optimizer]) -> int:
        if not self.state_file.exists():
            return 0
        saved = torch.load(self.state_file)
        with torch.no_grad():
            for name, value in self.values.items():
                value.copy_(saved["values"][name])
        for optimiser, state in zip(optimisers, saved["states"], strict=True):
            optimiser.load_state_dict(state)
        self._spent = saved["spent"]
        self.log(f"{self.name} goes on at step {saved['step']} of {self.recipe.steps}")
        return saved["step"]
