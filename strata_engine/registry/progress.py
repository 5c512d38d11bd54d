"""What a download tells while it runs: one dataclass for all events, made to be printed or written as a JSON line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`event`: plan | source | switch | start | download | waiting | retry | restart | verify | have | done.

    plan      total_bytes is what must be fetched, over all files
    source    `message` names where files come from; `switch`: why the last source was given up
    download  bytes so far of `file`; also while waiting for another process that fetches the same file
    verify    bytes hashed so far
    have      the file is on this disk already
    """

    event: str
    model: str = ""
    file: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    message: str = ""


Report = Callable[[Progress], None]


def ignore(_progress: Progress) -> None:
    """A report that nobody reads."""
