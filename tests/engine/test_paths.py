"""Where things live when there is no home, or a home that names nobody."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from strata_engine.env import VARIABLES, Env
from strata_engine.errors import UsageError
from strata_engine.paths import expand


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id that no account has, as in many containers."""

    def unknown(key: object) -> pwd.struct_passwd:
        raise KeyError(key)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_without_an_account_and_a_home_a_temporary_directory_serves(nobody: None):
    assert Env({}).paths().data.parent.name == f"llmrun-{os.getuid()}"


def test_a_temporary_directory_that_somebody_planted_is_refused(
    nobody: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / f"llmrun-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="belongs to somebody else"):
        Env({}).paths()


def test_a_home_of_an_unknown_user_stays_as_it_is_written(nobody: None):
    assert str(expand("~/x")) == "~/x"
    assert str(expand("~no-such-user/x")) == "~no-such-user/x"


def test_each_variable_is_described_once():
    names = [variable.name for variable in VARIABLES]
    assert len(names) == len(set(names))
