"""/tokenize, /detokenize, /apply-template in llama.cpp's shapes: the model's text rules over HTTP."""

from __future__ import annotations

from typing import Any

from strata_cli.server.errors import BadField, HttpFault
from strata_cli.server.fields import Fields
from strata_cli.server.openai import chat
from strata_cli.server.state import ServerState
from strata_engine.text.base import Rendered, TextRules, Tokenizer


def tokenize(server: ServerState, body: dict[str, Any]) -> dict[str, Any]:
    """`content` -> `tokens`; `add_special` puts BOS in front, `parse_special` (default) reads control tokens,
    `with_pieces` gives {id, piece} where a piece that is no whole text is a list of bytes."""
    fields = Fields(body)
    content = fields.text("content")
    if content is None:
        raise BadField("content", "is missing", "missing_required_parameter")
    special = fields.boolean("parse_special")
    tokenizer = _tokenizer(server, fields)
    ids = tokenizer.encode(content, True if special is None else special)
    if fields.boolean("add_special") and tokenizer.add_bos and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id, *ids]
    if not fields.boolean("with_pieces"):
        return {"tokens": ids}
    return {"tokens": [{"id": number, "piece": _piece(tokenizer.piece(number))} for number in ids]}


def detokenize(server: ServerState, body: dict[str, Any]) -> dict[str, Any]:
    """`tokens` -> `content`, control tokens spelled; `with_pieces` adds {id, piece, control} of each."""
    fields = Fields(body)
    ids = fields.items("tokens")
    tokenizer = _tokenizer(server, fields)
    if ids is None or not all(isinstance(n, int) and not isinstance(n, bool) for n in ids):
        raise BadField("tokens", "must be a list of token ids", "invalid_type")
    wrong = next((n for n in ids if not 0 <= n < tokenizer.vocab_size), None)
    if wrong is not None:
        raise BadField("tokens", f"token id {wrong} is outside the vocabulary (0 to {tokenizer.vocab_size - 1})")
    found: dict[str, Any] = {"content": tokenizer.decode(ids)}
    if fields.boolean("with_pieces"):
        found["pieces"] = [
            {"id": n, "piece": _piece(tokenizer.piece(n)), "control": tokenizer.is_control(n)} for n in ids
        ]
    return found


def apply_template(server: ServerState, body: dict[str, Any]) -> dict[str, Any]:
    """A chat body -> the prompt's text, its token ids and what the template lost."""
    call = chat.read(body)
    rules = _rules(server, call.model)
    if rules.chat is None:
        raise HttpFault(400, "no_chat_template", "this model has no chat template")
    rendered: Rendered = rules.chat.render(call.requests[0])  # type: ignore[arg-type]  # chat.read makes ChatRequests
    notices = [{"code": n.code, "message": n.message} for n in rendered.notices]
    return {"prompt": rendered.text, "tokens": list(rendered.ids), "state": rendered.state, "warnings": notices}


def _rules(server: ServerState, name: str) -> TextRules:
    model = server.names.load(server.names.find(name))
    return server.service.text(model.name)


def _tokenizer(server: ServerState, fields: Fields) -> Tokenizer:
    tokenizer = _rules(server, fields.text("model") or "").tokenizer
    if tokenizer is None:
        raise HttpFault(400, "no_tokenizer", "this model has no tokenizer: it takes token ids only")
    return tokenizer


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
