"""Images in prompts: the placeholder of the model in their place, whatever the template does with text."""

from __future__ import annotations

import jinja2
import pytest

from strata_engine.chat import ChatRequest, Message, Part
from strata_engine.errors import RequestRefused
from strata_engine.text.images import END, PAD, START
from strata_engine.text.template import ChatTemplate
from tests.support.tiny_tokenizer import tokenizer_metadata
from strata_engine.text.tokenizer import from_gguf

# How the templates of Qwen's models with vision write content: parts in their order, nothing between them.
WITH_PARTS = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{%- else %}{{ part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}<|im_end|>\n{%- endfor %}<|im_start|>assistant\n"
)
TRIMMED = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n"
    "{%- endfor %}<|im_start|>assistant\n"
)
IMAGE = Part("image", data=b"x")
