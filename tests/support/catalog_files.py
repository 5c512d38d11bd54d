"""The config or header that each entry of models.yaml stands for, without weights.

Storage mixes: strata.md 1.6, llama.cpp's of Q4_K_M. `python -m tests.support.catalog_files` writes the table of
strata_engine/placement/catalog_traffic.py; the line of SmolLM2, whose file is published, is kept as it is there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from strata_engine.config import EngineConfig
from strata_engine.formats.open import open_weights
from strata_engine.models.planned import planned
from strata_engine.placement.catalog_traffic import TABLE, as_json, catalog_traffic
from strata_engine.placement.traffic import Traffic, traffic
from tests.support.published_configs import config_of, seeing
from tests.support.published_gguf import write_header, write_projector_header

DEEPSTACK = (8, 16, 24)
Make = Callable[[Path], None]


def from_config(name: str, kind: str, sees: tuple[int, ...] | None = None) -> Make:
    config = config_of(name, kind) if sees is None else seeing(config_of(name, kind), sees)
    return lambda directory: (directory / "config.json").write_text(json.dumps(config))  # type: ignore[return-value]


def q4_k_m(layers: int) -> Callable[[str, tuple[int, ...]], str]:
    """The head, and values and down projections of half the layers, in Q6_K."""

    def of(name: str, shape: tuple[int, ...]) -> str:
        if name == "output.weight":
            return "Q6_K"
        raised = name.endswith(("attn_v.weight", "ffn_down.weight")) and int(name.split(".")[1]) % 2
        return "Q6_K" if raised else "Q4_K"

    return of


def only(kind: str) -> Callable[[str, tuple[int, ...]], str]:
    """One type for everything that llama.cpp quantises."""
    return lambda name, shape: "F32" if "conv1d" in name or "ffn_gate_inp" in name else kind


def gsq(gate_up: str, down: str, other_down: str = "") -> Callable[[str, tuple[int, ...]], str]:
    """Experts of mixed types, the rest in 8 bits, the n-gram table in IQ4_NL."""

    def of(name: str, shape: tuple[int, ...]) -> str:
        if name.startswith("per_layer_token_embd"):
            return "IQ4_NL"
        if name in ("token_embd.weight", "output.weight"):
            return "Q5_K"
        if "_exps" in name:
            odd = other_down and int(name.split(".")[1]) % 2
            return gate_up if "down" not in name else other_down if odd else down
        return "F32" if "ffn_gate_inp" in name or "conv1d" in name else "Q8_0" if shape[-1] % 32 == 0 else "BF16"

    return of


def header(name: str, type_of: Callable[[str, tuple[int, ...]], str], projector: bool = False) -> Make:
    def make(directory: Path) -> None:
        write_header(directory / "model.gguf", config_of(name, "bf16"), type_of)
        if projector:
            write_projector_header(directory / "mmproj-model.gguf", config_of(name, "bf16")["hidden_size"], DEEPSTACK)

    return make


FLASH = "qwen3.8-flash-next"
MADE: dict[tuple[str, str], Make] = {
    ("qwen3", "gptq-int4"): from_config("qwen3-30b-a3b", "int4"),
    ("qwen3.5", "gptq-int4"): from_config("qwen3.5-35b-a3b", "experts"),
    ("qwen3.5-fq", "int4"): from_config("qwen3.5-35b-a3b", "int4"),
    ("qwen3.6-fq", "int4"): from_config("qwen3.5-35b-a3b", "int4"),
    ("qwen3.5-w4a8", "qqq"): from_config("qwen3.5-35b-a3b", "qqq"),
    ("qwen3-vl", "gptq-int4"): from_config("qwen3-vl-8b", "int4", DEEPSTACK),
    ("qwen3-vl", "q4_k_m"): header("qwen3-vl-8b", q4_k_m(36), projector=True),
    ("qwen3.8-27b", "w4a16"): from_config("qwen3.5-27b", "w4a16"),
    ("qwen3.8-27b", "ud-q4_k_s"): header("qwen3.5-27b", only("Q4_K")),
    (FLASH, "iq3_s"): header(FLASH, gsq("IQ3_S", "Q2_0", "IQ4_NL")),
    (FLASH, "iq3_xxs"): header(FLASH, gsq("IQ3_XXS", "Q2_0")),
    (FLASH, "iq2_xs"): header(FLASH, gsq("IQ2_XS", "Q2_0")),
    (FLASH, "q2_0"): header(FLASH, gsq("Q2_0", "Q2_0")),
}


def traffic_of(key: tuple[str, str], directory: Path) -> Traffic:
    """Of one entry, whose files are made in `directory`."""
    MADE[key](directory)
    source = planned(directory) if (directory / "config.json").is_file() else open_weights(directory / "model.gguf")
    try:
        return traffic(source, EngineConfig())
    finally:
        source.close()


if __name__ == "__main__":
    kept = "smollm2:q4_1"
    found = {kept: catalog_traffic()[kept]}
    for key in MADE:
        with tempfile.TemporaryDirectory() as folder:
            found[":".join(key)] = traffic_of(key, Path(folder))
    TABLE.write_text(as_json(found), encoding="utf-8")
