"""A model's text rules, and text files, for commands that need no engine: reference -> tokenizer and chat format."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_cli.app import App
from strata_engine.errors import NotFound, UsageError
from strata_engine.paths import expand

if TYPE_CHECKING:
    from strata_engine.registry.files import ModelFiles
    from strata_engine.text.template import ChatTemplate
    from strata_engine.text.tokenizer import BpeTokenizer


@dataclass(frozen=True)
class LoadedText:
    """A model's tokenizer and chat format."""

    tokenizer: BpeTokenizer
    chat: ChatTemplate


def load_text(app: App, model: str, template_text: str | None = None) -> LoadedText:
    """The model's text rules. Raises NotFound when it is not on this disk, UsageError when it has no tokenizer."""
    from strata_engine.registry.reference import parse
    from strata_engine.registry.resolve import Missing, resolve
    from strata_engine.text.rules import load_text_rules
    from strata_engine.text.template import ChatTemplate
    from strata_engine.text.tokenizer import BpeTokenizer

    files = resolve(parse(model), app.catalog, app.store)
    if isinstance(files, Missing):
        raise NotFound(f"{files.name} is not on this disk", f"llmrun pull {files.name}")
    own = files.role("template")
    if template_text is None and own:
        template_text = read_text(str(own[0].path))
    if template_text is None:
        template_text = files.chat.get("template")
    rules = load_text_rules(_metadata(files), _directory(files), template_text)
    if not isinstance(rules.tokenizer, BpeTokenizer) or not isinstance(rules.chat, ChatTemplate):
        raise UsageError(f"{model} has no tokenizer", "a model whose files hold one")
    for notice in rules.notices:
        app.output.note(f"note: {notice.message}")
    return LoadedText(rules.tokenizer, rules.chat)


def read_text(name: str) -> str:
    """A UTF-8 file's text. Raises NotFound, UsageError."""
    path = expand(name)
    if not path.is_file():
        raise NotFound(f"no such file: {name}")
    return _decoded(path.read_bytes(), name)


def read_stdin() -> str:
    """All of standard input as text. Raises UsageError when it is not UTF-8."""
    return _decoded(sys.stdin.buffer.read(), "standard input")


def _metadata(files: ModelFiles) -> dict[str, Any]:
    """What the weight files say about themselves; of a GGUF file only the header is read."""
    from strata_engine.formats.headers import read_gguf_header
    from strata_engine.formats.open import open_weights

    weights = files.role("weights")
    if weights and weights[0].path.suffix == ".gguf" and files.directory is None:
        # A file that holds only a vocabulary has no tensors; here it is as good as a whole model.
        return dict(read_gguf_header(weights[0].path, need_tensors=False).metadata)
    source = open_weights(files.directory or [file.path for file in weights])
    try:
        return dict(source.metadata())
    finally:
        source.close()


def _directory(files: ModelFiles) -> Path | None:
    tokenizers = files.role("tokenizer")
    return files.directory or (tokenizers[0].path.parent if tokenizers else None)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start})") from error
