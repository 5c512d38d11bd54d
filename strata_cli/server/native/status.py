"""What the server holds: /props and /slots in llama.cpp's shapes, and our own status, load and unload."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any

from strata_cli import __version__
from strata_cli.server.errors import BadField
from strata_cli.server.fields import Fields
from strata_cli.server.names import Served
from strata_cli.server.state import ServerState
from strata_engine.errors import NotFound
from strata_engine.runtime.api import LoadedModel
from strata_engine.text.base import Tokenizer


def props(server: ServerState, model: str) -> dict[str, Any]:
    """Settings of one model (`?model=` when several are served); it is loaded if need be."""
    found = server.names.load(server.names.find(model))
    rules = server.service.text(found.name)
    defaults = asdict(found.defaults)
    return {
        "default_generation_settings": {"n_ctx": found.context_tokens, "params": defaults},
        "total_slots": found.max_sequences,
        "model_alias": found.name,
        "model_path": found.root,
        "chat_template": rules.template_source,
        "tokenizer": None if rules.tokenizer is None else _tokenizer(rules.tokenizer),
        "speculation": server.service.report(found.name).speculation,
        "modalities": {"vision": "vision" in found.capabilities, "audio": False},
        "build_info": f"llmrun {__version__}",
    }


def slots(server: ServerState) -> list[dict[str, Any]]:
    """One entry for each place in each loaded model's batch; places are filled from the front."""
    found: list[dict[str, Any]] = []
    for served, model in server.names.all():
        if model is None:
            continue
        running = server.service.load_numbers(model.name).running
        found += [
            {"id": number, "model": served.shown, "n_ctx": model.context_tokens, "is_processing": number < running}
            for number in range(model.max_sequences)
        ]
    return found


def status(server: ServerState) -> dict[str, Any]:
    """Everything ps prints."""
    return {
        "schema": "llmrun.status.v1",
        "version": __version__,
        "pid": os.getpid(),
        "uptime_s": time.time() - server.started_at,
        "models": [_model(server, served, model) for served, model in server.names.all() if model is not None],
        "available": [served.shown for served, model in server.names.all() if model is None],
    }


def load(server: ServerState, body: dict[str, Any]) -> dict[str, Any]:
    """Load one of the served models."""
    served = server.names.find(_name(Fields(body)))
    return {"model": _model(server, served, server.names.load(served))}


def unload(server: ServerState, body: dict[str, Any]) -> dict[str, Any]:
    """Free `model`, or all with `all: true`; waits. {"freed_bytes": N, "models": [...]}."""
    fields = Fields(body)
    everything = fields.boolean("all") or False
    timeout_s = fields.number("timeout_s", 0, 86400)
    name = "" if everything else _name(fields)
    pairs = [(served, model) for served, model in server.names.all() if model is not None]
    if not everything:
        wanted = server.names.find(name)
        pairs = [(served, model) for served, model in pairs if served.reference == wanted.reference]
        if not pairs:
            raise NotFound(f"the model {wanted.shown} is not loaded", "llmrun ps", {"param": "model"})
    freed = sum(server.service.unload(model.name, 30.0 if timeout_s is None else timeout_s) for _, model in pairs)
    return {"freed_bytes": freed, "models": [served.shown for served, _ in pairs]}


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_ids": sorted(tokenizer.eos_ids),
        "add_bos": tokenizer.add_bos,
    }


def _name(fields: Fields) -> str:
    name = fields.text("model")
    if not name:
        raise BadField("model", "is missing", "missing_required_parameter")
    return name


def _model(server: ServerState, served: Served, model: LoadedModel) -> dict[str, Any]:
    return {
        **asdict(model),
        "shown": served.shown,
        "load": asdict(server.service.load_numbers(model.name)),
        "report": asdict(server.service.report(model.name)),
    }
