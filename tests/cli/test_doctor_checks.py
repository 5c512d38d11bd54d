"""All checks of `llmrun doctor` together, over made-up environments."""

from __future__ import annotations

import pytest

from strata_cli.app import App
from strata_cli.doctor_checks import run_all
from strata_cli.globals import GlobalFlags
from strata_cli.output import Output
from strata_engine.doctor.check import Check, exit_code
from strata_engine.env import Env
from tests.support.program import environment, run


def checks_of(home, **variables: str) -> list[Check]:
    env = Env({"HOME": str(home), "LLMRUN_HOME": str(home / "llmrun"), "LLMRUN_OFFLINE": "1", **variables})
    return run_all(App(GlobalFlags(), env, env.paths(), Output()))


def named(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_each_check_has_a_status_and_a_remedy_where_something_is_wrong(tmp_path):
    checks = checks_of(tmp_path)
    assert exit_code(checks) == 0
    names = {check.name for check in checks}
    assert {"python", "processor", "memory", "kernels", "disk", "store", "config", "completion", "server"} <= names
    for check in checks:
        assert check.status in ("ok", "warn", "skip"), check
        assert check.remedy or check.status != "warn"


def test_offline_no_host_is_asked(tmp_path):
    checks = checks_of(tmp_path)
    assert {named(checks, name).status for name in ("hub", "modelscope", "package index")} == {"skip"}


def test_nothing_is_left_behind(tmp_path):
    checks_of(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_config_is_a_failure_and_every_other_check_still_runs(tmp_path):
    file = tmp_path / "llmrun/config/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("threds = 1\n", encoding="utf-8")
    checks = checks_of(tmp_path)
    assert exit_code(checks) == 10
    assert named(checks, "config").status == "fail" and "threads" in named(checks, "config").remedy
    assert len(checks) > 10


def test_a_broken_catalog_is_a_failure_with_its_line(tmp_path):
    file = tmp_path / "llmrun/config/models.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("models:\n\t- name: x\n", encoding="utf-8")
    check = named(checks_of(tmp_path), "catalog")
    assert check.status == "fail" and "line 2" in check.text


def test_a_misspelt_variable_is_a_warning(tmp_path):
    check = named(checks_of(tmp_path, LLMRUN_THREDS="2"), "config")
    assert check.status == "warn" and "LLMRUN_THREDS" in check.text


def test_a_store_that_cannot_be_used_is_the_only_failure(tmp_path):
    (tmp_path / "file").touch()
    checks = checks_of(tmp_path, LLMRUN_MODELS_DIR=str(tmp_path / "file/models"))
    assert [check.name for check in checks if check.status == "fail"] == ["store"]


@pytest.mark.slow
def test_the_command_prints_one_line_a_check_and_ends_with_its_code(tmp_path):
    file = tmp_path / "llmrun/config/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("threds = 1\n", encoding="utf-8")
    done = run(["doctor"], environment(tmp_path))
    assert done.code == 10
    assert "\nfail  config " in done.out and "try: threads" in done.out
    assert "\x1b" not in done.out and done.err == ""
