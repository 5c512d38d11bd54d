"""Pages are conserved whatever is reserved, committed and released; errors carry numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.core.sequence import Hold, Sequence
from strata_engine.errors import OutOfMemory, UsageError
from strata_engine.memory.kv import KvMemory, Room
from strata_engine.memory.layers import allocate, page_bytes
from strata_engine.memory.memory import CacheCorrupt, Memory
from strata_engine.memory.pages import PagePool
from strata_engine.memory.state import StateMemory

LAYERS = [KvMemory(2, 8)] * 3
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["reserve", "commit", "release"]), st.integers(0, 4), st.integers(0, 40)), max_size=60
)


@given(ACTIONS)
@settings(max_examples=150, deadline=None)
def test_pages_are_conserved_under_any_order_of_calls(actions):
    memory = Memory(LAYERS, 12, 4, "f16")
    holds, room = [Hold() for _ in range(5)], [0] * 5
    for action, who, tokens in actions:
        hold = holds[who]
        if action == "reserve":
            before = (memory.pool.free, list(hold.pages))
            fits = -(-(hold.tokens + tokens) // 4) - len(hold.pages) <= memory.pool.free
            assert memory.reserve(hold, tokens) == fits
            if not fits:
                assert (memory.pool.free, list(hold.pages)) == before
            else:
                room[who] = max(room[who], hold.tokens + tokens)
        elif action == "commit":
            memory.commit(hold, min(tokens, room[who] - hold.tokens))
        else:
            memory.release(hold)
            room[who] = 0
        memory.check(holds)
        assert len(hold.pages) * 4 >= hold.tokens
    for hold in holds:
        memory.release(hold)
    memory.check([])
    assert memory.pool.free == 12


def test_a_page_cannot_be_given_back_twice():
    pool = PagePool(3)
    pages = pool.take(2)
    pool.give(pages)
    with pytest.raises(ValueError, match="given back twice"):
        pool.give(pages)


def test_taking_more_than_is_free_changes_nothing():
    pool = PagePool(3)
    assert pool.take(4) is None
    assert (pool.free, pool.used) == (3, 0)


def test_check_finds_a_lost_page():
    memory = Memory(LAYERS, 4, 4, "f16")
    hold = Hold()
    memory.reserve(hold, 8)
    with pytest.raises(CacheCorrupt, match="2 pages are taken, 0 are held"):
        memory.check([])


def test_check_finds_a_page_held_twice():
    memory = Memory(LAYERS, 4, 4, "f16")
    hold = Hold()
    memory.reserve(hold, 4)
    with pytest.raises(CacheCorrupt, match="page 0 is held 2 times, counted 1 times"):
        memory.check([hold, hold])


def test_committing_beyond_the_reserved_room_is_a_fault():
    memory = Memory(LAYERS, 4, 4, "f16")
    hold = Hold()
    memory.reserve(hold, 4)
    with pytest.raises(CacheCorrupt):
        memory.commit(hold, 5)


@pytest.mark.parametrize(("kv_type", "dtype"), [("f16", np.float16), ("bf16", np.uint16), ("f32", np.float32)])
def test_caches_have_the_asked_type_and_start_at_zero(kv_type, dtype):
    memory = Memory(LAYERS, 5, 4, kv_type)
    assert len(memory.caches) == 3
    for cache in memory.caches:
        assert cache.keys.shape == cache.values.shape == (5, 2, 4, 8)
        assert cache.keys.dtype == cache.values.dtype == dtype
        assert not cache.keys.any() and not cache.values.any()
    assert memory.total_bytes == sum(c.keys.nbytes + c.values.nbytes for c in memory.caches)
    assert memory.page_bytes == page_bytes(LAYERS, 4, kv_type)


def test_clear_zeroes_only_the_pages_of_the_hold():
    memory = Memory(LAYERS, 4, 4, "f32")
    mine, other = Hold(), Hold()
    memory.reserve(mine, 4), memory.reserve(other, 4)
    for cache in memory.caches:
        cache.keys[:] = np.nan
    memory.clear(Sequence("mine", [], 0, 9, hold=mine))
    assert not np.isnan(memory.caches[0].keys[mine.pages[0]]).any()
    assert np.isnan(memory.caches[0].keys[other.pages[0]]).all()


def test_an_unknown_type_is_refused_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        page_bytes(LAYERS, 4, "q3")
    assert "bf16" in caught.value.hint


def test_too_much_memory_is_an_error_with_the_amount():
    with pytest.raises(OutOfMemory, match="TB"):
        allocate([KvMemory(1 << 10, 1 << 10)], Room(1 << 28, 64, 0, "f32"))


STATES = [StateMemory(3, 8, 2, 4, 4), KvMemory(2, 8), None]


def test_a_sequence_holds_one_state_slot_until_it_is_released():
    memory = Memory(STATES, 12, 4, "f16", max_sequences=2)
    assert memory.recurrent and memory.slot_bytes == 4 * (3 * 8 + 2 * 4 * 4)
    holds = [Hold() for _ in range(3)]
    assert memory.reserve(holds[0], 4) and memory.reserve(holds[1], 4) and memory.reserve(holds[0], 8)
    assert sorted(hold.slot for hold in holds) == [-1, 0, 1]
    assert not memory.reserve(holds[2], 1)  # pages are free, a slot is not
    assert not holds[2].pages
    memory.check(holds)
    assert memory.used_bytes == 3 * memory.page_bytes + 2 * memory.slot_bytes
    memory.release(holds[0])
    assert memory.reserve(holds[2], 1) and holds[0].slot == -1
    memory.check(holds)


def test_without_pages_no_slot_is_taken():
    memory = Memory(STATES, 1, 4, "f16", max_sequences=2)
    hold = Hold()
    assert not memory.reserve(hold, 9)
    assert hold.slot == -1 and memory.slots.used == 0


def test_check_finds_a_lost_and_a_shared_slot():
    memory = Memory(STATES, 4, 4, "f16", max_sequences=2)
    first, second = Hold(), Hold()
    memory.reserve(first, 1), memory.reserve(second, 1)
    second.slot = first.slot
    with pytest.raises(CacheCorrupt, match="a slot is held twice"):
        memory.check([first, second])
    second.slot = -1
    with pytest.raises(CacheCorrupt, match="no state slot"):
        memory.check([first, second])


def test_clear_zeroes_only_the_slot_of_the_hold():
    memory = Memory(STATES, 4, 4, "f32", max_sequences=2)
    mine, other = Hold(), Hold()
    memory.reserve(mine, 4), memory.reserve(other, 4)
    states, _, nothing = memory.caches
    assert nothing is None
    states.conv[:], states.state[:] = np.nan, np.nan
    memory.clear(Sequence("mine", [], 0, 9, hold=mine))
    for array in (states.conv, states.state):
        assert not array[mine.slot].any() and np.isnan(array[other.slot]).all()


def test_memory_without_states_takes_no_slots():
    memory = Memory(LAYERS, 4, 4, "f16", max_sequences=2)
    hold = Hold()
    assert memory.reserve(hold, 1) and hold.slot == -1 and memory.slots.total == 0


def test_only_kept_rows_count_and_a_state_folds_those_that_were_drafts():
    memory = Memory(STATES, 4, 4, "f16", max_sequences=2, drafts=3)
    hold = Hold()
    assert memory.reserve(hold, 12)
    memory.commit(hold, 5)  # a prompt: every row was certain
    assert (hold.tokens, hold.fold) == (5, 0)
    memory.commit(hold, 3, keep=1)  # an anchor and two drafts that stand
    assert (hold.tokens, hold.fold) == (8, 2)
    memory.commit(hold, 1, keep=1)
    assert (hold.tokens, hold.fold) == (9, 0)
    hold.fold, hold.drafted = 2, {"mtp": 7}
    memory.release(hold)
    assert (hold.tokens, hold.fold, hold.drafted) == (0, 0, {})
    stateless, hold = Memory(LAYERS, 4, 4, "f16"), Hold()
    assert stateless.reserve(hold, 4)
    stateless.commit(hold, 3, keep=1)
    assert (hold.tokens, hold.fold) == (3, 0)
