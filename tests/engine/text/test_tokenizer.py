"""Byte-level BPE from a GGUF vocabulary."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.text.pretokenizers import build, rule_of
from strata_engine.text.rules import load_text_rules
from strata_engine.text.tokenizer import from_gguf
from tests.support.cutting import VECTORS
from tests.support.smollm import smollm_path
from tests.support.text_vocabularies import CHATML, CONTROL, TAGS, USER, qwen, small, small_metadata, vectors

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("pre", ["qwen2", "qwen35"])
def test_the_published_vectors_are_reproduced(pre: str):
    found = [(text, qwen(pre).encode(text)) for text, _ in vectors(pre)]
    assert found == vectors(pre)


@pytest.mark.parametrize("pre", ["qwen2", "qwen35"])
def test_the_ids_of_the_vectors_decode_to_their_texts(pre: str):
    assert [qwen(pre).decode(ids) for _, ids in vectors(pre)] == [text for text, _ in vectors(pre)]


@settings(deadline=None)  # the first example loads the vocabulary
@given(TEXTS)
def test_the_bytes_of_all_ids_joined_are_the_text(text: str):
    tokenizer = qwen()
    assert b"".join(map(tokenizer.piece, tokenizer.encode(text))) == text.encode()


@settings(deadline=None)  # the first example loads the vocabulary
@given(TEXTS, st.booleans())
def test_decode_undoes_encode(text: str, special: bool):
    assert qwen().decode(qwen().encode(text, special)) == text


def test_combining_marks_join_letters_under_qwen35_only():
    cuts = {name: build(rule_of(name)).pre_tokenize_str("x\u0301y") for name in ("qwen2", "qwen35")}
    assert {name: [place for _, place in pieces] for name, pieces in cuts.items()} == {
        "qwen2": [(0, 1), (1, 3)],
        "qwen35": [(0, 3)],
    }


def test_digits_are_cut_one_by_one_under_smollm():
    tokenizer = small(merges=["1 2", *small_metadata()["tokenizer.ggml.merges"]],
                      tokens=[*small_metadata()["tokenizer.ggml.tokens"], "12"], token_type=None)  # fmt: skip
    assert [tokenizer.piece(i) for i in tokenizer.encode("12")] == [b"1", b"2"]


def test_a_word_of_the_vocabulary_is_whole_under_llama_bpe_without_asking_merges():
    metadata = small_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "zebra"]
    keys = {"tokens": tokens, "token_type": None}
    assert [small(**keys, pre="llama-bpe").piece(i) for i in small(**keys, pre="llama-bpe").encode("zebra")] == [
        b"zebra"
    ]
    assert len(small(**keys, pre="smollm").encode("zebra")) == 5


def test_control_tokens_in_text_stay_text_unless_special_is_asked_for():
    tokenizer = small()
    turn = tokenizer.specials.control["<|im_end|>"]
    assert turn not in tokenizer.encode("a<|im_end|>b")
    assert tokenizer.encode("a<|im_end|>b", special=True)[1] == turn


def test_tags_in_text_stay_text_unless_special_is_asked_for():
    tokenizer = small()
    closer = tokenizer.specials.tags["</think>"]
    assert closer not in tokenizer.encode("what does </think> do?")
    assert closer in tokenizer.encode("what does </think> do?", special=True)


def test_words_added_to_a_vocabulary_are_found_in_any_text():
    tokenizer = small({**CHATML, "    ": USER})
    assert tokenizer.encode("a    b") == [
        *tokenizer.encode("a"),
        tokenizer.specials.words["    "],
        *tokenizer.encode("b"),
    ]


def test_the_longest_special_spelling_wins():
    tokenizer = small({"<|a|>": CONTROL, "<|a|>>": CONTROL})
    assert tokenizer.encode("<|a|>>", special=True) == [1]


def test_padding_entries_are_not_found_in_text():
    tokenizer = small({**CHATML, "[PAD3]": USER})
    assert 3 not in tokenizer.encode("[PAD3]", special=True)


def test_halves_of_surrogate_pairs_are_joined_and_lone_ones_replaced():
    tokenizer = small()
    assert tokenizer.decode(tokenizer.encode("x \ud83d y")) == "x \ufffd y"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "\U0001f600"


def test_every_id_that_ends_a_turn_is_an_eos():
    assert small(eos_token_id=2).eos_ids == {0, 2}
    assert small({**CHATML, "<|eot_id|>": CONTROL}, eos_token_id=4).eos_ids == {0, 2, 3, 4}


def test_turn_spellings_typed_as_plain_text_are_control_tokens_all_the_same():
    tokenizer = small({"<|im_start|>": 1, "<|im_end|>": 1})
    assert tokenizer.eos_ids == {1}
    assert tokenizer.is_control(1)
    assert tokenizer.encode("<|im_start|>", special=True) == [0]


def test_control_tokens_are_hidden_and_tags_are_shown():
    tokenizer = small({**CHATML, "<think>": CONTROL, "<tool_call>": USER})
    assert [tokenizer.is_control(i) for i in range(6)] == [True, True, True, False, False, False]


def test_decode_leaves_control_tokens_out_when_asked():
    tokenizer = small()
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>", special=True)
    assert tokenizer.decode(ids) == "<|im_start|>hi<|im_end|>"
    assert tokenizer.decode(ids, control=False) == "hi"


def test_half_characters_decode_to_replacement_marks():
    tokenizer = small()
    assert tokenizer.decode(tokenizer.encode("é")[:1]) == "\ufffd"


def test_ids_beyond_the_vocabulary_have_no_bytes():
    tokenizer = small()
    assert tokenizer.piece(tokenizer.vocab_size) == b""
    assert tokenizer.piece(-1) == b""


def test_byte_entries_stand_for_their_byte():
    assert small({"<0xE2>": 6}).piece(0) == b"\xe2"


def test_bos_is_wanted_when_the_file_says_so_or_the_family_does():
    assert small(bos_token_id=1, add_bos_token=True).add_bos
    assert small(bos_token_id=1, pre="llama-bpe").add_bos
    assert not small(bos_token_id=1).add_bos
    assert not small(pre="llama-bpe").add_bos, "there is no BOS to add"


def test_a_file_without_tokenizer_has_none():
    assert from_gguf({"tokenizer.ggml.model": "none"}) is None
    assert from_gguf({}) is None


@pytest.mark.parametrize("kind", ["llama", "bert", "t5", "rwkv"])
def test_other_kinds_are_refused_by_name(kind: str):
    with pytest.raises(UsageError, match=f"'{kind}'.*gpt2"):
        from_gguf(small_metadata(model=kind))


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="'new-thing'.*llama-bpe.*qwen35.*smollm"):
        from_gguf(small_metadata(pre="new-thing"))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"token_type": [1, 2]}, "2 token types"),
        ({"merges": ["a"]}, "1 of 1 merges"),
        ({"merges": ["q ~~"]}, "1 of 1 merges"),
        ({"merges": ["q z"]}, "1 of 1 merges"),
        ({"eos_token_id": 100000}, "eos_token_id is 100000"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
    ],
)
def test_a_broken_vocabulary_is_a_corrupt_file(keys: dict, says: str):
    with pytest.raises(CorruptFile, match=says):
        from_gguf(small_metadata(**keys))


def test_tags_are_those_of_the_vocabulary():
    assert set(small().specials.tags) == set(TAGS)


@pytest.mark.network
def test_smollm2_prompts_have_the_ids_of_another_runner():
    from strata_engine.formats.open import open_weights

    source = open_weights(smollm_path())
    tokenizer = load_text_rules(source.metadata()).tokenizer
    assert tokenizer is not None
    items = json.loads((VECTORS / "text" / "smollm2_prompts.json").read_text())
    assert [tokenizer.encode(item["prompt"], special=True) for item in items] == [item["ids"] for item in items]
    assert tokenizer.eos_ids == {0, 2}
