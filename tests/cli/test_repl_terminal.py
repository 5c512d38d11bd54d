"""chat in a real terminal: the program in a pty, a real HTTP server, and a scripted engine behind it."""

from __future__ import annotations

import json
import os
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.support.fake_service import FakeService
from tests.support.live_server import live_server

ROOT = Path(__file__).resolve().parents[2]
READY, TURN = "/help, Ctrl-D leaves", "\x1b[?2004h"  # each prompt switches bracketed paste on
PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"


class Terminal:
    """One `llmrun chat` in a pty. Bytes that come out are kept for a look at escape codes."""

    def __init__(self, home: Path, url: str, *args: str, **env: str) -> None:
        places = {
            "LLMRUN_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(str(ROOT / p) for p in (".", "backends", "kernels")),
        }
        keep = {k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}
        command = ["-m", "strata_cli", "chat", "tiny", "--server", url, *args]
        self.child: Any = pexpect.spawn(
            sys.executable, command, env={**keep, "TERM": "xterm", **places, **env}, encoding="utf-8", timeout=20,
            dimensions=(40, 200), cwd=str(home),
        )  # fmt: skip
        self.home = home
        self.child.delaybeforesend = None

    def ready(self) -> Terminal:
        self.child.expect_exact(READY)
        return self.prompt()

    def prompt(self, mark: str = TURN) -> Terminal:
        self.child.expect_exact(mark)
        limit = time.monotonic() + 10
        while termios.tcgetattr(self.child.child_fd)[3] & termios.ICANON and time.monotonic() < limit:
            time.sleep(0.005)  # until the editor reads keys: earlier ones are echoed and changed by the pty
        return self

    def send(self, text: str) -> Terminal:
        self.child.send(text)
        return self

    def say(self, text: str, answer: str) -> Terminal:
        self.send(text + "\r")
        self.child.expect_exact(answer)
        return self.prompt()

    def code(self) -> int:
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService(pace_s=0.002)
    fake.load("tiny")
    yield fake
    fake.close()


@pytest.fixture
def start(service: FakeService, tmp_path: Path):
    started: list[Terminal] = []
    with live_server(service) as live:

        def begin(*args: str, **env: str) -> Terminal:
            started.append(Terminal(tmp_path, live.url, *args, **env))
            return started[-1]

        yield begin
        for terminal in started:
            terminal.child.close(force=True)


def sent(service: FakeService) -> list[str]:
    """The last message of every request."""
    return [request.messages[-1].text for request in service.requests]


def test_a_message_is_answered_and_ctrl_d_leaves_with_zero(start):
    chat = start().ready().say("say: hello there", "hello there")
    assert chat.send("\x04").code() == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_part(start, service):
    chat = start().ready().send("Count to a million\r")
    chat.child.expect_exact("1 2 3 ")
    chat.send("\x03")
    chat.child.expect_exact("[stopped]")
    chat.prompt().say("/show messages", "[stopped]").say("/save cut", "saved as cut")
    service.wait_until(lambda fake: fake.idle)
    saved = json.loads((chat.home / "data" / "sessions" / "cut.json").read_text())
    assert saved["messages"][1]["content"].startswith("1 2 3 ")
    assert saved["messages"][1]["stopped"] is True
    assert chat.send("\x04").code() == 0


def test_keys_typed_into_an_answer_wait_for_the_next_prompt(start, service):
    chat = start().ready().send(f"say: {'ab' * 300} end\r")
    chat.child.expect_exact("end")  # the line editor shows the question
    chat.child.expect_exact("abab")
    chat.send("say: later")
    chat.child.expect_exact("end")
    assert "later" not in chat.child.before
    chat.prompt().child.expect_exact("say: later")  # the line editor shows what waited
    chat.send("\r")
    service.wait_until(lambda fake: sent(fake)[-1:] == ["say: later"])


def test_retry_save_and_load_work_from_the_keyboard(start, service):
    chat = start().ready().say("say: one", "one").say("/retry", "one").say("/save talk", "saved as talk")
    chat.say("/clear", "cleared").say("/load talk", "2 messages").say("say: two", "two")
    assert [m.text for m in service.requests[-1].messages] == ["say: one", "one", "say: two"]
    assert chat.send("/bye\r").code() == 0


def test_ctrl_c_clears_a_line_then_hints_then_leaves_with_130(start, service):
    chat = start().ready().send("half a line").send("\x03").send("\x03")
    chat.child.expect_exact("Ctrl-C again")
    chat.prompt().send("\x03")
    assert chat.code() == 130
    assert service.requests == []


@pytest.mark.parametrize("keys", ["a\x1b\rb\r", "a\nb\r", "a\\\rb\r", '"""\ra\rb\r"""\r'])
def test_every_way_to_a_second_line(start, service, keys: str):
    chat = start().ready().send(keys.replace("b", "say: b"))
    chat.prompt().send("\x04").code()
    assert sent(service) == ["a\nsay: b"]


def test_a_paste_of_several_lines_sends_nothing_by_itself(start, service):
    chat = start().ready().send(f"{PASTE_BEGIN}one\ntwo\nthree{PASTE_END}")
    chat.child.expect_exact("three")
    assert service.requests == []
    chat.send("\r").prompt().send("\x04").code()
    assert sent(service) == ["one\ntwo\nthree"]


def test_wide_and_combining_characters_do_not_break_the_editor(start, service):
    text = "e\u0301 \ud55c\uae00 \u05e2\u05d1\u05e8\u05d9\u05ea"
    chat = start().ready().send(text + "X\x7f\r").prompt()
    chat.send("\x04").code()
    assert sent(service) == [text]


def test_the_history_file_is_private_and_can_be_switched_off(start):
    first = start().ready().say("say: one", "one")
    first.send("\x04").code()
    history = first.home / "state" / "history"
    assert "say: one" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    start("--no-history").ready().say("say: two", "two").send("\x04").code()
    start(LLMRUN_NOHISTORY="1").ready().say("say: three", "three").send("\x04").code()
    assert "two" not in history.read_text()
    assert "three" not in history.read_text()
    assert (first.home / "data" / "sessions" / "last.json").read_text().count("say: one") == 1


def test_up_brings_back_a_message_of_an_earlier_chat(start, service):
    start().ready().say("say: once", "once").send("\x04").code()
    start().ready().send("\x1b[A\r").prompt().send("\x04").code()
    assert sent(service) == ["say: once"] * 2


def test_tab_completes_slash_commands_and_paths(start):
    chat = start().ready()
    (chat.home / "notes.txt").write_text("the notes")
    chat.send("/fi\t")
    chat.child.expect_exact("/file")
    chat.send(" ./no\t\r")
    chat.child.expect_exact("go in front of your next message")
    chat.prompt().send("\x04").code()


def test_continue_goes_on_with_the_last_chat(start, service):
    start().ready().say("say: one", "one").send("\x04").code()
    start("--continue").ready().say("say: two", "two").send("\x04").code()
    assert [m.text for m in service.requests[-1].messages] == ["say: one", "one", "say: two"]


def test_a_read_only_home_does_not_keep_anybody_from_chatting(start, tmp_path: Path):
    (tmp_path / "state").write_text("a file in the way")
    (tmp_path / "data").write_text("another one")
    chat = start().ready().say("say: hi", "hi")
    assert chat.send("\x04").code() == 0


def test_a_dumb_terminal_gets_no_escape_codes(start):
    chat = start(TERM="dumb", NO_COLOR="1")
    chat.child.expect_exact(READY)
    seen = chat.child.before
    chat.child.expect_exact(">>> ")
    chat.send("say: hi\r")
    chat.child.expect_exact("hi\r\nhi\r\n")
    seen += chat.child.before
    chat.child.expect_exact(">>> ")
    chat.send("\x04")
    chat.child.expect(pexpect.EOF)
    assert "\x1b" not in seen + chat.child.before
