"""The chat core with scripted answers: what is sent, kept, shown and refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from strata_cli.output import Output
from strata_cli.repl.chat import Chat
from strata_cli.repl.conversation import Conversation
from strata_cli.repl.input import PlainInput
from strata_cli.repl.loop import handle, run_loop
from strata_cli.repl.sessions import Sessions
from strata_engine.chat import Part
from strata_engine.config import SamplingParams
from strata_engine.errors import ContextExceeded, NotFound, RequestRefused
from strata_engine.events import Failed, Reasoning, Started, Text
from tests.support.scripted_service import ScriptedService, answer, loaded


class Desk:
    """A chat over a scripted service with its two outputs."""

    def __init__(self, folder: Path, *answers, **service_options) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.output = Output(stdout=self.out, stderr=self.err)
        self.service = ScriptedService(*answers, **service_options)
        self.chat = Chat(
            service=self.service,
            model=self.service.model,
            talk=Conversation("tiny", SamplingParams()),
            output=self.output,
            sessions=Sessions(folder / "sessions"),
            open_model=lambda name: (self.service, self.service.load(name)),
            list_models=lambda: ["other", "tiny"],
        )

    def say(self, *lines: str) -> None:
        for line in lines:
            handle(self.chat, line)

    @property
    def roles(self) -> list[tuple[str, str]]:
        return [(m.role, m.text) for m in self.chat.talk.messages]


@pytest.fixture
def desk(tmp_path: Path):
    return lambda *answers, **options: Desk(tmp_path, *answers, **options)


def test_an_answer_is_written_to_stdout_and_kept(desk):
    d = desk(answer("Hel", "lo."))
    d.say("hi")
    assert d.out.getvalue() == "Hello.\n"
    assert d.roles == [("user", "hi"), ("assistant", "Hello.")]


def test_the_next_question_carries_the_conversation_and_the_system_text(desk):
    d = desk(answer("one"), answer("two"))
    d.say("/system be brief", "a", "b")
    sent = d.service.requests[1].messages
    assert [(m.role, m.text) for m in sent] == [
        ("system", "be brief"), ("user", "a"), ("assistant", "one"), ("user", "b"),
    ]  # fmt: skip


def test_ctrl_c_keeps_the_part_and_marks_it(desk):
    d = desk([Started("s", 3), Text("half an"), KeyboardInterrupt])
    d.say("hi")
    assert d.out.getvalue() == "half an [stopped]\n"
    assert d.roles[-1] == ("assistant", "half an")
    assert d.chat.talk.shown()[-1] == ("assistant", "half an [stopped]")
    assert d.service.streams[0].closed


def test_ctrl_c_before_the_first_word_keeps_nothing(desk):
    d = desk([Started("s", 3), KeyboardInterrupt])
    d.say("hi")
    assert d.roles == []


def test_control_bytes_of_the_model_do_not_reach_the_terminal(desk):
    d = desk(answer("a\x1b]0;title\x07b\x9bc\r"))
    d.say("hi")
    assert d.out.getvalue() == "a]0;titlebc\n"


def test_thinking_goes_to_stderr_and_can_be_hidden(desk):
    events = [Started("s", 1), Reasoning("hm"), *answer("yes")[1:]]
    shown, hidden = desk(events), desk(events)
    hidden.chat.hide_thinking = True
    shown.say("hi")
    hidden.say("hi")
    assert (shown.out.getvalue(), hidden.out.getvalue()) == ("yes\n", "yes\n")
    assert "hm" in shown.err.getvalue()
    assert hidden.err.getvalue() == ""
    assert shown.chat.talk.messages[1].reasoning == "hm"


def test_thinking_is_dimmed_in_colour_only(desk):
    events = [Started("s", 1), Reasoning("hm"), *answer("yes")[1:]]
    d = desk(events)
    d.output.colour = True
    d.say("hi")
    assert d.err.getvalue() == "\x1b[2mhm\x1b[0m\n\n"


def test_an_unknown_slash_command_is_never_sent(desk):
    d = desk()
    d.say("/hlep", "/usr/bin/x says no", "/")
    assert d.service.requests == []
    assert "/help" in d.err.getvalue()


def test_two_slashes_send_one(desk):
    d = desk()
    d.say("//etc/passwd is what?")
    assert d.service.requests[0].messages[-1].text == "/etc/passwd is what?"


def test_blank_lines_send_nothing(desk):
    d = desk()
    d.say("", "   ", '""""""')
    assert d.service.requests == []


def test_an_image_path_is_refused_before_sending(desk, tmp_path: Path):
    (tmp_path / "cat.png").write_bytes(b"x")
    d = desk()
    d.say(f"what is in {tmp_path}/cat.png")
    assert d.service.requests == []
    assert "cannot see images" in d.err.getvalue()


def test_a_model_that_sees_is_sent_the_images_that_a_message_names(desk, tmp_path: Path):
    for name in ("cat", "dog"):
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    d = desk(answer("two"), answer("none"))
    d.chat.model = replace(d.chat.model, capabilities=("chat", "vision"))
    d.say(f"/image {tmp_path}/dog.png", f"is {tmp_path}/cat.png one?", "sure?")
    sent = d.service.requests[0].messages[-1].parts
    assert [(part.kind, part.data or part.text) for part in sent] == [
        ("image", b"dog"), ("image", b"cat"), ("text", "is one?"),
    ]  # fmt: skip
    assert "[image 1: dog.png]" in d.err.getvalue() and "[image 2: cat.png]" in d.err.getvalue()
    later = d.service.requests[1].messages  # images stay where they were, and are not sent a second time
    assert [[part.kind for part in message.parts] for message in later] == [
        ["image", "image", "text"],
        ["text"],
        ["text"],
    ]


def test_an_image_that_cannot_be_attached_leaves_the_next_message_alone(desk, tmp_path: Path):
    (tmp_path / "cat.png").write_bytes(b"x")
    d = desk(answer("fine"))
    d.say(f"/image {tmp_path}/cat.png")  # a model for text only
    d.chat.model = replace(d.chat.model, capabilities=("chat", "vision"))
    d.say(f"/image {tmp_path}/gone.png", f"/image {tmp_path}", "/image", "hi")
    assert d.err.getvalue().count("error:") == 4
    assert [part.kind for part in d.service.requests[0].messages[-1].parts] == ["text"]


@pytest.mark.parametrize("path", ["./no-cat.png", "/nowhere/cat.JPG", '"pictures/my cat.png"', "file:///no/cat.webp"])
def test_a_missing_image_is_one_error_and_nothing_is_sent(desk, path: str):
    d = desk(answer("never"))
    d.say(f"what is in {path}?")
    assert "no such image" in d.err.getvalue() and d.err.getvalue().count("error:") == 1
    assert d.service.requests == [] and d.roles == []


@pytest.mark.parametrize("name", ["cat.png", '"my cat.jpeg"', "CAT.PNG?"])
def test_a_name_without_a_folder_is_one_error_where_the_model_could_see_it(desk, name: str):
    d = desk(answer("never"))
    d.chat.model = replace(d.chat.model, capabilities=("chat", "vision"))
    d.say(f"what is in {name}")
    assert "no such image" in d.err.getvalue() and d.err.getvalue().count("error:") == 1
    assert "backticks" in d.err.getvalue()
    assert d.service.requests == []


@pytest.mark.parametrize("text", ["what of `cat.png`?", "save as .png", "all *.png files", "https://a.b/c.png"])
def test_words_that_name_no_image_are_sent_to_a_model_that_sees(desk, text: str):
    d = desk(answer("fine"))
    d.chat.model = replace(d.chat.model, capabilities=("chat", "vision"))
    d.say(text)
    assert d.roles[0] == ("user", text)


@pytest.mark.parametrize("text", ["how do I open cat.png?", "see `./no-cat.png`", "https://a.b/c.png", "and/or .png"])
def test_words_that_are_no_image_paths_are_sent(desk, text: str):
    d = desk(answer("fine"))
    d.say(text)
    assert d.roles[0] == ("user", text)


def test_a_refused_question_leaves_the_conversation_as_it_was(desk):
    d = desk(answer("one"), ContextExceeded("2000 tokens, 1000 fit"), [Started("s", 1), Failed(RequestRefused("no"))])
    d.say("a", "b", "c")
    assert d.roles == [("user", "a"), ("assistant", "one")]
    assert "2000 tokens" in d.err.getvalue()
    assert "/undo" in d.err.getvalue()


def test_a_nearly_full_context_is_said_and_nothing_is_dropped(desk):
    d = desk(answer("x", prompt_tokens=500, tokens=290), answer("y", prompt_tokens=800, tokens=20))
    d.say("a")
    assert "full" not in d.err.getvalue()
    d.say("b")
    assert "context 82 % full (820 of 1000 tokens)" in d.err.getvalue()
    assert len(d.chat.talk.messages) == 4


def test_an_answer_cut_by_length_is_said(desk):
    d = desk(answer("x", reason="length", tokens=7))
    d.say("a")
    assert "cut at 7 tokens" in d.err.getvalue()


def test_retry_asks_the_last_question_again(desk):
    d = desk(answer("one"), answer("bad"), answer("good"))
    d.say("a", "b", "/retry")
    assert [m.text for m in d.service.requests[2].messages] == ["a", "one", "b"]
    assert d.roles == [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "good")]


@pytest.mark.parametrize("second", [[Started("s", 1), KeyboardInterrupt], RequestRefused("no")])
def test_a_retry_that_gives_nothing_keeps_the_old_answer(desk, second):
    d = desk(answer("one"), second)
    d.say("a", "/regen")
    assert d.roles == [("user", "a"), ("assistant", "one")]


def test_retry_and_undo_on_an_empty_conversation_do_no_harm(desk):
    d = desk()
    d.say("/retry", "/undo", "/undo x")
    assert d.service.requests == []
    assert d.err.getvalue().count("error:") == 2


def test_undo_takes_back_exchanges(desk):
    d = desk(answer("1"), answer("2"), answer("3"))
    d.say("a", "b", "c", "/undo 2")
    assert d.roles == [("user", "a"), ("assistant", "1")]


def test_clear_forgets_the_messages_but_not_the_system_text(desk):
    d = desk()
    d.say("/set system be kind", "a", "/clear", "b")
    assert [m.text for m in d.service.requests[-1].messages] == ["be kind", "b"]


def test_parameters_are_set_by_name_and_reach_the_engine(desk):
    d = desk()
    d.say("/set parameter temp 0", "/set parameter stop END\\n", "/set parameter num_predict 5", "hi")
    params = d.service.params[0]
    assert (params.temperature, params.stop, params.max_tokens) == (0.0, ("END\n",), 5)


@pytest.mark.parametrize(
    "line", ["temperature hot", "top_p 2", "temprature 1", "num_ctx 4096", "temperature", "seed -5"]
)
def test_wrong_parameters_change_nothing(desk, line: str):
    d = desk()
    d.say(f"/set parameter {line}")
    assert d.chat.talk.params == SamplingParams()
    assert "error:" in d.err.getvalue()


def test_set_alone_says_what_can_be_set(desk):
    d = desk()
    d.say("/set")
    assert "error: /set needs to know what" in d.err.getvalue()
    assert "/set parameter" in d.err.getvalue()


def test_show_params_says_where_values_come_from(desk):
    d = desk()
    d.chat.origins = {"top_k": "flag"}
    d.say("/set parameter temperature 0.5", "/show params")
    rows = {line.split()[0]: line.split()[1:] for line in d.out.getvalue().splitlines()}
    assert rows["temperature"] == ["0.5", "set", "here"]
    assert rows["top_k"] == ["40", "flag"]


def test_think_levels_reach_the_request(desk):
    d = desk()
    d.say("/set think high", "a", "/set nothink", "b", "/set think", "c", "/set think much")
    assert [r.thinking for r in d.service.requests] == ["high", False, True]


def test_a_saved_session_comes_back_whole(desk):
    d = desk([Started("s", 1), Reasoning("hm"), Text("half"), KeyboardInterrupt])
    d.say("/system be brief", "/set parameter temperature 0.25", "/set parameter stop a", "hi", "/save my talk")
    other = desk()
    other.say("/load my talk")
    talk = other.chat.talk
    assert (talk.system, talk.params.temperature, talk.params.stop) == ("be brief", 0.25, ("a",))
    assert talk.shown() == [("user", "hi"), ("assistant", "half [stopped]")]
    assert talk.messages[1].reasoning == "hm"


def test_a_session_may_switch_the_model_and_load_may_too(desk):
    d = desk(known=["other"])
    d.say("a", "/save s", "/load other")
    assert d.chat.model.name == "other"
    assert d.roles[0] == ("user", "a")
    d.say("/load s")
    assert d.chat.model.name == "tiny"


def test_loading_what_is_not_there_keeps_the_chat(desk):
    d = desk()
    d.say("a", "/load nothing")
    assert (d.chat.model.name, len(d.chat.talk.messages)) == ("tiny", 2)
    assert "nothing" in d.err.getvalue()


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 200, "a\nb"])
def test_session_names_stay_in_their_folder(desk, tmp_path: Path, name: str):
    d = desk()
    d.say("a", f"/save {name}")
    assert "error:" in d.err.getvalue()
    assert not (tmp_path / "sessions").exists()


def test_a_damaged_session_is_named(desk, tmp_path: Path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    (folder / "bad.json").write_text("{")
    (folder / "odd.json").write_text('{"schema": "llmrun.session.v1", "model": "m", "messages": [{"role": "x"}]}')
    hot = {"schema": "llmrun.session.v1", "model": "m", "messages": [], "parameters": {"temperature": "hot"}}
    (folder / "hot.json").write_text(json.dumps(hot))
    d = desk()
    d.say("/load bad", "/load odd", "/load hot", "/sessions")
    assert d.err.getvalue().count("is damaged:") == 3


def test_a_session_that_cannot_be_written_leaves_the_old_one(desk, tmp_path: Path, monkeypatch):
    d = desk()
    d.say("a", "/save s")
    before = (tmp_path / "sessions" / "s.json").read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", "s.json")

    monkeypatch.setattr("os.fsync", full)
    d.say("b", "/save s")
    assert (tmp_path / "sessions" / "s.json").read_bytes() == before
    assert [p.name for p in (tmp_path / "sessions").iterdir()] == ["s.json"]
    assert "No space left" in d.err.getvalue()


def test_sessions_lists_them(desk):
    d = desk()
    d.say("a", "/save one", "/sessions")
    assert d.out.getvalue().splitlines()[-1].startswith("one")


def test_a_file_goes_in_front_of_the_next_message_only(desk, tmp_path: Path):
    (tmp_path / "x.py").write_text("a = 1\n")
    d = desk()
    d.say(f"/file {tmp_path}/x.py", "explain", "more")
    assert d.service.requests[0].messages[-1].text == "x.py:\n```python\na = 1\n```\n\nexplain"
    assert d.service.requests[1].messages[-1].text == "more"


def test_a_missing_or_binary_file_is_refused(desk, tmp_path: Path):
    (tmp_path / "b.bin").write_bytes(b"\0\1")
    d = desk()
    d.say(f"/file {tmp_path}/none.txt", f"/file {tmp_path}/b.bin", f"/file {tmp_path}", "/file x.png", "hi")
    assert d.err.getvalue().count("error:") == 4
    assert d.service.requests[0].messages[-1].parts == (Part("text", "hi"),)


def test_export_writes_markdown_and_json_and_overwrites_nothing(desk, tmp_path: Path):
    d = desk(answer("one"))
    d.say("a", f"/export {tmp_path}/t.md", f"/export {tmp_path}/t.json", f"/export {tmp_path}/t.md")
    assert "**assistant**\n\none" in (tmp_path / "t.md").read_text()
    assert json.loads((tmp_path / "t.json").read_text())["messages"][1]["content"] == "one"
    assert "exists" in d.err.getvalue()


def test_stats_are_shown_when_asked_for(desk):
    d = desk(answer("x", prompt_tokens=10, tokens=6))
    d.say("/set verbose", "a", "/stats")
    line = "prompt 10 tokens, 100.0 tok/s | generated 6 tokens, 10.0 tok/s | first token 0.12 s"
    assert line in d.err.getvalue()
    assert line in d.out.getvalue()


def test_drafts_can_be_switched_off_and_on(desk, tmp_path):
    d = desk()
    d.service.speculation = {"drafters": {"mtp": {"most": 3}}}
    d.say("a", "/set spec none", "b", "/save s", "/set spec mtp", "c", "/set spec none", "/set spec", "d")
    assert [params.speculate for params in d.service.params] == [True, False, True, True]
    d.say("/show info")
    assert "drafter mtp: no weights, up to 3 drafts a step" in d.out.getvalue()
    d.say("/set spec ngram")
    assert "/set spec ngram: not loaded" in d.err.getvalue()
    d.say("/load s")  # a session does not hold it: it belongs to how the model was loaded
    assert d.chat.talk.params.speculate


def test_drafts_cannot_be_switched_on_where_there_are_none(desk):
    d = desk()
    d.say("/set spec auto")
    assert "loaded without drafters" in d.err.getvalue()


def test_context_use_is_told(desk):
    d = desk(answer("x", prompt_tokens=240, tokens=10))
    d.say("a", "/tokens")
    assert d.out.getvalue().splitlines()[-1] == "250 of 1000 tokens used (25 %), 750 left"


@pytest.mark.parametrize("what", ["info", "params", "system", "template", "messages", "stats", "context", ""])
def test_every_part_can_be_shown_before_the_first_message(desk, what: str):
    d = desk()
    d.say(f"/show {what}")
    assert d.out.getvalue().strip()
    assert d.err.getvalue() == ""


def test_help_names_every_command(desk):
    from strata_cli.repl.slash import all_names

    d = desk()
    d.say("/help")
    assert [n for n in all_names() if n not in d.out.getvalue()] == []


def test_list_names_the_models(desk):
    d = desk()
    d.say("/list")
    assert d.out.getvalue().splitlines() == ["other", "tiny"]


def test_every_exchange_is_saved_under_the_session_name(desk, tmp_path: Path):
    d = desk()
    d.chat.session = "auto"
    d.say("a")
    assert len(json.loads((tmp_path / "sessions" / "auto.json").read_text())["messages"]) == 2


def test_an_unwritable_session_folder_does_not_end_the_chat(desk, tmp_path: Path):
    (tmp_path / "sessions").write_text("a file in the way")
    d = desk()
    d.chat.session = "auto"
    d.say("a", "b")
    assert len(d.chat.talk.messages) == 4
    assert "error:" in d.err.getvalue()


def test_wide_combining_and_right_to_left_text_passes_unchanged(desk):
    text = "e\u0301 \ud55c\uae00 \u05e2\u05d1\u05e8\u05d9\u05ea \U0001f468\u200d\U0001f469\u200d\U0001f467"
    d = desk(answer(text))
    d.say(text)
    assert d.service.requests[0].messages[-1].text == text
    assert d.out.getvalue() == text + "\n"


class Keys:
    """A line source that raises what it is told to."""

    def __init__(self, *steps) -> None:
        self._steps = list(steps)

    def read(self) -> str:
        step = self._steps.pop(0)
        if isinstance(step, type):
            raise step
        return step

    def set_history(self, keep: bool) -> None:
        self.keep = keep


def clock(*times: float):
    return iter(times).__next__


def test_end_of_input_leaves_with_zero(desk):
    assert run_loop(desk().chat, PlainInput([])) == 0


def test_bye_leaves_with_zero(desk):
    d = desk()
    assert run_loop(d.chat, Keys("a", "/bye")) == 0
    assert len(d.service.requests) == 1


def test_two_interrupts_within_two_seconds_leave_with_130(desk):
    d = desk()
    assert run_loop(d.chat, Keys(KeyboardInterrupt, KeyboardInterrupt), clock=clock(10.0, 11.9)) == 130
    assert "Ctrl-C again" in d.err.getvalue()


def test_interrupts_far_apart_or_with_a_message_between_do_not_leave(desk):
    keys = Keys(KeyboardInterrupt, KeyboardInterrupt, "a", KeyboardInterrupt, EOFError)
    assert run_loop(desk().chat, keys, clock=clock(10.0, 12.1, 12.2)) == 0


def test_a_first_message_is_sent_before_reading(desk):
    d = desk()
    run_loop(d.chat, PlainInput(["b"]), first="a")
    assert [r.messages[-1].text for r in d.service.requests] == ["a", "b"]


def test_history_can_be_switched_while_chatting(desk):
    d, keys = desk(), Keys("/set nohistory", EOFError)
    run_loop(d.chat, keys)
    assert keys.keep is False


def test_a_vanished_reader_ends_the_chat(desk, monkeypatch):
    d = desk()

    def gone(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(d.output, "write", gone)
    with pytest.raises(BrokenPipeError):
        d.say("a")
    assert d.service.streams[0].closed


def test_an_unknown_model_raises_not_found_from_switch(desk):
    with pytest.raises(NotFound):
        desk(model=loaded()).chat.switch("none")
