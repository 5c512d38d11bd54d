"""Questions with known results, and raw texts to go on with: what a comparison of speculation methods runs on."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from strata_engine.bench.plan import SpeedTest
from strata_engine.bench.sums import draw
from strata_engine.chat import ChatRequest, Message, TokenRequest
from strata_engine.errors import UsageError
from strata_engine.text.base import TextRules

SUITES = ("gsm8k-like", "gsm8k", "sums")
SMALL_MODEL = 20_000_000  # parameters; below it word problems of several steps are out of reach, sums are not
_DATA = Path(__file__).with_name("data") / "gsm8k.jsonl"
_HOW = "\nWork step by step. Give the final number after ####."
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MOST_TOKENS = {"gsm8k": 256, "sums": 96}
_SEED = 5
_LEAST_PROMPT = 32  # tokens in front of a generation test that names no prompt


@dataclass(frozen=True)
class Case:
    """One thing to answer. `result`: the right number, None where there is none; `most_tokens` in the answer."""

    name: str
    request: ChatRequest | TokenRequest
    most_tokens: int
    result: str | None = None
    ignore_eos: bool = False


def suite_named(name: str, parameters: int) -> str:
    """What a suite's name means for a model of so many parameters. Raises UsageError with the list."""
    if name not in SUITES:
        raise UsageError(f"--suite {name}: no such suite", f"one of: {', '.join(SUITES)}")
    return name if name != "gsm8k-like" else "sums" if parameters < SMALL_MODEL else "gsm8k"


def questions(suite: str, count: int) -> tuple[Case, ...]:
    """The first `count` questions of "gsm8k" or "sums"; the same every time. Raises UsageError: there are fewer."""
    most = _MOST_TOKENS[suite]
    if suite == "sums":
        rng = random.Random(_SEED)
        drawn = [draw(rng, of_test=True) for _ in range(count)]
        return tuple(Case(f"sums-{n}", _ask(p.question), most, str(p.result)) for n, p in enumerate(drawn))
    rows = [json.loads(line) for line in _DATA.read_text(encoding="utf-8").splitlines()]
    if count > len(rows):
        raise UsageError(
            f"--questions {count}: gsm8k holds {len(rows)} here", f"--questions {len(rows)}, or --suite sums"
        )
    return tuple(Case(f"gsm8k-{n}", _ask(row["question"] + _HOW), most, row["result"])
                 for n, row in enumerate(rows[:count], 1))  # fmt: skip


def _ask(text: str) -> ChatRequest:
    return ChatRequest((Message.of("user", text),), thinking=False)


def is_right(result: str, answer: str) -> bool:
    """The last number of the answer is the result, however it is written (1,000.00 is 1000)."""
    found = _NUMBER.findall(answer)
    return bool(found) and float(found[-1].replace(",", "")) == float(result)


def continuation(test: SpeedTest, rules: TextRules) -> Case:
    """A generation test over text in place of random ids, where no draft could ever be right.

    The prompt is cut from word problems to the test's depth and prompt. Raises UsageError without a tokenizer.
    """
    if rules.tokenizer is None:
        raise UsageError("speculation is measured on text, and this model has no tokenizer")
    wanted = max(_LEAST_PROMPT, test.depth_tokens + test.prompt_tokens)
    text = "\n\n".join(json.loads(line)["question"] for line in _DATA.read_text(encoding="utf-8").splitlines())
    ids = rules.tokenizer.encode(text)
    ids = (ids * (wanted // len(ids) + 1))[:wanted]
    return Case(test.key, TokenRequest(ids=tuple(ids)), test.generate_tokens, ignore_eos=True)
