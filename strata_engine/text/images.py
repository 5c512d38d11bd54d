"""Images in a prompt's text: a mark stands for each while the template runs, then the model's own placeholder.

Marks keep their place through any template, also one that takes nothing but text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from strata_engine.chat import Message
from strata_engine.errors import RequestRefused
from strata_engine.text.marks import Found, unused_mark

START, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"


def mark_for(messages: Sequence[Message], control: Mapping[str, int]) -> str:
    """A character that stands for an image; "" when the vocabulary cannot spell images. `control`: spelling -> id."""
    if not {START, PAD, END} <= control.keys():
        return ""
    return unused_mark(*(part.text for message in messages for part in message.parts))


def put_images(
    text: str, found: list[Found], mark: str, images: int, numbered: bool = False
) -> tuple[str, list[Found]]:
    """The prompt with a placeholder for each mark, and its spellings at their new offsets.

    `numbered`: "Picture 1: " before each. Raises RequestRefused when the template lost or repeated a mark.
    """
    pieces = text.split(mark)
    if len(pieces) != images + 1:
        raise RequestRefused(
            f"the conversation holds {images} images, and the chat template wrote {len(pieces) - 1}",
            "a template of a model with vision",
        )
    out, moved, start = [pieces[0]], [f for f in found if f.start < len(pieces[0])], len(pieces[0])
    for number, piece in enumerate(pieces[1:], 1):
        out.append((f"Picture {number}: " if numbered else "") + START + PAD + END)
        shift = sum(map(len, out)) - (start + 1)
        end = start + 1 + len(piece)
        moved += [replace(f, start=f.start + shift) for f in found if start < f.start < end]
        out.append(piece)
        start = end
    return "".join(out), moved
