"""A tokenizer from a checkpoint directory: tokenizer.json, with two more JSON files that may stand beside it.

The added tokens are taken out of the library's hands (see tokenizer.py); its normaliser, cuts and merges stay as the
file has them. Only byte-level BPE is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.text.library import library_errors
from strata_engine.text.specials import READ_TAGS, ending_ids, group
from strata_engine.text.tokenizer import BpeTokenizer, Vocabulary, merge_pairs

if TYPE_CHECKING:
    import tokenizers


def from_directory(directory: Path, settings: Mapping[str, Any], generation: Mapping[str, Any]) -> BpeTokenizer | None:
    """The directory's tokenizer; None without tokenizer.json.

    `settings` is tokenizer_config.json's content, `generation` that of generation_config.json (its eos ids count).
    Raises UsageError for kinds other than byte-level BPE, CorruptFile for a broken file.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    tree = read_json(path)
    model = tree.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise CorruptFile(f"{path}: no model with a vocabulary in it")
    if model.get("type", "BPE") != "BPE" or not isinstance(model["vocab"], dict) or not _byte_level(tree):
        kind = model.get("type", "BPE")
        raise UsageError(
            f"{path}: tokenizer kind {kind!r} without byte-level pieces is not supported; supported: byte-level BPE",
            "token-id prompts work without a tokenizer",
            {"kind": kind},
        )
    added = _added(path, tree)
    core = _core(path, tree)
    return BpeTokenizer(core, _vocabulary(core, tree, added, settings, generation))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CorruptFile."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path}: not valid JSON ({error})", details={"file": str(path)}) from error
    if not isinstance(value, dict):
        raise CorruptFile(f"{path}: a JSON object is expected", details={"file": str(path)})
    return value


def token_text(value: Any) -> str | None:
    """A token as tokenizer_config.json writes it: a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _byte_level(tree: Mapping[str, Any]) -> bool:
    return any(_kinds(tree.get(part)) & {"ByteLevel"} for part in ("pre_tokenizer", "decoder"))


def _kinds(part: Any) -> set[str]:
    """Type names in a pre-tokenizer, decoder or post-processor, sequences opened."""
    if not isinstance(part, dict):
        return set()
    inner: Iterable[Any] = part.get("pretokenizers") or part.get("decoders") or part.get("processors") or ()
    return {str(part.get("type"))}.union(*(_kinds(p) for p in inner))


def _added(path: Path, tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = tree.get("added_tokens") or []
    try:
        return [{**entry, "id": int(entry["id"]), "content": str(entry["content"])} for entry in added]
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptFile(f"{path}: an added token has no id or content") from error


def _core(path: Path, tree: Mapping[str, Any]) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers.models import BPE

    model = tree["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges") or ()]
    pairs = merge_pairs(model["vocab"], merges)
    # Normaliser and cuts as the file has them around an empty model; then the vocabulary, without a text between.
    parts = {"version": "1.0", "normalizer": tree.get("normalizer"), "pre_tokenizer": tree.get("pre_tokenizer"),
             "model": {"type": "BPE", "vocab": {}, "merges": []}}  # fmt: skip
    with library_errors(str(path)):
        core = tokenizers.Tokenizer.from_str(json.dumps(parts))
        core.model = BPE(model["vocab"], pairs, ignore_merges=bool(model.get("ignore_merges")))
    return core


def _vocabulary(
    core: tokenizers.Tokenizer,
    tree: Mapping[str, Any],
    added: list[dict[str, Any]],
    settings: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> Vocabulary:
    literal = {entry["id"]: entry["content"] for entry in added}
    known = {entry["content"]: entry["id"] for entry in added}
    specials = group(
        ((e["content"], e["id"], bool(e.get("special"))) for e in added),
        {
            e["content"]: (bool(e.get("lstrip")), bool(e.get("rstrip")))
            for e in added
            if e.get("lstrip") or e.get("rstrip")
        },
    )
    named = [known.get(token_text(settings.get(f"{name}_token")) or "") for name in ("eos", "eot")]
    eos_ids = frozenset(i for i in (*named, *_generation_eos(generation)) if i is not None) | ending_ids(
        specials.control
    )
    bos_id = known.get(token_text(settings.get("bos_token")) or "")
    first = _first_token(tree)
    bos_id = known.get(first) if first else bos_id
    hidden = {e["id"] for e in added if e.get("special") and e["content"] not in READ_TAGS}
    return Vocabulary(
        size=max([core.get_vocab_size(False), *(i + 1 for i in literal)]),
        spelling=lambda i: literal.get(i) or core.id_to_token(i),
        literal=frozenset(literal),
        hidden=frozenset(hidden) | eos_ids,
        specials=specials,
        bos_id=bos_id,
        eos_id=named[0],
        eos_ids=eos_ids,
        add_bos=bos_id is not None and (settings.get("add_bos_token", bool(first)) is True),
    )


def _generation_eos(generation: Mapping[str, Any]) -> list[int]:
    value = generation.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int)]


def _first_token(tree: Mapping[str, Any]) -> str | None:
    """The token that the file's post-processor puts in front of every text."""
    post = tree.get("post_processor")
    parts = (post.get("processors") or [post]) if isinstance(post, dict) else []
    for part in parts:
        if part.get("type") == "TemplateProcessing" and part.get("single"):
            first = part["single"][0].get("SpecialToken")
            return str(first["id"]) if first else None
    return None
