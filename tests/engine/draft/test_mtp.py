"""Draft heads as drafters: the chain against transformers, and the same drafts whatever happened before."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
import torch
from transformers.cache_utils import MtpCache

from strata_engine.core.sequence import Hold
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.draft.base import Ask, DraftRoom, Features, Seen
from strata_engine.draft.mtp import MtpDrafter
from strata_engine.models.load import load_model
from strata_engine.models.mtp import load_draft
from strata_kernels.native import NativeOps
from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps
from tests.support.drafting import PAGE, Stage
from tests.support.tiny_hybrid import draft_head
from tests.support.tiny_models import MemorySource, memory_source, tiny_model

DEPTH = 4


class Case:
    """A tiny model with a random draft head, and transformers' own chain over it."""

    def __init__(self, family: str) -> None:
        self.model = tiny_model(family)
        self.head, tensors = draft_head(self.model)
        plain = memory_source(self.model)
        own = {name: tensor for name, tensor in self.model.state_dict().items() if name in plain.tensors()}
        self.source = MemorySource({**own, **tensors}, plain.metadata()["config"])

    def drafter(self, ops: Ops, most: int = DEPTH, p_min: float = 0.0) -> tuple[object, MtpDrafter]:
        loaded = load_model(self.source, ops)
        head = load_draft(self.source, loaded.model, ops)
        assert head is not None
        return loaded.model, MtpDrafter(head, most, p_min)

    def stage(self, ops: Ops, **options) -> Stage:
        most = options.pop("most", DEPTH)
        model, drafter = self.drafter(ops, most, options.pop("p_min", 0.0))
        return Stage(model, drafter, ops, **options)

    def chain(self, tokens: list[int], depth: int) -> tuple[list[int], list[float]]:
        """Drafts after `tokens`, whose last one is the anchor, and their probabilities."""
        cache, rows = MtpCache(config=self.model.config.get_mtp_config()), len(tokens) - 1
        ids, sure = [], []
        with torch.no_grad():
            hidden = self.model.model(torch.tensor([tokens[:-1]])).last_hidden_state
            given, positions, taken = hidden, torch.arange(rows)[None], torch.tensor([tokens[1:]])
            for step in range(depth):
                given = self.head.forward_layer(0, given, positions, cache, input_ids=taken)[:, -1:]
                shares = self.model.lm_head(given)[0, 0].softmax(-1)
                ids.append(int(shares.argmax()))
                sure.append(float(shares.max()))
                positions, taken = torch.tensor([[rows + step]]), torch.tensor([[ids[-1]]])
        return ids, sure


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture(scope="module")
def dense() -> Case:
    return Case("qwen3_5")


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(128), k=count)


def walk(stage: Stage, prompt: list[int], later: list[int], seed: int, name: str = "one") -> TokenSequence:
    """Read a prompt, then go on by `later` in rounds of random size with drafts of random depth in between."""
    draw, sequence, at = random.Random(seed), stage.start(name, prompt), 1
    stage.read(sequence, later[0], chunk=draw.choice([3, 7, 16]))
    while at < len(later):
        if draw.random() < 0.8:
            stage.propose(draw.randint(1, DEPTH), sequence)
        size = min(draw.randint(1, DEPTH + 1), len(later) - at)
        stage.advance((sequence, later[at : at + size]))
        at += size
    return sequence


@pytest.mark.parametrize("ops", [ReferenceOps(), NativeOps(2)], ids=["reference", "native"])
@pytest.mark.parametrize("length", [2, PAGE, PAGE + 1, 21])
def test_the_chain_equals_transformers(case, ops, length):
    stage, tokens = case.stage(ops), ids(length, seed=length)
    sequence = stage.start("one", tokens[:-1])
    stage.read(sequence, tokens[-1])
    (found,) = stage.propose(DEPTH, sequence)
    wanted, sure = case.chain(tokens, DEPTH)
    assert list(found.tokens) == wanted
    assert np.abs(np.array(found.confidence) - sure).max() <= 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_drafts_do_not_depend_on_earlier_drafts_chunks_or_rounds(case, seed):
    """Bit-equal to a drafter that reads the same tokens at once, after any pattern of acceptance."""
    ops, tokens = NativeOps(2), ids(60, seed)
    stage = case.stage(ops, rows=16)
    went = walk(stage, tokens[:20], tokens[20:], seed)
    fresh = case.stage(ops, rows=64)
    other = fresh.start("other", tokens[:-1])
    fresh.read(other, tokens[-1], chunk=64)
    assert stage.propose(DEPTH, went) == fresh.propose(DEPTH, other)
    assert went.hold.drafted["mtp"] == other.hold.drafted["mtp"] == len(tokens) - 1


def test_a_chained_row_that_is_kept_would_be_found(dense):
    """The control of the test above: without the rows that were guessed being read again, drafts differ."""
    ops, tokens = NativeOps(1), ids(40, 3)
    stage = dense.stage(ops)
    sequence = stage.start("one", tokens[:20])
    stage.read(sequence, tokens[20])
    for at in range(21, 39, 3):
        stage.propose(DEPTH, sequence)
        stage.advance((sequence, tokens[at : at + 3]))
        line = stage.drafter._backlog._lines["one"]
        line.parts[0] = line.parts[0][1:]  # the first row's place keeps what was guessed
        line.read += 1
    fresh = dense.stage(ops, rows=64)
    other = fresh.start("other", sequence.tokens[:-1])
    fresh.read(other, sequence.tokens[-1])
    assert stage.propose(DEPTH, sequence) != fresh.propose(DEPTH, other)


def test_sequences_of_a_batch_are_drafted_as_if_alone(case):
    ops, prompts = NativeOps(2), [ids(n, n) for n in (5, 9, 30)]
    together = case.stage(ops, rows=32)
    sequences = []
    for number, prompt in enumerate(prompts):
        sequences.append(together.start(str(number), prompt[:-1]))
        together.read(sequences[-1], prompt[-1])
    found = together.propose(3, *sequences)
    together.advance(*((one, [7, 8][: 1 + number % 2]) for number, one in enumerate(sequences)))
    again = together.propose(3, *reversed(sequences))[::-1]
    for number, prompt in enumerate(prompts):
        alone = case.stage(ops)
        sequence = alone.start("alone", prompt[:-1])
        alone.read(sequence, prompt[-1])
        assert alone.propose(3, sequence) == [found[number]]
        alone.advance((sequence, [7, 8][: 1 + number % 2]))
        assert alone.propose(3, sequence) == [again[number]]


def test_depths_of_a_batch_may_differ(dense):
    ops = NativeOps(1)
    stage = dense.stage(ops)
    sequences = []
    for number, length in enumerate((6, 12, 15)):
        sequences.append(stage.start(str(number), ids(length, number)))
        stage.read(sequences[-1], 5)
    wide = stage.propose(DEPTH, *sequences)
    asks = [Ask(one, most) for one, most in zip(sequences, (1, DEPTH, 2), strict=True)]
    mixed = stage.drafter.propose(asks)
    for one, full, most in zip(mixed, wide, (1, DEPTH, 2), strict=True):
        assert (one.tokens, one.confidence) == (full.tokens[:most], full.confidence[:most])
    assert stage.propose(DEPTH, *sequences) == wide  # no row went where it should not


def test_a_sequence_that_was_parked_catches_up(dense):
    """More rows wait than fit one step, for two sequences at once."""
    ops, tokens = NativeOps(1), ids(90, 1)
    stage, fresh = dense.stage(ops, rows=16), dense.stage(ops, rows=96)
    pairs = []
    for name, length in (("a", 44), ("b", 75)):
        sequence = stage.start(name, tokens[:4])
        stage.read(sequence, tokens[4])
        for at in range(5, length):
            stage.advance((sequence, [tokens[at]]))
        other = fresh.start(name, tokens[: length - 1])
        fresh.read(other, tokens[length - 1], chunk=96)
        pairs.append((sequence, other))
    assert stage.propose(3, *(one for one, _ in pairs)) == fresh.propose(3, *(other for _, other in pairs))


def test_asking_twice_gives_the_same(dense):
    stage, tokens = dense.stage(NativeOps(1)), ids(12)
    sequence = stage.start("one", tokens)
    stage.read(sequence, 3)
    assert stage.propose(3, sequence) == stage.propose(3, sequence)


def test_a_sequence_is_read_anew_after_it_was_forgotten(dense):
    stage, tokens = dense.stage(NativeOps(1)), ids(30)
    sequence = walk(stage, tokens[:10], tokens[10:], 1)
    before = stage.propose(3, sequence)
    again = stage.start("one", sequence.tokens[:-1])
    stage.drop(sequence)
    stage.read(again, tokens[-1])
    assert stage.propose(3, again) == before


def test_a_chain_ends_where_the_head_is_not_sure(dense):
    stage, tokens = dense.stage(NativeOps(1)), ids(12)
    sequence = stage.start("one", tokens)
    stage.read(sequence, 3)
    (full,) = stage.propose(DEPTH, sequence)
    for kept in range(DEPTH):
        limit = sorted(full.confidence)[kept] + 1e-6
        other = dense.stage(NativeOps(1), p_min=limit)
        one = other.start("one", tokens)
        other.read(one, 3)
        (found,) = other.propose(DEPTH, one)
        first = next(n for n, share in enumerate(full.confidence) if share < limit)
        assert found.tokens == full.tokens[:first]


def test_behind_a_gap_the_head_reads_on_at_the_next_page(dense):
    """A prefix without rows: its drafts are those of a sequence that begins at the page."""
    ops, tokens = NativeOps(1), ids(40, 5)
    stage = dense.stage(ops, rows=64)
    whole = stage.start("whole", tokens[:-1])
    stage.read(whole, tokens[-1], chunk=64)
    rows = stage.executor.features(39).final.copy()
    model, drafter = dense.drafter(ops)
    cut = Stage(model, drafter, ops, rows=64)
    sequence = TokenSequence("cut", tokens, 39, 256, hold=Hold(array("i", range(10, 17)), 39))
    drafter.observe([Seen(sequence, 10, 29, 0)], Features(rows[10:]))
    found = drafter.propose([Ask(sequence, 3)])
    shifted = TokenSequence("shifted", tokens[16:], 23, 256, hold=Hold(array("i", range(30, 37)), 23))
    drafter.observe([Seen(shifted, 0, 23, 0)], Features(rows[16:]))
    assert found == drafter.propose([Ask(shifted, 3)]) and len(found[0].tokens) == 3
    assert sequence.hold.drafted["mtp"] == 0 and shifted.hold.drafted["mtp"] == 23
    assert cut.memory.pool.used == 0


class SpyChain:
    """Takes what a drafter would run."""

    def __init__(self, limits) -> None:
        self.limits, self.fed, self.asked = limits, [], []

    def feed(self, known) -> None:
        self.fed += [(list(one.ids), one.start) for one in known]

    def guess(self, known, depth):
        self.asked += [(list(one.ids), one.start, one.most) for one in known]
        return np.zeros((depth, len(known)), np.int32), np.ones((depth, len(known)), np.float32)


@pytest.mark.parametrize(
    ("prompt", "table"),
    [
        # slot S takes token S + 1 and the state of token S; the last slot takes the anchor
        ([11], [([21], 0, 3)]),
        ([11, 12], [([12, 21], 0, 3)]),
        ([11, 12, 13, 14, 15], [([12, 13, 14, 15, 21], 0, 3)]),
    ],
)
def test_which_token_each_slot_takes(dense, prompt, table):
    _, drafter = dense.drafter(ReferenceOps())
    stage = Stage(*dense.drafter(ReferenceOps()), ReferenceOps())
    drafter.bind(DraftRoom(stage.memory.caches[-1:], ReferenceOps(), stage.executor.limits, PAGE))
    spy = drafter._chain = SpyChain(stage.executor.limits)
    count = len(prompt)
    sequence = TokenSequence("one", [*prompt, 21], count, 256, hold=Hold(array("i", [0, 1]), count))
    drafter.observe([Seen(sequence, 0, count, 0)], Features(np.zeros((count, 64), np.float32)))
    assert drafter.propose([Ask(sequence, 3)])[0].tokens == (0, 0, 0)
    assert spy.asked == table and spy.fed == []
    sequence.tokens += [22, 23]  # one draft stood: the anchor's and its row are kept
    sequence.hold.tokens += 2
    drafter.observe([Seen(sequence, count, 2, 0)], Features(np.zeros((2, 64), np.float32)))
    drafter.propose([Ask(sequence, 2)])
    assert spy.asked[-1] == ([22, 23], count, 2)


def halves(case: Case, embedding: float, hidden: float) -> Case:
    """The case with the columns of mtp.fc multiplied: those of the embedding come first."""
    changed = Case.__new__(Case)
    changed.model, changed.head = case.model, case.head
    tensors = dict(case.source._tensors)
    fc = tensors["mtp.fc.weight"].clone()
    fc[:, :64] *= embedding
    fc[:, 64:] *= hidden
    changed.source = MemorySource({**tensors, "mtp.fc.weight": fc}, case.source.metadata()["config"])
    return changed


@pytest.mark.parametrize(("embedding", "hidden"), [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)])
def test_the_first_columns_read_the_token_and_the_last_the_state(dense, embedding, hidden):
    changed, ops = halves(dense, embedding, hidden), ReferenceOps()

    def shares(anchor: int, noise: float) -> float:
        model, drafter = changed.drafter(ops)
        stage = Stage(model, drafter, ops)
        sequence = stage.start("one", [5, 6, 7])
        stage.read(sequence, anchor)
        line = drafter._backlog._lines["one"]
        line.parts[-1][-1] += np.linspace(-noise, noise, 64, dtype=np.float32)
        return drafter.propose([Ask(sequence, 1)])[0].confidence[0] if stage.memory.reserve(sequence.hold, 2) else 0.0

    plain = shares(9, 0.0)
    assert (shares(10, 0.0) != plain) == (embedding > 0)
    assert (shares(9, 1.0) != plain) == (hidden > 0)


def test_a_head_that_passes_the_embedding_through_is_a_bigram_table(dense):
    """No state, no attention, no MLP: the draft after token t is the head's best row for the normed fc(embed(t))."""
    tensors = dict(dense.source._tensors)
    changed = halves(dense, 1.0, 0.0)
    zero = ("mtp.layers.0.self_attn.o_proj.weight", "mtp.layers.0.mlp.down_proj.weight")
    known = {**changed.source._tensors, **{name: torch.zeros_like(tensors[name]) for name in zero}}
    changed.source = MemorySource(known, dense.source.metadata()["config"])

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight)

    embedded = norm(tensors["model.embed_tokens.weight"], tensors["mtp.pre_fc_norm_embedding.weight"])
    states = norm(embedded @ known["mtp.fc.weight"][:, :64].T, tensors["mtp.norm.weight"])
    after = (states @ tensors["lm_head.weight"].T).argmax(-1).tolist()
    stage = changed.stage(ReferenceOps())
    for anchor in (3, 50, 101):
        sequence = stage.start(str(anchor), [1, 2, 3])
        stage.read(sequence, anchor)
        (found,) = stage.propose(3, sequence)
        assert list(found.tokens) == [after[anchor], after[after[anchor]], after[after[after[anchor]]]]
