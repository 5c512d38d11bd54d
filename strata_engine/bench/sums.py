"""Sums in words with every step worked: questions that a very small model can answer, and the right numbers.

The toy of tests/fixtures was trained on such sums. A pair of numbers is held out or not whatever its order and
operation, so no form of a held-out sum was ever trained on; the bench asks held-out ones only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = "Ada Bo Carl Dora Emil Fay Gus Hana Ivan Jo Kim Lena Milo Nina Otto Pia".split()
THINGS = "apples beads bricks cards coins eggs figs kites lamps maps nails pins rings seeds tiles wheels".split()

# What is asked, by operation. {a}, {b}: the numbers; {r}: the result; {n}: a name; {t}: things.
PLAIN = {
    "+": (
        "What is {a} + {b}?",
        "{a} + {b} = ?",
        "Add {a} and {b}.",
        "How much is {a} plus {b}?",
        "Calculate {a} + {b}.",
    ),
    "-": (
        "What is {a} - {b}?",
        "{a} - {b} = ?",
        "Take {b} from {a}.",
        "How much is {a} minus {b}?",
        "Calculate {a} - {b}.",
    ),
}
STORIES = {
    "+": (
        ("{n} owns {a} {t} and buys {b} more. How many {t} does {n} own now?", "{n} owns {r} {t} now."),
        ("One bag holds {a} {t}, another holds {b} {t}. How many {t} is that?", "That is {r} {t}."),
        ("{n} made {a} {t} last week and {b} this week. How many {t} did {n} make?", "{n} made {r} {t}."),
    ),
    "-": (
        ("{n} had {a} {t} and lost {b}. How many {t} are left?", "{n} has {r} {t} left."),
        ("A shop had {a} {t} and sold {b} of them. How many {t} remain?", "There remain {r} {t}."),
        ("{n} needs {a} {t} and has {b}. How many {t} are missing?", "{n} misses {r} {t}."),
    ),
}


@dataclass(frozen=True)
class Problem:
    """One sum: what is asked, the worked steps, the closing sentence and the number in it."""

    question: str
    steps: str
    answer: str
    result: int


def held_out(a: int, b: int) -> bool:
    """About one pair in ten, whatever the order."""
    low, high = min(a, b), max(a, b)
    return (low * 7919 + high * 104729 + low * high * 31) % 1009 % 10 == 3


def steps(a: int, b: int, operation: str) -> str:
    """The digits worked one after the other: ones first, then tens with what was carried or borrowed."""
    (a1, a0), (b1, b0) = divmod(a, 10), divmod(b, 10)
    if operation == "+":
        carry, ones = divmod(a0 + b0, 10)
        tens = a1 + b1 + carry
        shown = f"{a0} + {b0} = {a0 + b0}, write {ones}, carry {carry}"
        return f"{a} + {b}. Ones: {shown}. Tens: {a1} + {b1} + {carry} = {tens}."
    borrow = int(a0 < b0)
    ones = a0 + 10 * borrow - b0
    tens = a1 - b1 - borrow
    return (
        f"{a} - {b}. Ones: {a0 + 10 * borrow} - {b0} = {ones}, borrow {borrow}. Tens: {a1} - {b1} - {borrow} = {tens}."
    )


def draw(rng: random.Random, of_test: bool) -> Problem:
    """A random problem, of the held-out pairs or of the others."""
    operation = rng.choice("+-")
    while True:
        a, b = rng.randrange(100), rng.randrange(100)
        if held_out(a, b) == of_test:
            break
    if operation == "-" and a < b:
        a, b = b, a
    result = a + b if operation == "+" else a - b
    worked = steps(a, b, operation)
    if rng.random() < 0.5:
        question = rng.choice(PLAIN[operation]).format(a=a, b=b)
        return Problem(question, worked, f"{a} {operation} {b} = {result}.", result)
    question, answer = rng.choice(STORIES[operation])
    words = {"a": a, "b": b, "r": result, "n": rng.choice(NAMES), "t": rng.choice(THINGS)}
    return Problem(question.format(**words), worked, answer.format(**words), result)
