"""What the words on the command line mean, and how piped text, files and words become one prompt."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from strata_cli.prompt import (
    Spoken,
    fenced_file,
    join_prompt,
    looks_like_model,
    read_piped,
    split_model,
    system_text,
)  # fmt: skip
from strata_engine.errors import NotFound, RequestRefused, UsageError

NAMES = ["smollm2", "qwen3", "mine"]


def split(*words: str) -> Spoken:
    return split_model(words, lambda w: w.partition(":")[0] in NAMES, lambda: NAMES)


@pytest.mark.parametrize(
    ("words", "model", "said"),
    [
        ((), "", None),
        (("smollm2",), "smollm2", None),
        (("smollm2:q4_1",), "smollm2:q4_1", None),
        (("Why is the sky blue?",), "", "Why is the sky blue?"),
        (("hello",), "", "hello"),
        (("smollm2", "hello"), "smollm2", "hello"),
        (("smollm2", "-5", "+", "3"), "smollm2", "-5 + 3"),
        (("-5", "+", "3"), "", "-5 + 3"),
        (("unknown", "hello"), "unknown", "hello"),
        (("two words", "more"), "", "two words more"),
        (("./x.gguf",), "./x.gguf", None),
        (("hf.co/u/r:Q4_K_M", "hi"), "hf.co/u/r:Q4_K_M", "hi"),
        (("smollm2", "-"), "smollm2", "-"),
        (("-",), "", "-"),
        (("@file",), "", "@file"),
        (("/help",), "", "/help"),
        (('"""',), "", '"""'),
    ],
)
def test_words_are_told_apart(words: tuple[str, ...], model: str, said: str | None):
    assert split(*words) == Spoken(model, said)


def test_one_word_that_is_nearly_a_model_is_a_mistake_and_not_a_question():
    with pytest.raises(NotFound, match="smolm2") as caught:
        split("smolm2")
    assert "smollm2" in caught.value.hint


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("x.gguf", True), ("../m", True), ("https://h/x", True), ("what is x.gguf?", False), ("", False), ("-x", False),
     ("a" * 5000, False), ("nul\0byte", False)],
)  # fmt: skip
def test_only_names_of_files_and_hubs_look_like_models(word: str, wanted: bool):
    assert looks_like_model(word) is wanted


def test_an_existing_path_with_blanks_is_a_model(tmp_path: Path):
    path = tmp_path / "my model.gguf"
    path.write_bytes(b"x")
    assert looks_like_model(str(path))


def test_piped_text_comes_first_then_files_then_words(tmp_path: Path):
    (tmp_path / "a.py").write_text("x = 1\n")
    found = join_prompt("piped\n", [str(tmp_path / "a.py")], "words")
    assert found == "piped\n\na.py:\n```python\nx = 1\n```\n\nwords"


@pytest.mark.parametrize(("piped", "words"), [("", None), ("\n\n", "  "), ("", "\t\n")])
def test_only_blanks_are_a_usage_error(piped: str, words: str | None):
    with pytest.raises(UsageError, match="empty"):
        join_prompt(piped, (), words)


def test_a_fence_is_longer_than_any_in_the_file(tmp_path: Path):
    (tmp_path / "a.md").write_text("```\nx\n```\n")
    assert fenced_file(str(tmp_path / "a.md")).count("````") == 2


@pytest.mark.parametrize(
    ("name", "error"), [("none.txt", NotFound), (".", UsageError), ("bin", UsageError), ("cat.PNG", RequestRefused)]
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, name: str, error: type):
    (tmp_path / "bin").write_bytes(b"a\0b")
    with pytest.raises(error):
        fenced_file(str(tmp_path / name))


def test_system_text_may_come_from_a_file(tmp_path: Path):
    (tmp_path / "s.txt").write_text("\ufeffbe brief\n", encoding="utf-8")
    assert system_text(f"@{tmp_path}/s.txt") == "be brief"
    assert (system_text("plain"), system_text(None), system_text("@")) == ("plain", "", "@")
    with pytest.raises(NotFound):
        system_text("@/nowhere/s.txt")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_not_read_unless_asked_for():
    assert read_piped(Terminal("typed"), print) == ""
    assert read_piped(Terminal("typed"), print, only=True) == "typed"


def test_no_stdin_at_all_is_empty():
    assert read_piped(None, print) == ""


def test_a_file_as_stdin_is_read_as_text(tmp_path: Path):
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbfhi \xff\r\n")
    with (tmp_path / "in").open() as file:
        assert read_piped(file, print) == "hi \ufffd\r\n"


def test_binary_stdin_is_refused(tmp_path: Path):
    (tmp_path / "in").write_bytes(b"GGUF\0\0")
    with (tmp_path / "in").open() as file, pytest.raises(UsageError, match="not text"):
        read_piped(file, print)


def test_an_idle_pipe_is_said_and_then_waited_for():
    read_end, write_end = os.pipe()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        threading.Thread(target=lambda: (os.write(write_end, b"late"), os.close(write_end))).start()

    with os.fdopen(read_end) as stdin:
        assert read_piped(stdin, say) == "late"
    assert "standard input" in said[0]
