"""The bytes that a token of each catalog model moves, for rooflines of models that are not downloaded.

The table beside this file was made from published configs and headers (python -m tests.support.catalog_files); a test
makes it again and compares.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from strata_engine.placement.traffic import Traffic

TABLE = Path(__file__).with_name("catalog_traffic.json")


def catalog_traffic() -> dict[str, Traffic]:
    """Name and variant ("qwen3:gptq-int4") of the packaged catalog -> its traffic, with a cache in f16."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Traffic(**{**values, "experts": tuple(values["experts"])}) for name, values in table.items()}


def as_json(found: dict[str, Traffic]) -> str:
    """The table's text: one model a line."""
    lines = [f" {json.dumps(name)}: {json.dumps(asdict(values))}" for name, values in found.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
