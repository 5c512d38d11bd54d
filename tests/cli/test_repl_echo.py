"""The terminal while an answer streams: no echo, Ctrl-C alive, typed-ahead keys kept, all as before afterwards."""

from __future__ import annotations

import os
import pty
import select
import termios
from collections.abc import Iterator
from io import StringIO
from typing import TextIO

import pytest

from strata_cli.repl.echo import keys_unseen


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as stream:
        yield master, stream
    os.close(master)


def local_flags(stream: TextIO) -> int:
    return termios.tcgetattr(stream.fileno())[3]


def test_keys_are_hidden_inside_and_shown_again_behind(terminal):
    master, stream = terminal
    before = termios.tcgetattr(stream.fileno())
    assert before[3] & termios.ECHO
    with keys_unseen(stream):
        assert not local_flags(stream) & termios.ECHO
        assert local_flags(stream) & termios.ISIG
        os.write(master, b"typed ahead\n")
    assert termios.tcgetattr(stream.fileno()) == before
    assert stream.readline() == "typed ahead\n"


def test_ctrl_c_keeps_what_was_typed_ahead(terminal):
    master, stream = terminal
    with keys_unseen(stream):
        os.write(master, b"typed \x03ahead\n")
        assert select.select([stream], [], [], 60)[0]  # the terminal takes it in later than write() returns
    assert stream.readline() == "typed ahead\n"


def test_a_crash_leaves_the_terminal_as_it_was(terminal):
    _, stream = terminal
    before = termios.tcgetattr(stream.fileno())
    with pytest.raises(KeyboardInterrupt), keys_unseen(stream):
        raise KeyboardInterrupt
    assert termios.tcgetattr(stream.fileno()) == before


def test_no_terminal_is_left_alone(tmp_path):
    ran = []
    with keys_unseen(StringIO()), open(tmp_path / "f", "w") as file, keys_unseen(file):
        ran.append(True)
    assert ran
