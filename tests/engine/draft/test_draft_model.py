"""A small model as the drafter: its guesses do not depend on how it came to read the tokens, and what is refused."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SpecConfig
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.draft.base import Ask, DraftRoom
from strata_engine.draft.model import ModelDrafter
from strata_engine.draft.vocabulary import require_same_vocabulary
from strata_engine.errors import UsageError
from strata_engine.models.load import load_model
from strata_kernels.native import NativeOps
from strata_kernels.ops import Ops
from tests.support.drafting import PAGE, Stage
from tests.support.engines import GREEDY, ids_of, ids_request, tiny_engine
from tests.support.tiny_models import memory_source, oracle_logits, save_tiny, tiny_model

DEPTH, TOKENS = 4, 18


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 128), k=count)


def make_stage(ops: Ops, rows: int = 16, p_min: float = 0.0, vocab_size: int = 128) -> Stage:
    """A target, and a smaller model of another seed as drafter."""
    target, source = memory_source(tiny_model("qwen3")), memory_source(tiny_model("qwen3", 5, num_hidden_layers=1))
    drafter = ModelDrafter(load_model(source, ops), source, vocab_size, DEPTH, p_min)
    return Stage(load_model(target, ops).model, drafter, ops, rows=rows)


def walk(stage: Stage, tokens: list[int], seed: int) -> TokenSequence:
    """Go through the tokens in rounds of random size; some of the drafts come true by chance of the test's making."""
    draw, at = random.Random(seed), 8
    sequence = stage.start("one", tokens[:7])
    stage.read(sequence, tokens[7])
    while at < len(tokens):
        if draw.random() < 0.8:
            (found,) = stage.propose(draw.randint(1, DEPTH), sequence)
            kept = draw.randint(0, len(found.tokens))
            tokens[at : at + kept] = found.tokens[: min(kept, len(tokens) - at)]
        size = min(draw.randint(1, DEPTH), len(tokens) - at)
        stage.advance((sequence, tokens[at : at + size]))
        at += size
    return sequence


@pytest.mark.parametrize("seed", range(8))
def test_drafts_do_not_depend_on_earlier_drafts(seed):
    ops, tokens = NativeOps(1), ids(50, seed)
    stage, fresh = make_stage(ops), make_stage(ops, rows=64)
    went = walk(stage, tokens, seed)
    other = fresh.start("other", went.tokens[:-1])
    fresh.read(other, went.tokens[-1], chunk=64)
    assert stage.propose(DEPTH, went) == fresh.propose(DEPTH, other)


def test_drafts_are_the_greedy_tokens_of_the_small_model():
    """After transformers, for several prompts: a random model likes to say one token again and again."""
    stage, model, said = make_stage(NativeOps(1)), tiny_model("qwen3", 5, num_hidden_layers=1), set()
    for seed in range(8):
        context = ids(9, seed)
        sequence = stage.start(str(seed), context[:-1])
        stage.read(sequence, context[-1])
        for draft in stage.propose(DEPTH, sequence)[0].tokens:
            assert draft == int(oracle_logits(model, context)[-1].argmax())
            context.append(draft)
            said.add(draft)
        stage.drop(sequence)
    assert len(said) > 4


def test_two_sequences_with_more_to_read_than_a_step_holds():
    ops, stage, fresh = NativeOps(1), None, None
    stage, fresh = make_stage(ops, rows=16), make_stage(ops, rows=128)
    pairs = []
    for name, length in (("a", 41), ("b", 70)):
        tokens = ids(length, length)
        for of, into in ((stage, []), (fresh, [])):
            sequence = of.start(name, tokens[:-1])
            of.read(sequence, tokens[-1])
            into.append(sequence)
            pairs.append((of, sequence))
    mine = [sequence for of, sequence in pairs if of is stage]
    theirs = [sequence for of, sequence in pairs if of is fresh]
    together = stage.propose(3, *mine)
    assert together == [fresh.propose(3, one)[0] for one in theirs]


def test_only_what_is_new_is_read():
    """A guess that came true stands in the cache already: only the anchor and a correction are run."""
    ops, tokens = NativeOps(1), ids(12)
    stage = make_stage(ops)
    sequence = stage.start("one", tokens[:-1])
    stage.read(sequence, tokens[-1])
    (found,) = stage.propose(3, sequence)
    runs: list[tuple[int, int]] = []
    chain = stage.drafter._chain
    plain = chain.guess
    chain.guess = lambda known, depth: runs.append((known[0].start, len(known[0].ids))) or plain(known, depth)
    stage.advance((sequence, [*found.tokens, 5]))  # all of three came true, and one more token
    stage.propose(3, sequence)
    assert runs == [(14, 2)]  # the third guess was never run, and the anchor
    stage.advance((sequence, [6]))  # none came true
    stage.propose(3, sequence)
    assert runs[1:] == [(16, 1)]


def test_ids_that_one_of_the_two_does_not_know():
    """The target never gets an id beyond its own, and nothing is guessed after one that the small model cannot read."""
    stage = make_stage(NativeOps(1), vocab_size=1)
    sequence = stage.start("one", ids(9))
    stage.read(sequence, 4)
    assert stage.propose(3, sequence)[0].tokens in ((), (0,), (0, 0), (0, 0, 0))
    stage = make_stage(NativeOps(1))
    strange = stage.start("two", [4, 500, 6])
    strange.tokens.append(7)
    strange.hold.tokens = 3
    assert stage.drafter.propose([Ask(strange, 3)])[0].tokens == ()


def test_a_forgotten_sequence_is_read_again():
    stage, tokens = make_stage(NativeOps(1)), ids(20)
    sequence = stage.start("one", tokens[:-1])
    stage.read(sequence, tokens[-1])
    before = stage.propose(3, sequence)
    stage.drop(sequence)
    again = stage.start("one", tokens[:-1])
    stage.read(again, tokens[-1])
    assert stage.propose(3, again) == before


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return save_tiny(tiny_model("llama", 5, num_hidden_layers=1), tmp_path_factory.mktemp("small") / "small")


def answers(path: Path, draft: Path | None, sequences: int, **changes) -> tuple[list[list[int]], dict]:
    spec = SpecConfig() if draft is None else SpecConfig("draft", str(draft), n_max=3, adaptive=False, strict=True)
    prompts = [ids(n, n) for n in (1, PAGE - 1, PAGE, PAGE + 1, 17, 30)]
    params = replace(GREEDY, max_tokens=TOKENS, **changes)
    with tiny_engine(path, CpuBackend(), spec=spec, max_sequences=sequences, threads=1) as engine:
        streams = [engine.submit(ids_request(*prompt), params) for prompt in prompts]
        found = [ids_of(list(stream)) for stream in streams]
        engine.check()
        return found, engine.parts.speculation.report()


@pytest.mark.parametrize("sequences", [1, 4])
def test_a_model_that_drafts_for_itself_is_always_right(llama, sequences):
    plain, _ = answers(llama, None, sequences)
    found, report = answers(llama, llama, sequences)
    counts = report["counts"]
    assert found == plain and counts["accepted"] == counts["drafted"] > 0
    assert report["drafters"]["draft"]["architecture"] == "llama"


@pytest.mark.parametrize("changes", [{}, {"temperature": 1.5, "seed": 3, "top_k": 20}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("sequences", [1, 4])
def test_answers_are_those_of_plain_decoding(checkpoints, small, sequences, changes):
    for family in ("llama", "qwen3_moe"):
        plain, _ = answers(checkpoints[family], None, sequences, **changes)
        found, report = answers(checkpoints[family], small, sequences, **changes)
        assert found == plain and report["counts"]["drafted"] > 0


def refused(target: Path, draft: Path) -> str:
    with pytest.raises(UsageError) as refusal:
        tiny_engine(target, CpuBackend(), spec=SpecConfig("draft", str(draft), strict=True)).close()
    return str(refusal.value)


def test_another_vocabulary_is_refused_with_both_sizes(llama, tmp_path):
    other = save_tiny(tiny_model("llama", vocab_size=160), tmp_path / "other")
    said = refused(llama, other)
    assert "160" in said and "128" in said


def test_a_model_with_states_is_refused_by_name(llama, checkpoints):
    said = refused(llama, checkpoints["qwen3_5"])
    assert "qwen3_5" in said and "3 of 4 layers" in said


@dataclass
class Words:
    """A tokenizer of whole words."""

    words: tuple[str, ...]
    cut: int = 1

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def piece(self, token_id: int) -> bytes:
        return self.words[token_id].encode()

    def encode(self, text: str, special: bool = False) -> list[int]:
        return list(text.encode()[:: self.cut])


def test_vocabularies_are_compared_word_by_word():
    words, path = tuple(f"w{n}" for n in range(200)), Path("small")

    def compare(own: Words | None, target: Words | None = Words(words), rows: tuple[int, int] = (200, 200)) -> None:
        require_same_vocabulary(path, (target, own), rows)  # type: ignore[arg-type]

    compare(Words(words))
    compare(Words((*words, "more")), rows=(200, 256))  # a few ids more are padding or control tokens
    compare(None)
    changed = (*words[:7], "other", *words[8:])
    for own, rows, parts in (
        (Words(changed), (200, 200), ("token 7", "'other'", "'w7'")),
        (Words(words[:50]), (200, 50), ("50", "200")),
        (Words(words, cut=2), (200, 200), ("cuts text",)),
        (None, (200, 100), ("100", "200")),
    ):
        with pytest.raises(UsageError) as refusal:
            compare(own, rows=rows)
        assert all(part in str(refusal.value) for part in parts)


def test_a_drafter_that_is_not_bound_says_so():
    source = memory_source(tiny_model("llama"))
    ops = NativeOps(1)
    drafter = ModelDrafter(load_model(source, ops), source, 128, 2)
    sequence = TokenSequence("one", [3, 4], 1, 9)
    with pytest.raises(RuntimeError, match="not bound"):
        drafter.propose([Ask(sequence, 1)])
    stage = make_stage(ops)
    drafter.bind(DraftRoom(stage.memory.caches[2:], ops, stage.executor.limits, PAGE))
    assert drafter.report()["layers"] == 2
