"""Tokenizers of checkpoint directories, against the `tokenizers` library's own reading of the same file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.text.base import TextRules
from strata_engine.text.rules import load_text_rules
from strata_engine.text.tokenizer import BpeTokenizer
from tests.support.chat_templates import CHATML, said
from tests.support.tiny_tokenizer import SPECIAL, vocabulary

TEXTS = st.lists(
    st.sampled_from(["the ", "<think>", "</think>", "<|im_end|>", "é", "e\u0301", "\n\n", "x", " 12", "😀"])
).map("".join)


def library_tokenizer(nfc: bool = False, bos: bool = False, **added: Any) -> tokenizers.Tokenizer:
    tokens, merges = vocabulary()
    plain = {t: i for i, t in enumerate(t for t in tokens if t not in SPECIAL)}
    made = tokenizers.Tokenizer(models.BPE(plain, [tuple(m.split(" ")) for m in merges]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if nfc:
        made.normalizer = normalizers.NFC()
    made.add_special_tokens([tokenizers.AddedToken(s, special=True, **added) for s in SPECIAL])
    made.add_tokens([tokenizers.AddedToken(s, special=False, normalized=False) for s in ("<think>", "</think>")])
    if bos:
        start = SPECIAL[0]
        made.post_processor = processors.TemplateProcessing(f"{start} $A", None, [(start, made.token_to_id(start))])
    return made


def write(directory: Path, made: tokenizers.Tokenizer, settings_: dict | None = None, **files: str) -> TextRules:
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings_ or {"eos_token": "<|im_end|>"}))
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return load_text_rules({"config": {}}, directory)


@cache
def pair(nfc: bool) -> tuple[tokenizers.Tokenizer, BpeTokenizer]:
    made = library_tokenizer(nfc)
    with TemporaryDirectory() as folder:
        tokenizer = write(Path(folder), made).tokenizer
    assert isinstance(tokenizer, BpeTokenizer)
    return made, tokenizer


@settings(deadline=None)
@given(TEXTS, st.booleans())
def test_ids_are_those_of_the_library(text: str, nfc: bool):
    made, ours = pair(nfc)
    assert ours.encode(text, special=True) == made.encode(text, add_special_tokens=False).ids


@settings(deadline=None)
@given(TEXTS)
def test_the_bytes_of_all_ids_joined_are_the_text(text: str):
    ours = pair(False)[1]
    assert b"".join(map(ours.piece, ours.encode(text))) == text.encode()
    assert ours.decode(ours.encode(text, special=True)) == text


def test_a_normaliser_of_the_file_is_applied():
    assert pair(True)[1].encode("e\u0301") == pair(True)[1].encode("é")
    assert pair(False)[1].encode("e\u0301") != pair(False)[1].encode("é")


def test_special_tokens_are_hidden_and_other_added_ones_shown():
    made, ours = pair(False)
    assert ours.is_control(made.token_to_id("<|im_start|>"))
    assert not ours.is_control(made.token_to_id("<think>"))
    assert ours.vocab_size == made.get_vocab_size()


def test_blanks_that_a_token_swallows_are_swallowed(tmp_path: Path):
    made = library_tokenizer(lstrip=True, rstrip=True)
    ours = write(tmp_path, made).tokenizer
    assert ours is not None
    text = "the  <|im_end|>  the"
    assert ours.encode(text, special=True) == made.encode(text, add_special_tokens=False).ids


def test_every_eos_of_the_generation_config_ends_a_turn(tmp_path: Path):
    made = library_tokenizer()
    rules = write(tmp_path, made, generation_config__json=json.dumps({"eos_token_id": [7, 8]}))
    assert rules.tokenizer is not None
    named = {made.token_to_id("<|im_end|>"), made.token_to_id("<|endoftext|>")}
    assert rules.tokenizer.eos_ids == {7, 8, *named}


def test_a_bos_is_wanted_where_the_file_adds_one(tmp_path: Path):
    made = library_tokenizer(bos=True)
    tokenizer = write(tmp_path, made).tokenizer
    assert tokenizer is not None
    assert (tokenizer.add_bos, tokenizer.bos_id) == (True, made.token_to_id("<|endoftext|>"))


@pytest.mark.parametrize(("setting", "wanted"), [(True, True), (False, False), (None, False)])
def test_a_bos_is_wanted_where_the_settings_say_so(tmp_path: Path, setting: bool | None, wanted: bool):
    settings_ = {"bos_token": {"content": "<|im_start|>"}} | ({} if setting is None else {"add_bos_token": setting})
    tokenizer = write(tmp_path, library_tokenizer(), settings_).tokenizer
    assert tokenizer is not None
    assert (tokenizer.add_bos, tokenizer.piece(tokenizer.bos_id or 0)) == (wanted, b"<|im_start|>")


def templates() -> Iterator[tuple[dict, dict[str, str]]]:
    named = [{"name": "default", "template": CHATML}, {"name": "other", "template": "x"}]
    yield {"chat_template": CHATML}, {}
    yield {"chat_template": named}, {}
    yield {"chat_template": "older"}, {"chat_template__jinja": CHATML}
    yield {}, {"chat_template__json": json.dumps({"chat_template": CHATML})}


@pytest.mark.parametrize(("settings_", "files"), list(templates()))
def test_the_template_is_found_in_every_place(tmp_path: Path, settings_: dict, files: dict[str, str]):
    rules = write(tmp_path, library_tokenizer(), settings_ or {"eos_token": "<|im_end|>"}, **files)
    assert rules.template_source == CHATML
    assert rules.chat is not None
    assert rules.chat.render(said("user: hi")).text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"),
        models.Unigram([("a", -1.0)]),
        models.BPE({"a": 0}, []),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path: Path, model: models.Model):
    with pytest.raises(UsageError, match=f"'{type(model).__name__}'.*byte-level BPE"):
        write(tmp_path, tokenizers.Tokenizer(model))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"model": {"type": "BPE", "vocab": 3}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}, "decoder": {"type": "ByteLevel"}}',
        '{"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type": "No"}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": 1}]}',
    ],
)
def test_a_broken_file_is_a_corrupt_file(tmp_path: Path, text: str):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CorruptFile):
        load_text_rules({"config": {}}, tmp_path)
