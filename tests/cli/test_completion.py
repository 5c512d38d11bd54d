"""What a Tab offers, without a shell: words in, candidates and directives out."""

from __future__ import annotations

import json

import pytest

from strata_cli import completion, completion_scripts
from strata_cli.completion import Tables, complete, dequote, render

STATIC = {
    "globals": {"--json": ["", "data"], "--color": ["auto|always|never", "when"], "--config": ["FILE", "file"]},
    "commands": {
        "chat": {"summary": "Chat", "flags": {"--ctx": ["N|auto", "context"], "-c": ["N|auto", ""]},
                 "arguments": ["MODEL", "PROMPT*"]},
        "ls": {"summary": "List", "flags": {}, "arguments": []},
        "rm": {"summary": "Remove", "flags": {}, "arguments": ["LOCAL*"]},
        "config": {"summary": "Settings", "flags": {}, "arguments": [],
                   "commands": {"get": {"summary": "Get", "flags": {"--origin": ["", ""]}, "arguments": ["SETTING"]}}},
        "bench": {"summary": "Speed", "flags": {"--repeat": ["N", ""]}, "arguments": ["MODEL"],
                  "commands": {"serve": {"summary": "Load", "flags": {"--url": ["URL", ""]}, "arguments": []}}},
        "completion": {"summary": "Shell", "flags": {}, "arguments": ["bash|zsh"]},
    },
    "aliases": {"list": "ls"},
    "settings": {"ctx": "context", "top_k": "k"},
    "models": {"smollm2": [], "qwen3.5-fq": ["iq4", "int4"]},
}  # fmt: skip
NAMES = {
    "schema": 1,
    "models": {"my-own": ["a"]},
    "local": ["smollm2", "smollm2:q4_1", "hf.co/u/r", "hf.co/u/r:Q4_K_M", "モデル"],
}


def offered(*words: str, shell: str = "zsh") -> list[str]:
    return [value for value, _ in complete(shell, ["llmrun", *words], Tables(STATIC, NAMES))[0]]


def directives(*words: str, shell: str = "zsh") -> set[str]:
    return complete(shell, ["llmrun", *words], Tables(STATIC, NAMES))[1]


def test_the_first_word_completes_to_commands():
    assert offered("c") == ["chat", "config", "completion"]


def test_a_dash_in_first_place_completes_to_global_flags():
    assert offered("--c") == ["--color", "--config"]


def test_a_command_offers_its_own_flags_and_the_global_ones():
    assert offered("chat", "--c") == ["--color", "--config", "--ctx"]


def test_a_global_flag_with_a_value_before_the_command_is_stepped_over():
    assert offered("--color", "never", "ch") == ["chat"]


def test_a_flag_that_takes_a_choice_offers_the_choices():
    assert offered("--color", "a") == ["auto", "always"]


def test_a_flag_joined_with_its_value_keeps_the_flag_in_the_answer():
    assert offered("chat", "--color=n") == ["--color=never"]


def test_upper_case_place_holders_are_not_offered_as_values():
    assert offered("chat", "--ctx", "") == ["auto"]


def test_a_flag_for_a_file_asks_the_shell_for_files():
    assert directives("--config", "x") == {"files"}


def test_model_names_come_from_the_catalog_and_from_the_cache():
    assert offered("chat", "my") == ["my-own"]
    assert offered("chat", "q") == ["qwen3.5-fq"]


def test_variants_follow_once_the_name_is_whole():
    assert offered("chat", "qwen3.5-fq") == ["qwen3.5-fq", "qwen3.5-fq:iq4", "qwen3.5-fq:int4"]
    assert offered("chat", "qwen3.5-fq:i") == ["qwen3.5-fq:iq4", "qwen3.5-fq:int4"]


def test_a_hub_name_that_was_pulled_offers_what_is_here_first():
    assert offered("chat", "hf.co/u/r:Q")[0] == "hf.co/u/r:Q4_K_M"


def test_a_hub_name_never_seen_offers_common_quants_without_the_network():
    assert "hf.co/x/y:Q4_K_M" in offered("chat", "hf.co/x/y:Q")


def test_a_hub_prefix_stays_open_for_more():
    assert offered("chat", "model") == ["modelscope:"]
    assert directives("chat", "model") == {"nospace"}


def test_a_path_is_left_to_the_shell():
    assert offered("chat", "./mo") == []
    assert directives("chat", "./mo") == directives("chat", "~/x") == directives("chat", "C:\\m") == {"files"}


def test_an_unknown_name_may_be_a_file():
    assert directives("chat", "zz") == {"files"}


def test_removal_offers_only_what_is_on_the_disk():
    assert offered("rm", "") == ["smollm2", "hf.co/u/r", "モデル"]
    assert offered("rm", "smollm2", "smollm2:") == ["smollm2:q4_1"]


def test_names_beyond_ascii_are_offered_as_they_are():
    assert offered("chat", "モ") == ["モデル"]


def test_subcommands_and_their_arguments_are_known():
    assert offered("config", "") == ["get"]
    assert offered("config", "get", "") == ["ctx", "top_k"]
    assert "--origin" in offered("config", "get", "--o")


def test_a_group_with_a_default_offers_subcommands_and_what_the_default_takes():
    assert offered("bench", "s") == ["serve", "smollm2"]
    assert offered("bench", "smollm2", "--r") == ["--repeat"]
    assert offered("bench", "serve", "--u") == ["--url"]
    assert offered("bench", "smollm2", "s") == []


def test_shells_are_offered_for_completion_itself():
    assert offered("completion", "") == ["bash", "zsh"]


def test_after_two_dashes_nothing_is_a_flag():
    assert offered("chat", "m", "--", "--c") == []


def test_an_alias_of_a_command_is_followed():
    assert offered("list", "--j") == ["--json"]


def test_powershell_keeps_an_empty_word_alive_with_a_plus():
    assert offered("+", shell="powershell") == ["chat", "ls", "rm", "config", "bench", "completion"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("'a b", "a b"), ('"a b"', "a b"), ("a\\ b", "a b"), ("'a\\b'", "a\\b"), ("a'b'\"c\"", "abc"), ("x\\", "x\\")],
)
def test_quotes_of_a_shell_are_taken_off(typed, meant):
    assert dequote(typed) == meant


def test_bash_gets_bare_values_with_unsafe_characters_escaped():
    assert render("bash", [("a b&c", "text")], set()) == "a\\ b\\&c\n"


def test_other_shells_get_descriptions_and_a_line_of_directives():
    assert render("fish", [("a", "text")], {"files", "nospace"}) == "a\ttext\n:files,nospace\n"


def test_a_name_with_control_characters_is_left_out():
    assert render("zsh", [("a\nb", ""), ("c", "")], set()) == "c\t\n"


@pytest.mark.parametrize("args", [[], ["zsh"], ["zsh", "--"], ["zsh", "--", "llmrun"], ["nonsense"]])
def test_a_malformed_question_is_answered_with_silence(args, capfdbinary):
    assert completion.answer(args) == 0
    assert capfdbinary.readouterr().err == b""


def test_a_broken_names_cache_leaves_the_packaged_names(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/completion.json").write_text("{broken", encoding="utf-8")
    assert "smollm2" in Tables.load().variants


def test_the_generated_table_is_valid_and_knows_every_command():
    from strata_cli.command_table import COMMANDS

    table = json.loads(completion.TABLE_FILE.read_text(encoding="utf-8"))
    assert list(table["commands"]) == [command.name for command in COMMANDS]


def test_every_shell_has_a_script_that_asks_for_itself():
    for shell in completion.SHELLS:
        assert f"__complete {shell}" in completion_scripts.SCRIPTS[shell]


def test_bash_word_breaks_are_never_changed():
    assert "COMP_WORDBREAKS=" not in completion_scripts.BASH
