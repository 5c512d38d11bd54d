"""Everything textual about one model from its metadata: tokenizer and chat format. Entry point of this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata_engine.errors import UsageError
from strata_engine.events import Notice
from strata_engine.text import tokenizer_json
from strata_engine.text.base import TextRules
from strata_engine.text.builtin_templates import BUILTIN
from strata_engine.text.template import ChatTemplate
from strata_engine.text.tokenizer import BpeTokenizer, from_gguf

_KEY = "tokenizer.chat_template"


def load_text_rules(
    metadata: Mapping[str, Any], directory: Path | None = None, template: str | None = None
) -> TextRules:
    """Text rules of a GGUF file (its keys), or of a checkpoint directory (its JSON files).

    `template` overrides the model's own: template text, a built-in name, or the name of one of the model's variants.
    Raises UsageError (kinds that are not supported, invalid template), CorruptFile (broken vocabulary).
    """
    if _KEY in metadata or any(key.startswith("tokenizer.") for key in metadata):
        tokenizer, known, notices = from_gguf(metadata), _gguf_templates(metadata), []
        notices += _pre_notice(metadata, tokenizer)
    elif directory is not None:
        settings = _optional_json(directory / "tokenizer_config.json")
        generation = metadata.get("generation_config") or _optional_json(directory / "generation_config.json")
        tokenizer, known, notices = (
            tokenizer_json.from_directory(directory, settings, generation),
            _directory_templates(directory, settings),
            [],
        )
    else:
        tokenizer, known, notices = None, {}, []
    if tokenizer is None:
        return TextRules(
            None, None, "", (Notice("no-tokenizer", "this model has no tokenizer: token-id prompts only"),)
        )
    source, more = _choose(tokenizer, known, template)
    return TextRules(tokenizer, ChatTemplate(source, tokenizer), source, (*notices, *more))


def _choose(tokenizer: BpeTokenizer, known: Mapping[str, str], wanted: str | None) -> tuple[str, list[Notice]]:
    if wanted is not None:
        return _wanted(known, wanted), []
    if "default" in known:
        return known["default"], []
    if len(known) == 1:
        return next(iter(known.values())), []
    if "<|im_start|>" in tokenizer.specials.control:
        return BUILTIN["chatml"], [Notice("template-default", "the model brings no chat template; chatml is used")]
    text = "the model brings no chat template; a plain one is used, and answers may run on (is it a base model?)"
    return BUILTIN["plain"], [Notice("template-default", text)]


def _wanted(known: Mapping[str, str], wanted: str) -> str:
    if any(mark in wanted for mark in ("{{", "{%", "\n")):
        return wanted
    named = {**BUILTIN, **known}
    if wanted not in named:
        raise UsageError(
            f"no chat template named {wanted!r}; known: {', '.join(sorted(named))}",
            "a file with a template, or one of these",
        )
    return named[wanted]


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    named = {key[len(_KEY) + 1 :]: value for key, value in metadata.items() if key.startswith(_KEY + ".")}
    own = {"default": metadata[_KEY]} if metadata.get(_KEY) else {}
    return {name: text for name, text in {**named, **own}.items() if isinstance(text, str)}


def _directory_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates of a directory: chat_template.jinja before tokenizer_config.json, as its newer place."""
    known: dict[str, str] = {}
    written = settings.get("chat_template") or _optional_json(directory / "chat_template.json").get("chat_template")
    if isinstance(written, str):
        known["default"] = written
    elif isinstance(written, list):
        known.update({str(t["name"]): str(t["template"]) for t in written if isinstance(t, dict) and "template" in t})
    extra = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    known.update({path.stem: path.read_text(encoding="utf-8") for path in extra})
    path = directory / "chat_template.jinja"
    if path.is_file():
        known["default"] = path.read_text(encoding="utf-8")
    return known


def _optional_json(path: Path) -> dict[str, Any]:
    return tokenizer_json.read_json(path) if path.is_file() else {}


def _pre_notice(metadata: Mapping[str, Any], tokenizer: BpeTokenizer | None) -> list[Notice]:
    if tokenizer is None or metadata.get("tokenizer.ggml.pre", "default") != "default":
        return []
    text = "the file names no pre-tokenizer (tokenizer.ggml.pre); the generic one is used, and quality may suffer"
    return [Notice("pre-tokenizer", text)]
