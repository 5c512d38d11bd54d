"""A sign of life while a long prompt is read: on a terminal only, gone before the answer."""

from __future__ import annotations

import io

import pytest

from strata_cli.output import Output
from strata_cli.repl.render import AnswerView
from strata_engine.events import Finish, Reading, Started, Text


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def shown(stderr: io.StringIO, quiet: bool = False, last: object = Text("hi")) -> tuple[str, str]:
    output = Output(quiet=quiet, stdout=io.StringIO(), stderr=stderr)
    view = AnswerView(output)
    for event in (Started("s", 2000), Reading(512, 2000), Reading(1024, 2000), last, Finish("stop")):
        view.show(event)  # type: ignore[arg-type]
    view.end()
    assert isinstance(output.stdout, io.StringIO)
    return output.stdout.getvalue(), stderr.getvalue()


def test_the_line_is_replaced_and_wiped_before_the_answer():
    out, err = shown(Terminal())
    wipe = "\r\x1b[2K"
    assert err == f"{wipe}reading prompt 512/2000{wipe}reading prompt 1024/2000{wipe}"
    assert out == "hi\n"


def test_an_answer_that_never_comes_leaves_no_line():
    output = Output(stdout=io.StringIO(), stderr=Terminal())
    view = AnswerView(output)
    view.show(Reading(512, 2000))
    view.end("[stopped]")
    assert isinstance(output.stderr, Terminal)
    assert output.stderr.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize(("stderr", "quiet"), [(io.StringIO(), False), (Terminal(), True)], ids=["a file", "quiet"])
def test_elsewhere_nothing_is_said(stderr, quiet):
    assert shown(stderr, quiet) == ("hi\n", "")
