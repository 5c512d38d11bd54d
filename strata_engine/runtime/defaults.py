"""Sampling defaults of a model: the catalog's, else the checkpoint's own, else the program's. A request wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strata_engine.config import SamplingParams

# name in SamplingParams: names in generation_config.json, in GGUF keys (general.sampling.*) and in the catalog
_NUMBERS: dict[str, tuple[str, str, str]] = {
    "temperature": ("temperature", "general.sampling.temp", "temperature"),
    "top_p": ("top_p", "general.sampling.top_p", "top_p"),
    "min_p": ("min_p", "general.sampling.min_p", "min_p"),
    "repeat_penalty": ("repetition_penalty", "general.sampling.penalty_repeat", "repeat_penalty"),
    "presence_penalty": ("presence_penalty", "", "presence_penalty"),
    "frequency_penalty": ("frequency_penalty", "", "frequency_penalty"),
}
_WHOLE: dict[str, tuple[str, str, str]] = {
    "top_k": ("top_k", "general.sampling.top_k", "top_k"),
    "penalty_last_n": ("", "general.sampling.penalty_last_n", "penalty_last_n"),
    "max_tokens": ("", "", "max_tokens"),
}


def merge_defaults(metadata: Mapping[str, Any], *catalogs: Mapping[str, Any]) -> SamplingParams:
    """`metadata` of the checkpoint; `catalogs` weakest first. Values of a wrong type are left out."""
    generation = metadata.get("generation_config") or {}
    found: dict[str, Any] = {}
    for field, names in {**_NUMBERS, **_WHOLE}.items():
        values = [generation.get(names[0]), metadata.get(names[1]), *(c.get(names[2]) for c in catalogs)]
        given = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if given:
            found[field] = int(given[-1]) if field in _WHOLE else float(given[-1])
    for catalog in catalogs:
        stop = catalog.get("stop")
        if isinstance(stop, str):
            found["stop"] = (stop,)
        elif isinstance(stop, (list, tuple)):
            found["stop"] = tuple(str(s) for s in stop)
    return replace(SamplingParams(), **found)


def default_context(*catalogs: Mapping[str, Any]) -> int | None:
    """The catalog's context, or None. `catalogs` weakest first."""
    for catalog in reversed(catalogs):
        value = catalog.get("ctx")
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
