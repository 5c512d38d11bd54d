"""Trains the toy of tests/fixtures/toy: python -m tests.support.train_toy --prose FILE --work DIR --out DIR.

Stages: vocabulary, trunk, MTP head (trunk frozen), DFlash drafter (trunk frozen); each goes on where it was stopped.
What came out is in tests/fixtures/toy/README.md.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from tests.support.toy.dflash import Blocks, Drafter, fill, make_dflash
from tests.support.toy.export import rounded, save_dflash, save_toy
from tests.support.toy.layers import logits, trunk
from tests.support.toy.measures import Held, dflash_accept_length, exact_share, mtp_accept_length
from tests.support.toy.mtp import drafts, make_mtp
from tests.support.toy.optimise import Recipe, Trainer
from tests.support.toy.rows import REPLY, Rows, held_out_rows
from tests.support.toy.shape import Parameters, Shape, make_trunk
from tests.support.toy.vocabulary import MASK, make_tokenizer, read_prose

BALANCE = 0.002  # weight of the experts' balance: enough that none dies, too little to even them out
DRAFTS = (1.0, 0.7, 0.5)  # weights of the chained drafts


@dataclass(frozen=True)
class Lesson:
    """What all stages share."""

    args: argparse.Namespace
    shape: Shape
    tokenizer: Tokenizer
    rows: Rows
    held: Held

    def log(self, text: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, flush=True)
        with open(self.args.work / "log.txt", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def trainer(self, name: str, values: Parameters, steps: int, loss, report) -> Trainer:
        self.log(f"{name}: {sum(v.numel() for v in values.values())} parameters")
        return Trainer(
            name, values, Recipe(steps, self.args.rate), loss, report, self.args.work / f"{name}.pt", self.log
        )


def weighted_loss(rows: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits [.., vocabulary], averaged by weight."""
    each = F.cross_entropy(rows.flatten(0, -2), wanted.flatten(), reduction="none")
    return (each * weights.flatten()).sum() / weights.sum()


def train_trunk(lesson: Lesson) -> Parameters:
    values = make_trunk(lesson.shape)

    def loss(step: int) -> torch.Tensor:
        batch, weights = lesson.rows.batch(step, lesson.args.batch)
        balance: list[torch.Tensor] = []
        hidden, _ = trunk(values, lesson.shape, batch[:, :-1], balance)
        return weighted_loss(logits(values, hidden), batch[:, 1:], weights[:, 1:]) + BALANCE * sum(balance)

    def report() -> str:
        return f"exact {exact_share(values, lesson.shape, lesson.held):.3f}"

    lesson.trainer("trunk", values, lesson.args.steps, loss, report).run()
    return rounded(values)


def train_mtp(lesson: Lesson, base: Parameters) -> Parameters:
    values = make_mtp(lesson.shape, base)

    def loss(step: int) -> torch.Tensor:
        batch, weights = lesson.rows.batch(step + 1_000_000, lesson.args.batch)
        with torch.no_grad():
            hidden, _ = trunk(base, lesson.shape, batch[:, :-1])
        balance: list[torch.Tensor] = []
        total = torch.zeros(())
        found = drafts(base, values, lesson.shape, batch, hidden, len(DRAFTS), balance)
        for at, (rows, share) in enumerate(zip(found, DRAFTS, strict=True), 2):
            time = min(rows.shape[1], batch.shape[1] - at)
            wanted, weight = batch[:, at : at + time], weights[:, at : at + time]
            total = total + share * weighted_loss(logits(base, rows[:, :time]), wanted, weight)
        return total + BALANCE * sum(balance)

    def report() -> str:
        length = mtp_accept_length(base, values, lesson.shape, lesson.held.some(96), 3)
        return f"accept length {length:.2f} of 4"

    lesson.trainer("mtp", values, lesson.args.mtp_steps, loss, report).run()
    return rounded(values)


@dataclass(frozen=True)
class Read:
    """A batch with the trunk's residuals."""

    number: int
    batch: torch.Tensor
    weights: torch.Tensor
    taps: list[torch.Tensor]


def train_dflash(lesson: Lesson, base: Parameters, drafter: Drafter) -> Parameters:
    values = make_dflash(drafter, lesson.shape, base)
    mask_id = lesson.tokenizer.token_to_id(MASK)
    later = torch.arange(1, drafter.block)
    fading = torch.exp((1 - later) / 4)  # late rows count less, as in the drafters' own training

    def read(number: int) -> Read:
        batch, weights = lesson.rows.batch(number + 2_000_000, lesson.args.batch)
        with torch.no_grad():
            return Read(number, batch, weights, trunk(base, lesson.shape, batch)[1])

    held = read(0)

    def loss(step: int) -> torch.Tensor:
        nonlocal held
        if held.number != step // 2:  # the trunk takes as long as a step: every batch serves two, with other anchors
            held = read(step // 2)
        batch, weights, taps = held.batch, held.weights, held.taps
        chances = (weights[:, : -drafter.block] == REPLY) + 0.001
        torch.manual_seed(step)
        anchors = torch.multinomial(chances, 24)
        rows = fill(base, values, drafter, lesson.shape, batch, taps, Blocks(anchors, mask_id))
        where = (anchors[..., None] + later).flatten(1)
        weight = weights.gather(1, where) * fading.repeat(anchors.shape[1])
        return weighted_loss(logits(base, rows[:, :, 1:]), batch.gather(1, where), weight)

    def report() -> str:
        length = dflash_accept_length(base, values, drafter, lesson.shape, lesson.held.some(64), mask_id)
        return f"accept length {length:.2f} of {drafter.block}"

    lesson.trainer("dflash", values, lesson.args.dflash_steps, loss, report).run()
    return rounded(values)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prose", required=True, help="plain text, free of licence")
    parser.add_argument("--work", type=Path, required=True, help="where states and the log go")
    parser.add_argument("--out", type=Path, help="where toy/ and toy-dflash/ go")
    parser.add_argument("--steps", type=int, default=1500, help="of the trunk")
    parser.add_argument("--rate", type=float, default=0.015, help="of matrices (Muon)")
    parser.add_argument("--mtp-steps", type=int, default=400)
    parser.add_argument("--dflash-steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=6, help="rows of 256 tokens")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    prose = read_prose(args.prose)
    tokenizer = make_tokenizer(prose)
    held = Held(*held_out_rows(tokenizer, 256))
    lesson = Lesson(args, Shape(), tokenizer, Rows(tokenizer, prose, seed=7), held)
    base = train_trunk(lesson)
    lesson.log(f"trunk in bf16: exact {exact_share(base, lesson.shape, held):.3f}")
    if args.out:
        save_toy(args.out / "toy", lesson.shape, tokenizer, base)
    if args.mtp_steps:
        head = train_mtp(lesson, base)
        for count in (1, 2, 3):
            length = mtp_accept_length(base, head, lesson.shape, held, count)
            lesson.log(f"mtp in bf16: accept length {length:.2f} of {count + 1}")
        if args.out:
            save_toy(args.out / "toy", lesson.shape, tokenizer, {**base, **head})
    if args.dflash_steps:
        drafter = Drafter()
        values = train_dflash(lesson, base, drafter)
        mask_id = tokenizer.token_to_id(MASK)
        length = dflash_accept_length(base, values, drafter, lesson.shape, held, mask_id)
        lesson.log(f"dflash in bf16: accept length {length:.2f} of {drafter.block}")
        if args.out:
            save_dflash(args.out / "toy-dflash", drafter, lesson.shape, tokenizer, values)


if __name__ == "__main__":
    main()
