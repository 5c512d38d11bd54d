"""The prefix cache alone, on a real Memory: what is found, what is counted, what goes when pages run out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.core.pictures import Picture, Pictures
from strata_engine.core.sequence import Sequence
from strata_engine.memory.kv import KvMemory
from strata_engine.memory.memory import CacheCorrupt, Memory
from strata_engine.memory.state import StateMemory

PAGE = 4
LAYERS = [KvMemory(1, 2)]


def memory(pages: int = 12, layers=LAYERS, sequences: int = 4) -> Memory:
    made = Memory(layers, pages, PAGE, "f32", max_sequences=sequences)
    made.share_prefixes()
    return made


def sequence(*tokens: int, pictures: Pictures | None = None) -> Sequence:
    return Sequence("s", list(tokens), len(tokens), 99, pictures=pictures)


def read(of: Memory, *tokens: int, ends: bool = True, drafted: int = 0, pictures: Pictures | None = None) -> Sequence:
    """Run a sequence to its last token but one, as if the last had just been chosen."""
    one = sequence(*tokens, pictures=pictures)
    assert of.admit(one, len(tokens))
    of.commit(one.hold, len(tokens) - 1 - one.hold.tokens)
    one.hold.drafted["mtp"] = max(drafted, one.hold.drafted.get("mtp", 0))
    if ends:
        of.retire(one)
    return one


def known(of: Memory, *tokens: int, pictures: Pictures | None = None) -> int:
    """How many tokens of a prompt would be shared."""
    assert of.prefixes is not None
    return len(of.prefixes.find(sequence(*tokens, pictures=pictures)).path) * PAGE


def test_whole_pages_are_found_again_and_the_last_token_always_runs():
    of = memory()
    read(of, *range(11))
    assert of.pool.used == 0 and of.pool.idle == 2  # 10 tokens ran: two whole pages
    assert known(of, *range(11)) == 8
    assert known(of, *range(8)) == 4 and known(of, *range(9)) == 8
    assert known(of, 0, 1, 2, 3, 4, 5, 6, 8, 9) == 4
    assert known(of, 9, *range(1, 11)) == 0


def test_a_prefix_is_known_only_after_what_stood_before_it():
    of = memory()
    read(of, 1, 1, 1, 1, 2, 2, 2, 2, 0)
    assert known(of, 2, 2, 2, 2, 0) == 0


def test_sequences_share_pages_at_once_and_the_second_to_end_makes_them_idle():
    of = memory()
    read(of, *range(9))
    first, second = (read(of, *range(8), 50 + n, 60, ends=False) for n in range(2))
    assert first.hold.pages[:2] == second.hold.pages[:2] and first.hold.pages[2] != second.hold.pages[2]
    assert (first.hold.shared, second.hold.shared, of.pool.used) == (8, 8, 4)
    of.check([first.hold, second.hold])
    of.retire(first)
    of.check([second.hold])
    assert of.pool.used == 3
    of.retire(second)
    of.check([])
    assert of.pool.used == 0


def test_the_prefix_used_longest_ago_goes_first_and_its_end_before_its_beginning():
    of = memory(pages=4)
    read(of, *range(9))
    read(of, *range(20, 29))
    read(of, *range(9))  # used again: now the other one is older
    taken = of.pool.take(1)
    assert (known(of, *range(9)), known(of, *range(20, 29))) == (8, 4)
    more = of.pool.take(2)
    assert (known(of, *range(9)), known(of, *range(20, 29))) == (4, 0)
    of.pool.give(taken), of.pool.give(more)
    of.check([])


def test_kept_pages_count_as_free_so_the_cache_refuses_nobody():
    of = memory(pages=4)
    read(of, *range(16))
    assert of.pool.free == 4
    other = sequence(*range(100, 116))
    assert of.admit(other, 16)
    of.check([other.hold])
    assert known(of, *range(16)) == 0


def test_a_sequence_that_does_not_fit_changes_nothing():
    of = memory(pages=4)
    held = read(of, 90, 91, 92, 93, 94, 95, 96, 97, 98, ends=False)  # 3 pages
    assert not of.admit(sequence(*range(9)), 9)
    one = read(of, 1, 2, 3, 4)
    assert not one.hold.pages
    assert not of.admit(sequence(1, 2, 3, 4, 5), 5)
    of.check([held.hold])


def test_only_committed_rows_are_kept():
    of = memory()
    one = sequence(*range(20))
    assert of.admit(one, 20)
    of.commit(one.hold, 7)  # cancelled in the middle of its prompt
    of.retire(one)
    assert known(of, *range(20)) == 4


def test_a_sequence_that_read_no_number_is_forgotten_with_all_that_follows_its_beginning():
    of = memory()
    read(of, *range(9))
    other = read(of, *range(8), 30, 31, 32, 33, 34, ends=False)
    bad = read(of, *range(8), 40, ends=False)
    of.caches[0].keys[:] = 7.0
    own = bad.hold.pages[2:]
    of.clear(bad)
    assert not of.caches[0].keys[list(own)].any() and of.caches[0].keys[list(other.hold.pages)].all()
    of.retire(bad, keep=False)
    of.check([other.hold])
    assert known(of, *range(9)) == 0
    of.retire(other)
    of.check([])


def test_two_that_read_the_same_side_by_side_leave_it_once():
    of = memory()
    first, second = (read(of, *range(9), ends=False) for _ in range(2))
    of.retire(first)
    of.retire(second)
    of.check([])
    assert of.pool.idle == 2
    third = read(of, *range(13), ends=False)
    of.check([third.hold])
    assert third.hold.shared == 8


def test_what_follows_pages_of_another_keeps_them_younger_than_itself():
    of = memory(pages=7)
    first, second = read(of, *range(9), ends=False), read(of, *range(13), ends=False)
    of.retire(first)
    of.retire(second)  # its third page hangs below the pages of the first
    of.check([])
    of.pool.take(5)  # four pages were free
    assert known(of, *range(13)) == 8


def images(key: str, start: int, height: int = 2, width: int = 3) -> Pictures:
    return Pictures(14, [Picture(start, height, width, key)])


def test_the_same_ids_with_another_image_are_another_prefix():
    of = memory()
    tokens = [1] * 14
    read(of, *tokens, pictures=images("cat", 5))
    assert known(of, *tokens, pictures=images("cat", 5)) == 12
    assert known(of, *tokens, pictures=images("dog", 5)) == 4  # the image begins in the second page
    assert known(of, *tokens, pictures=images("cat", 6)) == 4
    assert known(of, *tokens, pictures=images("cat", 5, 3, 2)) == 4
    assert known(of, *tokens) == 4


def test_rows_a_drafter_knows_are_told_and_its_last_row_must_have_read_the_same_next_token():
    of = memory()
    read(of, *range(12), drafted=11)
    assert of.prefixes is not None
    whole = of.prefixes.find(sequence(*range(12)))
    assert (len(whole.path), whole.drafted["mtp"]) == (2, 8)
    other = of.prefixes.find(sequence(*range(8), 99, 98))  # row 7 was read with token 8, not 99
    assert (len(other.path), other.drafted["mtp"]) == (1, 4)
    read(of, *range(40, 52), drafted=6)
    half = of.prefixes.find(sequence(*range(40, 52)))
    assert (len(half.path), half.drafted["mtp"]) == (2, 6)


def test_rows_of_two_drafters_are_told_apart():
    of = memory()
    one = read(of, *range(12), ends=False)
    one.hold.drafted = {"mtp": 5, "dflash": 11}
    of.retire(one)
    assert of.prefixes is not None
    assert of.prefixes.find(sequence(*range(12))).drafted == {"mtp": 5, "dflash": 8}
    other = sequence(*range(8), 99, 98)
    assert of.admit(other, 10) and other.hold.drafted == {"mtp": 4, "dflash": 4}  # a page less, for the row of token 8
    other.hold.drafted["mtp"] = 3
    assert of.prefixes.find(sequence(*range(12))).drafted == {"mtp": 5, "dflash": 8}


def test_pages_a_drafter_knows_take_the_place_of_those_it_does_not():
    of = memory()
    read(of, *range(9))
    one = sequence(*range(9))
    assert of.reserve(one.hold, 9)  # not by admit: as if it had run beside the first
    of.commit(one.hold, 8)
    one.hold.drafted["mtp"] = 8
    pages = list(one.hold.pages[:2])
    of.retire(one)
    of.check([])
    assert of.prefixes is not None
    found = of.prefixes.find(sequence(*range(9)))
    assert [node.page for node in found.path] == pages and found.drafted["mtp"] == 8


def test_rows_of_shared_pages_stay_known_to_drafters_when_another_sequence_knew_less():
    of = memory()
    read(of, *range(12), drafted=11)
    one = sequence(*range(10), 70, 71)
    assert of.admit(one, 12) and one.hold.drafted["mtp"] == 8
    one.hold.drafted["mtp"] = 0  # its drafter began anew
    of.commit(one.hold, 3)
    of.retire(one)
    assert of.prefixes is not None and of.prefixes.find(sequence(*range(12))).drafted["mtp"] == 8


STATES = [StateMemory(3, 2, 1, 2, 2), KvMemory(1, 2)]


def run(of: Memory, one: Sequence, until: int) -> None:
    """Commit rows one by one; the state after n tokens is full of n."""
    while one.hold.tokens < until:
        of.commit(one.hold, 1)
        of.caches[0].state[one.hold.slot] = one.hold.tokens
        of.caches[0].conv[one.hold.slot] = -one.hold.tokens
        of.settle(one)


def test_a_prefix_with_a_state_is_shared_where_a_copy_of_it_is():
    of = memory(pages=40, layers=STATES)
    one = sequence(*range(50))
    assert of.admit(one, 50)
    assert one.hold.marks == (40,) and of.until(one.hold, 50) == 40  # short of the last tokens
    run(of, one, 50)
    of.retire(one)
    other = sequence(*range(50))
    assert of.admit(other, 50)
    assert (other.hold.tokens, other.hold.shared) == (40, 40)
    assert (of.caches[0].state[other.hold.slot] == 40).all() and (of.caches[0].conv[other.hold.slot] == -40).all()
    of.check([other.hold])
    assert of.copied_bytes == of.slot_bytes


def test_where_a_known_path_forks_off_a_copy_is_made_for_the_next():
    of = memory(pages=60, layers=STATES)
    for number, shared in enumerate((0, 0, 20)):
        one = sequence(*range(20), *[100 + number] * 40)
        assert of.admit(one, 60)
        assert one.hold.tokens == shared
        run(of, one, 60)
        of.retire(one)
        of.check([])


def test_a_growing_answer_keeps_one_copy_near_its_end():
    of = memory(pages=60, layers=STATES)
    one = sequence(*range(30))
    assert of.admit(one, 30)
    run(of, one, 30)
    for token in range(30, 101):
        one.tokens.append(token)
        assert of.reserve(one.hold, 1)
        run(of, one, token + 1)
    of.retire(one)
    assert of.prefixes is not None and of.prefixes.snapshots is not None
    assert len(of.prefixes.snapshots) == 2
    assert known(of, *range(120)) == 100 - (100 - 20) % 16 and known(of, *range(40)) == 20


def test_copies_of_states_take_no_more_than_is_spare():
    made = Memory(STATES, 20, PAGE, "f32", max_sequences=16)
    assert made.share_prefixes(3 * made.slot_bytes - 1) == 2 and made.share_prefixes() == 16
    without = Memory(STATES, 20, PAGE, "f32", max_sequences=16)
    assert without.share_prefixes(0) == 0 and without.prefixes is None


def test_copies_of_states_are_few_and_the_oldest_goes():
    of = memory(pages=200, layers=STATES)
    for number in range(6):
        one = sequence(*[number] * 30)
        assert of.admit(one, 30)
        run(of, one, 30)
        of.retire(one)
    assert of.copied_bytes == 4 * of.slot_bytes
    assert [known(of, *[number] * 30) for number in range(6)] == [0, 0, 20, 20, 20, 20]


@given(st.integers(0, 2**32), st.booleans(), st.integers(6, 30))
@settings(max_examples=120, deadline=None)
def test_pages_are_conserved_and_nothing_wrong_is_found_under_any_order_of_calls(seed, states, pages):
    """Each page's keys say which tokens stand before and in it: a hit must find just these."""
    draw = random.Random(seed)
    of = memory(pages, STATES if states else LAYERS, sequences=3)
    keys = of.caches[-1].keys
    alive: list[Sequence] = []
    for _ in range(80):
        action = draw.choice(["start", "start", "run", "run", "run", "end", "fail", "take"])
        if action == "start":
            base = [draw.randrange(2)] * draw.choice([0, 3, 4, 8, 17])
            one = sequence(*base, *draw.choices(range(3), k=draw.randint(1, 30)))
            free = of.pool.free
            if of.admit(one, len(one.tokens)):
                alive.append(one)
                _verify(of, one, keys)
            else:
                assert of.pool.free == free and not one.hold.pages
        elif action == "take":
            taken = of.pool.take(min(of.pool.free, draw.randint(0, 3)))
            of.pool.give(taken)
        elif alive:
            one = draw.choice(alive)
            if action == "run":
                _run_some(of, one, draw, keys)
            else:
                if action == "fail" and draw.random() < 0.5:
                    of.clear(one)
                of.retire(one, keep=action == "end")
                alive.remove(one)
        of.check(other.hold for other in alive)
    for one in alive:
        of.retire(one)
    of.check([])
    assert of.pool.used == 0 and of.pool.free == pages


def _stamp(tokens: list[int]) -> float:
    return float(hash(tuple(tokens)) % 65_521)


def _run_some(of: Memory, one: Sequence, draw: random.Random, keys) -> None:
    if not of.reserve(one.hold, len(one.tokens) - one.hold.tokens):
        return
    count = of.until(one.hold, draw.randint(0, len(one.tokens) - one.hold.tokens))
    for position in range(one.hold.tokens, one.hold.tokens + count):
        keys[one.hold.pages[position // PAGE], :, position % PAGE] = _stamp(one.tokens[: position + 1])
    of.commit(one.hold, count)
    if of.recurrent:
        of.caches[0].state[one.hold.slot] = _stamp(one.tokens[: one.hold.tokens])
    of.settle(one)
    if one.hold.tokens == len(one.tokens) and draw.random() < 0.9:
        one.tokens.append(draw.randrange(3))
    elif draw.random() < 0.3:
        of.retire(one)  # preempted
        assert of.admit(one, len(one.tokens)) or not one.hold.pages
        _verify(of, one, keys)


def _verify(of: Memory, one: Sequence, keys) -> None:
    for position in range(one.hold.tokens):
        assert (keys[one.hold.pages[position // PAGE], :, position % PAGE] == _stamp(one.tokens[: position + 1])).all()
    if of.recurrent and one.hold.tokens:
        assert (of.caches[0].state[one.hold.slot] == _stamp(one.tokens[: one.hold.tokens])).all()


def test_check_finds_a_page_that_is_written_and_shared():
    of = memory()
    one = read(of, *range(9), ends=False)
    other = sequence(*range(3))
    of.pool.share([one.hold.pages[2]])
    other.hold.pages.append(one.hold.pages[2])
    with pytest.raises(CacheCorrupt, match="still written is shared"):
        of.check([one.hold, other.hold])


def test_check_finds_a_kept_page_without_a_node():
    of = memory()
    one = read(of, *range(9), ends=False)
    of.pool.keep(one.hold.pages[0])
    with pytest.raises(CacheCorrupt, match="kept without a node"):
        of.check([one.hold])
