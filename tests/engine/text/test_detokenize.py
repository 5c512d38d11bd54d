"""Bytes to text as they come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.text.detokenize import Utf8Decoder
from tests.support.cutting import cases, cut, ways


def decode(pieces: list[bytes]) -> str:
    decoder = Utf8Decoder()
    text = ""
    for piece in pieces:
        text += decoder.feed(piece)
        assert len(decoder.held) <= 3
    return text + decoder.close()


@pytest.mark.parametrize("case", cases("utf8_cases"), ids=lambda case: case["id"])
def test_every_way_to_cut_the_bytes_gives_the_same_text(case: dict):
    assert {decode(pieces) for pieces in ways(bytes.fromhex(case["hex"]))} == {case["text"]}


@settings(deadline=None)
@given(st.binary(max_size=60), st.sets(st.integers(1, 59)))
def test_any_bytes_in_any_pieces_decode_as_the_whole(data: bytes, places: set[int]):
    pieces = cut(data, sorted(p for p in places if p < len(data)))
    assert decode(pieces) == data.decode("utf-8", "replace")


@settings(deadline=None)
@given(st.text(max_size=20))
def test_each_character_leaves_with_its_last_byte(text: str):
    text = text.encode("utf-8", "replace").decode()
    decoder = Utf8Decoder()
    for character in text:
        data = character.encode()
        assert "".join(decoder.feed(data[i : i + 1]) for i in range(len(data) - 1)) == ""
        assert decoder.feed(data[-1:]) == character
