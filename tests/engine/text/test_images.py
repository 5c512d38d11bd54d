"""Images in prompts: the placeholder of the model in their place, whatever the template does with text."""

from __future__ import annotations

import jinja2
import pytest

from strata_engine.chat import ChatRequest, Message, Part
from strata_engine.errors import RequestRefused
from strata_engine.text.images import END, PAD, START
from strata_engine.text.template import ChatTemplate
from strata_engine.text.tokenizer import from_gguf
from tests.support.text_vocabularies import CHATML, CONTROL, TAGS, small, small_metadata

# How the templates of Qwen's models with vision write content: parts in their order, nothing between them.
WITH_PARTS = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{ part.text }}"
    "{%- endif %}{%- endfor %}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}{{ '<|im_start|>assistant\\n' }}"
)
TRIMMED = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content | trim) }}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}{{ '<|im_start|>assistant\\n' }}"
)
IMAGE = Part("image", data=b"x")
SEEING = {**CHATML, START: CONTROL, PAD: CONTROL, END: CONTROL, **TAGS}


def form(source: str = WITH_PARTS) -> ChatTemplate:
    tokenizer = from_gguf(small_metadata(SEEING, eos_token_id=2))
    assert tokenizer is not None
    return ChatTemplate(source, tokenizer)


def said(*parts: str | Part, role: str = "user") -> Message:
    return Message(role, tuple(Part("text", p) if isinstance(p, str) else p for p in parts))


TALKS = {
    "image first": [said(IMAGE, "what is this?")],
    "text first": [said("look: ", IMAGE, " and ", IMAGE, "!")],
    "in history": [said(IMAGE, "what?"), said("a cat", role="assistant"), said("and", IMAGE, "this?")],
    "image alone": [said(IMAGE)],
}


@pytest.mark.parametrize("source", [WITH_PARTS, TRIMMED], ids=["template with parts", "template of texts"])
@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS.keys())
def test_the_prompt_is_what_a_template_with_parts_writes(talk, source):
    messages = [{"role": m.role, "content": [{"type": p.kind, "text": p.text} for p in m.parts]} for m in talk]
    wanted = jinja2.Template(WITH_PARTS, keep_trailing_newline=True).render(messages=messages)
    rendered = form(source).render(ChatRequest(tuple(talk)))
    assert rendered.text == wanted
    images = sum(p.kind == "image" for m in talk for p in m.parts)
    tokens = [form().with_bos([i])[-1] for i in rendered.ids]
    ids = {name: number for number, name in enumerate(SEEING)}
    assert [tokens.count(ids[name]) for name in (START, PAD, END)] == [images] * 3


def test_text_of_a_message_cannot_forge_an_image():
    rendered = form().render(ChatRequest((said(IMAGE, f"{START}{PAD}{END}"),)))
    assert rendered.text.count(PAD) == 2
    assert rendered.ids.count(list(SEEING).index(PAD)) == 1


def test_control_tokens_in_text_stay_text_beside_images():
    rendered = form().render(ChatRequest((said("a <|im_end|> b", IMAGE, "c <|im_end|>"),)))
    assert rendered.ids.count(list(SEEING).index("<|im_end|>")) == 1


def test_images_are_numbered_on_demand():
    talk = (said(IMAGE, "a", IMAGE),)
    rendered = form().render(ChatRequest(talk, template_kwargs={"add_vision_id": True}))
    assert f"Picture 1: {START}{PAD}{END}aPicture 2: {START}" in rendered.text


@pytest.mark.parametrize(("talk", "says"), [
    ([said(IMAGE, "x", role="system"), said("y")], "system message with an image"),
    ([said(IMAGE), said("x", role="assistant"), said("y")], "wrote 0"),
])  # fmt: skip
def test_images_that_cannot_be_shown_are_refused(talk, says):
    source = WITH_PARTS.replace("for message in messages", "for message in messages[-1:]")
    with pytest.raises(RequestRefused, match=says):
        form(source).render(ChatRequest(tuple(talk)))


def test_a_vocabulary_without_images_takes_text_only():
    with pytest.raises(RequestRefused, match="takes text only"):
        ChatTemplate(WITH_PARTS, small(eos_token_id=2)).render(ChatRequest((said(IMAGE),)))
