"""Text rules from metadata: which tokenizer, which template, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.text.base import TextRules
from strata_engine.text.rules import load_text_rules
from tests.support.chat_templates import CHATML, said
from tests.support.text_vocabularies import CONTROL, small_metadata

KEY = "tokenizer.chat_template"


def codes(rules: TextRules) -> list[str]:
    return [notice.code for notice in rules.notices]


def prompt(rules: TextRules) -> str:
    assert rules.chat is not None
    return rules.chat.render(said("user: hi")).text


def test_the_files_own_template_is_used():
    rules = load_text_rules({**small_metadata(), KEY: CHATML})
    assert rules.template_source == CHATML
    assert rules.notices == ()


@pytest.mark.parametrize("metadata", [{"tokenizer.ggml.model": "none"}, {}])
def test_a_model_without_tokenizer_takes_token_ids_only(metadata: dict):
    rules = load_text_rules(metadata)
    assert (rules.tokenizer, rules.chat, codes(rules)) == (None, None, ["no-tokenizer"])


def test_chatml_stands_in_for_a_missing_template_where_the_vocabulary_has_it():
    rules = load_text_rules(small_metadata())
    assert codes(rules) == ["template-default"]
    assert prompt(rules) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_plain_template_stands_in_otherwise():
    rules = load_text_rules(small_metadata({"<s>": CONTROL}))
    assert codes(rules) == ["template-default"]
    assert prompt(rules) == "User: hi\n\nAssistant:"


def test_a_template_may_be_given_as_text_or_by_name():
    metadata = {**small_metadata(), KEY: "own", f"{KEY}.tool_use": "tools {{ messages[0].content }}"}
    assert prompt(load_text_rules(metadata, template="{{ messages[0].content }}!")) == "hi!"
    assert prompt(load_text_rules(metadata, template="tool_use")) == "tools hi"
    assert prompt(load_text_rules(metadata, template="plain")).startswith("User:")


def test_an_unknown_template_name_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="'nothing'.*chatml.*plain.*tool_use"):
        load_text_rules({**small_metadata(), f"{KEY}.tool_use": "{{ x }}"}, template="nothing")


def test_an_invalid_template_is_named_with_its_place():
    with pytest.raises(UsageError, match="line 1, column 4"):
        load_text_rules(small_metadata(), template="{% if x %}")


def test_a_file_that_names_no_pre_tokenizer_is_said_to():
    assert "pre-tokenizer" in codes(load_text_rules({**small_metadata(pre=None), KEY: CHATML}))


def test_a_directory_without_tokenizer_takes_token_ids_only(tmp_path: Path):
    assert load_text_rules({"config": {}}, tmp_path).tokenizer is None


def test_broken_json_beside_a_checkpoint_is_a_corrupt_file(tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CorruptFile, match="tokenizer_config.json"):
        load_text_rules({"config": {}}, tmp_path)


def test_loading_text_rules_imports_no_torch():
    import subprocess
    import sys

    program = (
        "import sys; from strata_engine.text import check, rules; "
        "print([m for m in ('torch', 'numpy', 'tokenizers', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []
