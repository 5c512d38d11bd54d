"""Rules of the chat's input: blocks, continued lines, image paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_cli.repl.input import PlainInput, image_paths, is_open, unwrap


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("hi", False),
        ("hi\\", True),
        ("hi\\\\", False),
        ('"""a', True),
        ('"""a\nb', True),
        ('"""a\nb"""', False),
        ('say """', False),
        ("", False),
    ],
)
def test_a_message_goes_on_after_a_backslash_or_inside_a_block(text: str, wanted: bool):
    assert is_open(text) is wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("hi", "hi"),
        ("a\\\nb", "a\nb"),
        ('"""\na\n  b\n"""', "a\n  b"),
        ('"""one"""', "one"),
        ('"""code\n""" explain', "code\nexplain"),
        ("keep \\n as it is", "keep \\n as it is"),
    ],
)
def test_block_marks_and_line_joins_are_not_sent(text: str, wanted: str):
    assert unwrap(text) == wanted


def test_plain_lines_become_whole_messages():
    source = PlainInput(["one\n", '"""two\n', 'three"""\n', "four\\\n", "five\n"])
    assert [source.read() for _ in range(3)] == ["one", '"""two\nthree"""', "four\\\nfive"]
    with pytest.raises(EOFError):
        source.read()


@pytest.mark.parametrize("form", ["{}", "what is {}?", '"{}"', "see '{}', please", "file:{}", "{}."])
def test_an_image_that_exists_is_found_in_every_spelling(tmp_path: Path, form: str):
    path = tmp_path / "cat.png"
    path.write_bytes(b"\x89PNG")
    assert image_paths(form.format(path)) == [str(path)]


def test_a_blank_in_an_image_path_may_be_escaped(tmp_path: Path):
    path = tmp_path / "my cat.JPG"
    path.write_bytes(b"x")
    assert image_paths(str(path).replace(" ", "\\ ")) == [str(path)]


@pytest.mark.parametrize("text", ["what is logo.png?", "it's a .png file", "a" * 5000 + ".png", "~nobody-here/x.png"])
def test_text_about_images_that_are_not_there_is_text(text: str):
    assert image_paths(text) == []


def test_an_image_in_backticks_is_text(tmp_path: Path):
    path = tmp_path / "cat.png"
    path.write_bytes(b"x")
    assert image_paths(f"rename `{path}` please") == []
