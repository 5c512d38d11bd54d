"""Settings: which source wins, what is refused, and that each value knows where it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_cli.globals import GlobalFlags
from strata_cli.keys import KEYS
from strata_cli.settings import load_settings
from strata_engine.config import SamplingParams
from strata_engine.env import Env
from strata_engine.errors import NotFound, UsageError


def settings(home: Path, text: str | None = None, flags: GlobalFlags = GlobalFlags(), **variables: str):
    env = Env({"LLMRUN_HOME": str(home), **variables})
    if text is not None:
        file = home / "config/config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return load_settings(flags, env, env.paths())


def test_without_any_source_values_are_built_in(tmp_path):
    found = settings(tmp_path)
    assert (found.get("ctx"), found.origin("ctx")) == ("auto", "built-in")


def test_the_config_file_wins_over_built_in_and_names_its_line(tmp_path):
    found = settings(tmp_path, "# mine\nthreads = 3\n")
    assert found.get("threads") == 3
    assert found.origin("threads") == f"{tmp_path / 'config/config.toml'}:2"


def test_the_environment_wins_over_the_config_file(tmp_path):
    found = settings(tmp_path, "threads = 3\n", LLMRUN_THREADS="5")
    assert (found.get("threads"), found.origin("threads")) == (5, "LLMRUN_THREADS")


def test_a_flag_wins_over_everything(tmp_path):
    found = settings(tmp_path, "threads = 3\n", LLMRUN_THREADS="5").override({"threads": 7})
    assert (found.get("threads"), found.origin("threads")) == (7, "flag")


def test_model_defaults_stand_between_built_in_and_what_the_user_chose(tmp_path):
    model = SamplingParams(temperature=0.2, top_k=11, seed=4)
    found = settings(tmp_path, "top_k = 5\n").with_model_defaults(model)
    assert (found.get("temperature"), found.origin("temperature")) == (0.2, "model")
    assert found.get("top_k") == 5
    assert found.origin("top_p") == "built-in"
    assert found.sampling(model).seed == 4


def test_an_unknown_key_is_an_error_with_line_and_near_names(tmp_path):
    with pytest.raises(UsageError) as caught:
        settings(tmp_path, 'kv_type = "f16"\ntemprature = 1\n')
    assert "config.toml:2" in caught.value.message
    assert "temperature" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('threads = "4"\n', "config.toml:1: threads: '4' is not a whole number"),
        ("threads = true\n", "is not a whole number"),
        ("temperature = 'hot'\n", "is not a number"),
        ("temperature = nan\n", "outside"),
        ("mmap = 1\n", "is not true or false"),
        ("kv_type = 'q4'\n", "not one of f16, bf16, f32"),
        ("ctx = 'many'\n", "is not a number of tokens"),
        ("ctx = 3\n", "outside 16 to"),
        ("\n\nthreads = [\n", "config file"),
        ("[server]\nport = 1\n", "config.toml:1: unknown setting server"),
    ],
)
def test_a_wrong_value_in_the_file_is_an_error_that_says_what_is_allowed(tmp_path, text, said):
    with pytest.raises(UsageError) as caught:
        settings(tmp_path, text)
    assert said in caught.value.message


def test_a_config_file_that_is_not_utf8_or_is_a_directory_is_an_error(tmp_path):
    file = tmp_path / "config/config.toml"
    file.parent.mkdir()
    file.write_bytes(b"ctx = \xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        settings(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        settings(tmp_path)


def test_a_byte_order_mark_in_the_config_file_is_no_fault(tmp_path):
    assert settings(tmp_path, "\ufeffthreads = 2\n").get("threads") == 2


def test_a_wrong_variable_is_named(tmp_path):
    with pytest.raises(UsageError, match="LLMRUN_CTX: 'x' is not a number of tokens"):
        settings(tmp_path, LLMRUN_CTX="x")


@pytest.mark.parametrize(("text", "tokens"), [("4096", 4096), ("8k", 8192), ("AUTO", "auto"), ("max", "auto")])
def test_a_context_may_be_a_number_thousands_or_a_word(tmp_path, text, tokens):
    assert settings(tmp_path, LLMRUN_CTX=text).get("ctx") == tokens


@pytest.mark.parametrize("name", ["LLMRUN_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_each_offline_variable_counts_and_is_named_as_origin(tmp_path, name):
    found = settings(tmp_path, **{name: "1"})
    assert (found.get("offline"), found.origin("offline")) == (True, name)


def test_offline_can_be_set_in_the_config_file(tmp_path):
    assert settings(tmp_path, "offline = true\n").get("offline") is True


def test_history_is_off_by_its_variable(tmp_path):
    assert settings(tmp_path, LLMRUN_NOHISTORY="1").get("history") is False


def test_a_project_file_counts_only_when_it_is_named(tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "llmrun.toml").write_text("threads = 9\n", encoding="utf-8")
    monkeypatch.chdir(project)
    assert settings(tmp_path).get("threads") == 0
    assert settings(tmp_path, flags=GlobalFlags(config="llmrun.toml")).get("threads") == 9


def test_a_named_config_file_that_is_missing_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        settings(tmp_path, flags=GlobalFlags(config=str(tmp_path / "none.toml")))


def test_catalog_files_come_strongest_first(tmp_path):
    files = [tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml")]
    user = tmp_path / "config/models.yaml"
    user.parent.mkdir()
    for file in (*files, user):
        file.write_text("models: []\n", encoding="utf-8")
    found = settings(tmp_path, flags=GlobalFlags(models=str(files[0])), LLMRUN_MODELS=f"{files[1]}:{files[2]}")
    assert found.catalog_files == [*files, user]


def test_a_missing_catalog_file_names_where_it_was_asked_for(tmp_path):
    with pytest.raises(NotFound, match="LLMRUN_MODELS"):
        settings(tmp_path, LLMRUN_MODELS=str(tmp_path / "none.yaml"))


def test_the_engine_config_is_made_of_the_settings(tmp_path):
    config = settings(tmp_path, "ctx = 2048\nkv_type = 'f32'\nmmap = false\n").engine_config()
    assert (config.context_tokens, config.kv_type, config.mmap) == (2048, "f32", False)


def test_auto_context_and_minus_one_mean_no_limit(tmp_path):
    found = settings(tmp_path, "repeat_last_n = -1\n")
    assert found.engine_config().context_tokens is None
    params = found.sampling()
    assert params.max_tokens is None and params.seed is None and params.penalty_last_n > 10**6


def test_built_in_values_pass_their_own_checks_and_equal_the_engine_defaults():
    for key in KEYS.values():
        assert key.check(key.default) == key.default
    defaults = SamplingParams()
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"):
        assert KEYS[name].default == getattr(defaults, name)
    assert KEYS["repeat_last_n"].default == defaults.penalty_last_n


def test_an_unknown_variable_of_ours_is_noticed():
    assert Env({"LLMRUN_THREAD": "1", "LLMRUN_CTX": "1", "LLMRUN_TEST_SHELLS": "1"}).unknown() == ("LLMRUN_THREAD",)
