"""One answer delivered: text, JSON, events, files, limits, Ctrl-C; with scripted answers."""

from __future__ import annotations

import io
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from strata_cli.once import Manner, Once, first_code_block
from strata_cli.output import Output
from strata_cli.repl.render import AnswerView
from strata_engine.chat import ChatRequest, Message
from strata_engine.config import SamplingParams
from strata_engine.errors import NotFound, RequestRefused, UsageError
from strata_engine.events import Drafts, Failed, Finish, Notice, Reasoning, Started, Text, Token, Usage
from tests.support.scripted_service import ScriptedService, answer

REQUEST = ChatRequest((Message.of("user", "hi"),))


class Ran:
    """A run with its outputs."""

    def __init__(self, *answers, mode: str = "text", load_s: float | None = 0.5, seed: int | None = None, **manner):
        out, err = io.StringIO(), io.StringIO()
        self.service = ScriptedService(*answers)
        self.output = Output(mode, stdout=out, stderr=err)
        once = Once(self.output, self.service, self.service.model, Manner(**manner), load_s)
        try:
            self.answers, self.code = once.run(REQUEST, SamplingParams(seed=seed))
        finally:
            self.out, self.err = out.getvalue(), err.getvalue()
            Ran.last = self


def test_text_ends_with_one_newline():
    assert [Ran(answer("hi")).out, Ran(answer("hi\n")).out, Ran(answer("")).out] == ["hi\n", "hi\n", ""]


def test_statistics_are_one_line_on_stderr():
    ran = Ran(answer("hi", prompt_tokens=10, tokens=6), stats=True)
    assert ran.err == (
        "prompt 10 tokens, 100.0 tok/s | generated 6 tokens, 10.0 tok/s | first token 0.12 s | load 0.50 s\n"
    )


DRAFTS = Drafts(steps=6, rounds=5, drafted=15, accepted=9, by_position=(4, 3, 2), plain_s=0.75)


def test_statistics_of_drafts_give_the_accept_length_both_ways():
    ran = Ran(answer("hi", tokens=16, drafts=DRAFTS), stats=True)
    assert ran.err.splitlines()[1] == (
        "drafts: 9 of 15 accepted (60 %) | accept length (n-1)/N 2.50, n/N 2.67 (n 16 tokens, N 6 steps, 5 with drafts)"
        " | kept by position 1:4 2:3 3:2 | 1.50 times plain speed"
    )


def test_statistics_of_drafts_say_what_is_not_known():
    unmeasured = Ran(answer("hi", tokens=16, drafts=replace(DRAFTS, plain_s=None)), stats=True)
    assert unmeasured.err.splitlines()[1].endswith(" | plain speed not measured yet")
    assert Ran(answer("hi", drafts=Drafts(steps=2)), stats=True).err.splitlines()[1] == "drafts: none in 2 steps"


def test_json_holds_the_counts_of_drafts():
    document = json.loads(Ran(answer("hi", drafts=DRAFTS), mode="json").out)
    assert document["drafts"] == [
        {"steps": 6, "rounds": 5, "drafted": 15, "accepted": 9, "by_position": [4, 3, 2], "plain_s": 0.75}
    ]


def test_an_instant_answer_divides_by_no_zero():
    ran = Ran([Started("s", 1), Finish("stop", Usage(1, 0))], stats=True, load_s=None)
    assert ran.err == "prompt 1 tokens | generated 0 tokens | first token 0.00 s\n"


def test_a_cut_answer_is_said_and_strict_makes_it_11():
    plain, strict = Ran(answer("x", reason="length")), Ran(answer("x", reason="length"), strict=True)
    assert (plain.code, strict.code) == (0, 11)
    assert "cut at 3 tokens" in plain.err


def test_a_notice_in_the_middle_of_a_line_waits_for_its_end():
    both = io.StringIO()  # as a terminal shows them
    view = AnswerView(Output(stdout=both, stderr=both))
    for event in (Notice("n", "first"), Text("one"), Notice("n", "lost"), Notice("spec_verify", "same"), Text(" two")):
        view.show(event)
    view.end()
    assert both.getvalue() == "warning: first\none two\nwarning: lost\nsame\n"


def test_notices_are_warnings():
    assert "warning: lost" in Ran([Started("s", 1), Notice("n", "lost"), *answer("x")[1:]]).err


def test_ctrl_c_keeps_the_text_and_gives_130():
    ran = Ran([Started("s", 1), Text("half"), KeyboardInterrupt])
    assert (ran.out, ran.code) == ("half\n", 130)
    assert ran.service.streams[0].closed


def test_ctrl_c_in_json_still_gives_one_document():
    ran = Ran([Started("s", 1), Text("half"), KeyboardInterrupt], mode="json")
    document = json.loads(ran.out)
    assert document["choices"][0] == {
        "index": 0, "message": {"role": "assistant", "content": "half"}, "finish_reason": "cancelled",
    }  # fmt: skip
    assert ran.code == 130


def test_a_failure_raises_after_the_text_so_far():
    with pytest.raises(RequestRefused):
        Ran([Started("s", 1), Text("half"), Failed(RequestRefused("bad"))])
    assert Ran.last.out == "half\n"


def test_json_has_the_openai_shape():
    ran = Ran([Started("s", 4), Reasoning("hm"), *answer("yes", prompt_tokens=4, tokens=2)[1:]], mode="json")
    document = json.loads(ran.out)
    assert (document["object"], document["schema"], document["model"]) == ("chat.completion", "llmrun.run.v1", "tiny")
    assert document["choices"][0]["message"] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    assert document["usage"]["total_tokens"] == 6
    assert ran.err == ""


def test_json_lines_are_the_events():
    lines = [json.loads(line) for line in Ran(answer("a", "b"), mode="jsonl").out.splitlines()]
    assert [line["type"] for line in lines] == ["started", "text", "text", "finish"]
    assert (lines[1]["text"], lines[3]["reason"]) == ("a", "stop")
    assert {line["schema"] for line in lines} == {"llmrun.run.event.v1"}


def test_logprobs_are_part_of_the_json():
    token = Token(7, -0.5, ((7, -0.5), (8, -1.0)))
    ran = Ran([Started("s", 1), Text("a", (token,)), Finish("stop", Usage(1, 1))], mode="json")
    entry = json.loads(ran.out)["choices"][0]["logprobs"]["content"][0]
    assert (entry["token"], entry["logprob"], len(entry["top_logprobs"])) == ("token_id:7", -0.5, 2)


def test_several_answers_are_separated_and_seeds_count_up():
    ran = Ran(answer("a"), answer("b"), count=2, seed=7)
    assert ran.out == "a\n\n---\n\nb\n"
    assert [p.seed for p in ran.service.params] == [7, 8]


def test_several_answers_are_choices_of_one_document():
    document = json.loads(Ran(answer("a"), answer("b"), count=2, mode="json").out)
    assert [c["message"]["content"] for c in document["choices"]] == ["a", "b"]
    assert document["usage"] == {
        "prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\n```python\nx = 1\n```\nb", "x = 1\n"),
        ("```\n```", ""),
        ("````md\n```\nin\n```\n````", "```\nin\n```\n"),
        ("~~~\nx\n~~~", "x\n"),
        ("```\nunclosed", "unclosed\n"),
        ("no `code` here", None),
        ("inline ```x``` only", None),
        ("1. ```", None),
    ],
)
def test_the_first_code_block_is_found(text: str, code: str | None):
    assert first_code_block(text) == code


def test_extract_prints_the_block_alone_and_says_when_there_is_none():
    assert Ran(answer("see\n```\nx\n", "```\nbye"), extract=True).out == "x\n"
    ran = Ran(answer("nothing"), extract=True)
    assert ran.out == "nothing\n"
    assert "no code block" in ran.err


def test_a_file_gets_the_text_and_stdout_nothing(tmp_path: Path):
    ran = Ran(answer("a\x1b[0m"), file=tmp_path / "o.txt")
    assert (ran.out, (tmp_path / "o.txt").read_text()) == ("", "a[0m\n")


def test_a_file_gets_the_part_when_stopped(tmp_path: Path):
    assert Ran([Started("s", 1), Text("half"), KeyboardInterrupt], file=tmp_path / "o.txt").code == 130
    assert (tmp_path / "o.txt").read_text() == "half\n"


@pytest.mark.parametrize(("name", "error"), [("none/o.txt", NotFound), ("", UsageError)])
def test_a_file_that_cannot_be_written_is_said_before_the_model_works(tmp_path: Path, name: str, error: type):
    with pytest.raises(error):
        Ran(answer("a"), file=tmp_path / name)
    assert Ran.last.service.requests == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch):
    target = tmp_path / "o.txt"
    target.write_text("old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="space"):
        Ran(answer("new"), file=target)
    assert (target.read_text(), os.listdir(tmp_path)) == ("old", ["o.txt"])


def test_a_time_limit_ends_the_answer_with_what_came():
    ended = threading.Event()

    def slow():
        yield Started("s", 1)
        yield Text("part")
        assert ended.wait(30)
        yield Finish("cancelled", Usage(1, 1))

    class Closing(ScriptedService):
        def stream(self, *args, **kwargs):
            stream = super().stream(*args, **kwargs)
            stream.close = ended.set
            return stream

    service = Closing(slow())
    out = io.StringIO()
    once = Once(Output(stdout=out, stderr=io.StringIO()), service, service.model, Manner(timeout_s=0.05))
    with pytest.raises(RequestRefused, match="not finished in 0.05 s"):
        once.run(REQUEST, SamplingParams())
    assert out.getvalue() == "part\n"


def test_a_time_limit_that_is_not_reached_changes_nothing():
    assert Ran(answer("x"), timeout_s=60.0).code == 0


def test_ctrl_c_in_the_very_moment_of_writing_still_ends_the_line():
    class Interrupted(io.StringIO):
        def flush(self) -> None:
            if self.getvalue() == "half":
                raise KeyboardInterrupt

    out = Interrupted()
    service = ScriptedService(answer("half", "whole"))
    once = Once(Output(stdout=out, stderr=io.StringIO()), service, service.model, Manner())
    assert once.run(REQUEST, SamplingParams())[1] == 130
    assert out.getvalue() == "half\n"
