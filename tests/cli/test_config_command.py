"""`llmrun config`: values, origins, and a file whose other lines stay as they are."""

from __future__ import annotations

import json
import os
import stat

import pytest

from tests.support.program import environment, run


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "llmrun/config/config.toml"
    path.parent.mkdir(parents=True)
    return path


def test_list_names_every_setting_and_its_origin_when_asked(env):
    done = run(["config", "list", "--origin"], {**env, "LLMRUN_CTX": "4096"})
    lines = {line.split()[0]: line.split()[1:] for line in done.out.splitlines()}
    assert lines["ctx"] == ["4096", "LLMRUN_CTX"]
    assert lines["top_k"] == ["40", "built-in"]


def test_list_as_json_is_one_document(env):
    document = json.loads(run(["config", "list", "--json"], env).out)
    assert document["schema"] == "llmrun.config.v1"
    assert {"name": "top_k", "value": 40, "origin": "built-in"}.items() <= {
        key: value for setting in document["settings"] if setting["name"] == "top_k" for key, value in setting.items()
    }.items()


def test_set_get_and_unset_go_round(env):
    assert run(["config", "set", "kv-type", "f32"], env).code == 0
    assert run(["config", "get", "kv_type"], env).out == "f32\n"
    assert run(["config", "unset", "kv_type"], env).code == 0
    assert run(["config", "get", "kv_type"], env).out == "f16\n"


def test_a_negative_value_needs_no_dashes(env):
    assert run(["config", "set", "seed", "-1"], env).code == 0
    assert run(["config", "get", "seed"], env).out == "-1\n"


def test_comments_order_and_other_lines_survive_a_change(env, file):
    file.write_text("# top\nthreads = 2  # two\n\ntop_k = 7\n", encoding="utf-8")
    run(["config", "set", "threads", "4"], env)
    run(["config", "set", "ctx", "8k"], env)
    assert file.read_text(encoding="utf-8") == "# top\nthreads = 4  # two\n\ntop_k = 7\nctx = 8192\n"


def test_a_text_value_is_quoted_so_that_it_comes_back_the_same(env):
    text = 'code --wait "a b" \\ é'
    run(["config", "set", "editor", "--", text], env)
    assert run(["config", "get", "editor"], env).out == text + "\n"


@pytest.mark.parametrize("value", ["x", "-5", "1.5", "99999999"])
def test_a_wrong_value_is_refused_and_nothing_is_written(env, file, value):
    done = run(["config", "set", "threads", value], env)
    assert done.code == 2 and done.err.startswith("error: threads: ")
    assert not file.exists()


def test_an_unknown_name_is_refused_with_near_names(env):
    done = run(["config", "set", "temp", "1"], env)
    assert (done.code, done.err) == (2, "error: unknown setting: temp\n  try: temperature\n")


def test_unset_of_what_is_not_set_says_so(env):
    assert "was not set" in run(["config", "unset", "ctx"], env).err


def test_set_warns_when_the_environment_wins(env):
    assert "LLMRUN_CTX is set" in run(["config", "set", "ctx", "4096"], {**env, "LLMRUN_CTX": "64"}).err


def test_a_broken_file_is_an_error_with_its_line_and_can_be_repaired_by_unset(env, file):
    file.write_text("threads = 'x'\n", encoding="utf-8")
    done = run(["config", "list"], env)
    assert done.code == 2 and f"{file}:1" in done.err
    assert run(["config", "unset", "threads"], env).code == 0
    assert run(["config", "list"], env).code == 0


def test_a_key_is_never_shown_and_its_file_is_private(env, file):
    assert run(["config", "set", "api_key", "hunter2"], env).code == 0
    for args in (["config", "list"], ["config", "list", "--json"], ["config", "get", "api_key", "--json"]):
        assert "hunter2" not in run(args, env).out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_linked_config_file_stays_a_link(env, file, tmp_path):
    target = tmp_path / "dotfiles.toml"
    target.write_text("top_k = 1\n", encoding="utf-8")
    file.symlink_to(target)
    run(["config", "set", "top_k", "2"], env)
    assert file.is_symlink() and target.read_text(encoding="utf-8") == "top_k = 2\n"


def test_path_prints_the_file_in_force(env, file, tmp_path):
    assert run(["config", "path"], env).out == f"{file}\n"
    other = tmp_path / "other.toml"
    assert run(["config", "path", "--config", str(other)], env).out == f"{other}\n"


def test_edit_runs_the_editor_and_checks_the_result(env, file):
    append = "sh -c 'echo threads = 3 >> \"$1\"' edit"
    assert run(["config", "edit"], {**env, "LLMRUN_EDITOR": append}).code == 0
    assert run(["config", "get", "threads"], env).out == "3\n"
    broken = "sh -c 'echo nonsense = 3 >> \"$1\"' edit"
    done = run(["config", "edit"], {**env, "EDITOR": broken})
    assert done.code == 2 and "unknown setting nonsense" in done.err


def test_edit_takes_the_editor_from_the_settings_and_opens_even_a_broken_file(env, file):
    run(["config", "set", "editor", "true"], env)
    assert run(["config", "edit"], env).code == 0
    file.write_text("threads = 'x'\n", encoding="utf-8")
    repair = "sh -c 'echo threads = 2 > \"$1\"' edit"
    assert run(["config", "edit"], {**env, "EDITOR": repair}).code == 0


def test_edit_without_an_editor_or_with_a_broken_one_says_so(env):
    assert "set EDITOR" in run(["config", "edit"], env).err
    assert "cannot start the editor" in run(["config", "edit"], {**env, "EDITOR": "/nonexistent/editor"}).err
    assert run(["config", "edit"], {**env, "EDITOR": "false"}).code == 1


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_an_error(env, file):
    file.parent.chmod(0o500)
    done = run(["config", "set", "ctx", "64"], env)
    assert done.code != 0 and "Permission denied" in done.err


def test_a_home_beyond_ascii_with_blanks_works(tmp_path):
    home = tmp_path / "資料　x Café Загрузки"
    home.mkdir()
    env = environment(home)
    assert run(["config", "set", "ctx", "64"], env).code == 0
    assert run(["config", "get", "ctx", "--origin"], env).out == f"64\t{home}/llmrun/config/config.toml:1\n"
