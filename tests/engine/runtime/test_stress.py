"""Many threads submit, cancel and read at once: every stream ends once, and all pages come back."""

from __future__ import annotations

import random
import threading

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams
from strata_engine.errors import QueueFull
from strata_engine.events import Finish, Started
from tests.support.engines import ids_of, ids_request, tiny_engine


@pytest.mark.parametrize("seed", range(3))
def test_random_arrivals_and_cancels_from_four_threads(llama, seed):
    engine = tiny_engine(llama, CpuBackend(), max_queue=6, max_sequences=3)
    ended: list[list] = []
    refused: list[QueueFull] = []

    def client(number: int) -> None:
        draw = random.Random(seed * 100 + number)
        for _ in range(12):
            prompt = [draw.randrange(128) for _ in range(draw.randint(1, 60))]
            params = SamplingParams(seed=draw.randrange(9), max_tokens=draw.randint(1, 50), ignore_eos=True)
            try:
                stream = engine.submit(ids_request(*prompt), params)
            except QueueFull as error:
                refused.append(error)
                continue
            leave_after = draw.choice([None, 0, 1, 5])
            events = []
            for event in stream:
                events.append(event)
                if leave_after is not None and len(events) > leave_after:
                    stream.close()
            ended.append(events)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a client waits for ever"
    numbers = engine.load_numbers()
    engine.check()
    engine.close()
    assert len(ended) + len(refused) == 48
    assert (numbers.running, numbers.waiting, numbers.kv_pages_used) == (0, 0, 0)
    for events in ended:
        assert isinstance(events[0], Started)
        assert [isinstance(e, Finish) for e in events].count(True) == 1 and isinstance(events[-1], Finish)
        assert len(ids_of(events)) == events[-1].usage.completion_tokens
