"""One checkpoint of each family on disk for all engine tests of a run. Imports nothing heavy until asked for one."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family -> directory."""
    from tests.support.tiny_models import FAMILIES, save_tiny, tiny_model

    base = tmp_path_factory.mktemp("checkpoints")
    return {family: save_tiny(tiny_model(family), base / family) for family in FAMILIES}


@pytest.fixture(scope="session")
def llama(checkpoints: dict[str, Path]) -> Path:
    """The llama checkpoint's directory."""
    return checkpoints["llama"]
