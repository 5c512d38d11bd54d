"""GET /v1/models and /v1/models/{id}: one entry for each served model."""

from __future__ import annotations

from typing import Any

from strata_cli.server.names import Served
from strata_engine.runtime.api import LoadedModel


def entry(served: Served, model: LoadedModel | None) -> dict[str, Any]:
    """One model; sizes and limits are known once it is loaded."""
    base: dict[str, Any] = {
        "id": served.shown,
        "object": "model",
        "created": 0 if model is None else int(model.loaded_at),
        "owned_by": "llmrun",
        "status": "unloaded" if model is None else "loaded",
        "root": served.reference if model is None else model.root,
        "parent": None,
        "aliases": [name for name in served.names if name != served.shown],
    }
    if model is None:
        return base
    return {
        **base,
        "context_length": model.context_tokens,
        "max_model_len": model.context_tokens,
        "capabilities": list(model.capabilities),
        "meta": {
            "architecture": model.architecture,
            "quant": model.quant,
            "n_vocab": model.vocab_size,
            "n_ctx_train": model.train_context_tokens,
            "n_params": model.parameters,
            "size": model.size_bytes,
            "device": model.device,
        },
    }


def listing(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The list object."""
    return {"object": "list", "data": entries}
