"""The engine as a whole: streams, limits, cancellation, one bad sequence, preemption, seeds."""

from __future__ import annotations

import threading

import pytest
import torch

from strata_engine.chat import ChatRequest, Message, Part, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.errors import ContextExceeded, LlmrunError, NotFound, QueueFull, RequestRefused
from strata_engine.events import Reading, Started, Text
from tests.support.engines import ReferenceBackend, finish_of, ids_of, ids_request, tiny_engine, tokens_of
from tests.support.tiny_models import oracle_logits, save_tiny, tiny_model

PROMPT = (5, 9, 77, 31, 64, 8, 100, 3, 3, 12, 55, 90, 41, 17, 28, 6, 119, 2, 70, 14)


def params(**changes) -> SamplingParams:
    values = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 12}
    return SamplingParams(**{**values, **changes})


def oracle_greedy(model: torch.nn.Module, prompt: tuple[int, ...], count: int, without: int | None = None) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        logits = oracle_logits(model, ids)[-1]
        if without is not None:
            logits[without] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


@pytest.fixture
def engine(llama):
    with tiny_engine(llama) as opened:
        yield opened
        opened.check()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_tokens_equal_transformers(checkpoints, family):
    with tiny_engine(checkpoints[family]) as engine:
        events = list(engine.submit(ids_request(*PROMPT), params()))
    assert ids_of(events) == oracle_greedy(tiny_model(family), PROMPT, 12, without=2)


def test_events_are_started_then_text_then_one_finish(engine):
    events = list(engine.submit(ids_request(*PROMPT), params()))
    assert isinstance(events[0], Started) and events[0].prompt_tokens == len(PROMPT)
    assert events[1] == Reading(16, 20)  # a step takes 16 rows
    assert all(isinstance(event, Text) for event in events[2:-1])
    finish = finish_of(events)
    assert (finish.reason, finish.usage.prompt_tokens, finish.usage.completion_tokens) == ("length", 20, 12)


def test_timings_add_up_to_the_time_of_the_first_token(engine):
    timings = finish_of(list(engine.submit(ids_request(*PROMPT), params()))).timings
    assert timings.prompt_s > 0 and timings.decode_s > 0
    assert timings.first_token_s == pytest.approx(timings.queue_s + timings.prompt_s, abs=1e-3)


def test_sixteen_streams_at_once_equal_the_same_streams_alone(engine):
    prompts = [PROMPT[: 3 + i] for i in range(16)]
    alone = [ids_of(list(engine.submit(ids_request(*p), params()))) for p in prompts]
    streams = [engine.submit(ids_request(*p), params()) for p in prompts]
    assert [ids_of(list(s)) for s in streams] == alone


def test_a_seed_gives_the_same_tokens_alone_and_among_others(engine):
    wanted = params(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    alone = ids_of(list(engine.submit(ids_request(*PROMPT), wanted)))
    others = [engine.submit(ids_request(*PROMPT[i:]), params(temperature=1.0, seed=i)) for i in range(3)]
    beside = ids_of(list(engine.submit(ids_request(*PROMPT), wanted)))
    assert alone == beside
    assert len({tuple(ids_of(list(s))) for s in others} | {tuple(alone)}) == 4


def test_without_a_seed_two_runs_differ(engine):
    hot = params(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=30)
    assert ids_of(list(engine.submit(ids_request(1), hot))) != ids_of(list(engine.submit(ids_request(1), hot)))


def test_continuing_from_the_answer_gives_the_rest_of_the_answer(engine):
    whole = ids_of(list(engine.submit(ids_request(*PROMPT), params())))
    rest = ids_of(list(engine.submit(ids_request(*PROMPT, *whole[:5]), params(max_tokens=7))))
    assert whole[5:] == rest


def test_preempted_sequences_end_with_the_same_text(llama):
    with tiny_engine(llama) as roomy:
        wanted = [ids_of(list(roomy.submit(ids_request(*PROMPT[i:]), params(max_tokens=60)))) for i in range(4)]
    page = 8 * 2 * 2 * 2 * 16 * 4  # tokens x (key, value) x layers x kv heads x width x bytes
    probe = tiny_engine(llama)
    fixed = probe.parts.priced.weights_bytes + probe.parts.priced.workspace_bytes
    probe.close()
    cramped = ReferenceBackend(free_bytes=fixed + 14 * page)
    with tiny_engine(llama, cramped) as engine:
        streams = [engine.submit(ids_request(*PROMPT[i:]), params(max_tokens=60)) for i in range(4)]
        got = [ids_of(list(s)) for s in streams]
        assert engine.report().speed["preemptions"] > 0
        engine.check()
    assert got == wanted


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers(engine):
    with pytest.raises(ContextExceeded) as caught:
        engine.submit(TokenRequest(ids=(1,) * 96), params())
    assert caught.value.details == {"n_prompt_tokens": 96, "n_ctx": 96}
    assert caught.value.hint


def test_an_answer_longer_than_the_context_ends_there_with_length(engine):
    finish = finish_of(list(engine.submit(TokenRequest(ids=(1,) * 90), params(max_tokens=50))))
    assert finish.reason == "length"
    assert finish.usage.completion_tokens == 6


def test_the_queue_refuses_what_it_cannot_hold(llama):
    gate = threading.Event()
    with tiny_engine(llama, max_sequences=1, max_queue=2) as engine:
        first = engine.submit(ids_request(*PROMPT), params(), sink=lambda event: gate.wait(30) and None)
        waiting = []
        with pytest.raises(QueueFull) as caught:
            for _ in range(4):
                waiting.append(engine.submit(ids_request(4, 5), params()))
        gate.set()
        assert len(waiting) in (2, 3)  # 3 when the first had not been admitted yet
        assert caught.value.details["max_queue"] == 2
        assert all(finish_of(list(s)).reason == "length" for s in waiting)
        assert list(first) == []


def test_closing_a_stream_frees_its_pages_within_one_step(engine):
    stream = engine.submit(ids_request(*PROMPT), params(max_tokens=None))
    events = iter(stream)
    next(events), next(events)
    stream.close()
    rest = list(events)
    assert finish_of(rest).reason == "cancelled"
    assert engine.load_numbers().kv_pages_used == 0


def test_a_waiting_sequence_can_be_cancelled(llama):
    gate = threading.Event()
    with tiny_engine(llama, max_sequences=1) as engine:
        running = engine.submit(ids_request(*PROMPT), params(), sink=lambda event: gate.wait(30) and None)
        waiting = engine.submit(ids_request(*PROMPT), params())
        waiting.close()
        gate.set()
        events = list(waiting)
        assert finish_of(events).reason == "cancelled" and ids_of(events) == []
        list(running)


def test_a_long_prompt_can_be_cancelled_between_its_chunks(llama):
    seen = []
    with tiny_engine(llama, batch_rows=2) as engine:
        stream = engine.submit(TokenRequest(ids=(1,) * 80), params(), sink=seen.append)
        stream.close()
        list(stream)
        assert finish_of(seen).reason == "cancelled"
        assert engine.load_numbers().kv_pages_used == 0


def test_closing_twice_and_after_the_end_is_harmless(engine):
    stream = engine.submit(ids_request(*PROMPT), params())
    assert finish_of(list(stream)).reason == "length"
    stream.close()
    stream.close()
    assert list(stream) == []


@pytest.fixture(scope="session")
def poisoned(tmp_path_factory):
    """A llama whose token 99 is not a number, as a damaged embedding row would be."""
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[99, 0] = torch.nan
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(tiny_model("llama").lm_head.weight.detach().clone())
    return save_tiny(model, tmp_path_factory.mktemp("poisoned") / "model")


def test_a_sequence_with_nan_logits_fails_alone(poisoned):
    with tiny_engine(poisoned) as engine:
        good = ids_of(list(engine.submit(ids_request(*PROMPT), params())))
        streams = [engine.submit(ids_request(*PROMPT), params()) for _ in range(2)]
        bad = engine.submit(ids_request(5, 99, 7), params())
        with pytest.raises(LlmrunError, match="nan"):
            list(bad)
        assert [ids_of(list(s)) for s in streams] == [good, good]
        # the pages it left hold no NaN for those who get them next
        again = [engine.submit(ids_request(*PROMPT), params()) for _ in range(4)]
        assert [ids_of(list(s)) for s in again] == [good] * 4
        engine.check()


def test_a_sink_that_raises_ends_only_its_own_sequence(engine):
    def broken(event):
        raise ValueError("client went away")

    other = engine.submit(ids_request(*PROMPT), params())
    bad = engine.submit(ids_request(*PROMPT), params(), sink=broken)
    assert list(bad) == []
    assert finish_of(list(other)).reason == "length"
    assert engine.load_numbers().running == 0


def test_a_sink_gets_the_events_and_iterating_waits_for_the_end(engine):
    seen = []
    assert list(engine.submit(ids_request(*PROMPT), params(), sink=seen.append)) == []
    assert ids_of(seen) == ids_of(list(engine.submit(ids_request(*PROMPT), params())))


def test_a_stop_token_ends_the_answer_and_is_named(engine):
    whole = ids_of(list(engine.submit(ids_request(*PROMPT), params())))
    stop = next(i for i in whole if whole.index(i) > 2)
    events = list(engine.submit(ids_request(*PROMPT), params(stop_token_ids=(stop,))))
    finish = finish_of(events)
    assert (finish.reason, finish.stop_match) == ("stop", stop)
    assert ids_of(events) == whole[: whole.index(stop) + 1]


def test_eos_ends_the_answer_unless_it_is_ignored(engine):
    forced = ((2, 100.0),)
    events = list(engine.submit(ids_request(*PROMPT), params(ignore_eos=False, logit_bias=forced)))
    finish = finish_of(events)
    assert (finish.reason, finish.stop_match, finish.usage.completion_tokens) == ("stop", None, 1)
    assert [t.id for t in finish.tokens] == [2]
    ignoring = list(engine.submit(ids_request(*PROMPT), params(logit_bias=forced)))
    assert finish_of(ignoring).reason == "length" and 2 not in ids_of(ignoring)


def test_min_tokens_puts_eos_off(engine):
    wanted = params(ignore_eos=False, logit_bias=((2, 100.0),), min_tokens=4)
    events = list(engine.submit(ids_request(*PROMPT), wanted))
    assert finish_of(events).reason == "stop"
    assert ids_of(events).index(2) == 4


def test_logprobs_are_of_the_raw_distribution(engine):
    events = list(engine.submit(ids_request(*PROMPT), params(max_tokens=1, logprobs=3, logit_bias=((50, 100.0),))))
    token = tokens_of(events)[0]
    raw = torch.log_softmax(oracle_logits(tiny_model("llama"), list(PROMPT))[-1], -1)
    assert token.id == 50
    assert token.logprob == pytest.approx(raw[50].item(), abs=1e-4)
    best = raw.topk(3)
    assert [i for i, _ in token.top] == best.indices.tolist()
    assert [v for _, v in token.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"logit_bias": ((128, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
        {"stop_token_ids": (4000,)},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 1.5},
        {"max_tokens": 0},
        {"logprobs": 21},
        {"repeat_penalty": 0.0},
        {"stop": ("x",)},
    ],
)
def test_a_bad_parameter_is_refused_at_submit(engine, changes):
    with pytest.raises(RequestRefused):
        engine.submit(ids_request(*PROMPT), params(**changes))


@pytest.mark.parametrize(
    "request_",
    [
        TokenRequest(ids=(128,)),
        TokenRequest(ids=(-1,)),
        TokenRequest(ids=()),
        TokenRequest(text="hello"),
        TokenRequest(),
        TokenRequest(text="a", ids=(1,)),
        ChatRequest((Message.of("user", "hi"),)),
        ChatRequest((Message("user", (Part("image", data=b"x"),)),)),
    ],
)
def test_a_prompt_the_model_cannot_take_is_refused_at_submit(engine, request_):
    with pytest.raises(RequestRefused):
        engine.submit(request_, params())


def test_close_cancels_what_runs_and_refuses_what_comes(llama):
    engine = tiny_engine(llama)
    streams = [engine.submit(ids_request(*PROMPT), params(max_tokens=None)) for _ in range(6)]
    engine.close()
    assert {finish_of(list(s)).reason for s in streams} <= {"cancelled", "length"}
    with pytest.raises(NotFound):
        engine.submit(ids_request(*PROMPT), params())


def test_close_with_time_lets_sequences_finish(llama):
    engine = tiny_engine(llama)
    streams = [engine.submit(ids_request(*PROMPT), params()) for _ in range(6)]
    engine.close(timeout_s=60)
    assert {finish_of(list(s)).reason for s in streams} == {"length"}


def test_the_report_names_every_choice_memory_and_speed(engine):
    list(engine.submit(ids_request(*PROMPT), params()))
    report = engine.report()
    assert {c["what"] for c in report.choices} >= {"device", "kernels", "context", "kv cache", "batch", "tokenizer"}
    assert all(c["taken"] and c["why"] for c in report.choices)
    assert report.memory["kv_bytes"] > 0 and report.memory["weights_packed_bytes"] > 0
    assert report.speed["decode_tokens_per_s"] > 0


def test_decode_steps_are_replayed_not_recorded_again(engine):
    list(engine.submit(ids_request(*PROMPT), params()))
    before = engine.report().speed["recorded_steps"]
    list(engine.submit(ids_request(*PROMPT), params(max_tokens=40)))
    assert engine.report().speed["recorded_steps"] == before
