"""The shared operation tests run over every maker: parametrised fixtures `maker`, `threaded_maker`, `ops`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps
from tests.support.op_makers import INTERPRETED, UNREPORTED, Maker, makers
from tests.support.standin.library import StandIn, build


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Interpreted kernels run the modules of INTERPRETED only; where it says so by `pytest -m long` only."""
    kept, left = [], []
    for item in items:
        maker = getattr(item, "callspec", None) and item.callspec.params.get("maker")
        if not isinstance(maker, Maker) or maker.name not in ("triton", "device"):
            kept.append(item)
            continue
        how = "" if item.name.split("[")[0] in UNREPORTED else INTERPRETED.get(item.path.stem)
        if maker.name == "device":
            item.add_marker(pytest.mark.gpu)
        elif how == "long":
            item.add_marker(pytest.mark.long)
        (kept if how else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """Torch's threads spin: on busy cores the small products of these tests take ten times as long with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=makers(), ids=lambda maker: maker.name)
def maker(request: pytest.FixtureRequest) -> Maker:
    if request.param.absent:
        pytest.skip(request.param.absent)
    return request.param


@pytest.fixture(params=[maker for maker in makers() if maker.threaded], ids=lambda maker: maker.name)
def threaded_maker(request: pytest.FixtureRequest) -> Maker:
    """Makers with threads of their own; the reference uses torch's."""
    if request.param.absent:
        pytest.skip(request.param.absent)
    return request.param


@pytest.fixture
def ops(maker: Maker) -> Ops:
    return maker.make(2)


@pytest.fixture
def reference() -> Ops:
    return ReferenceOps()


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the drivers' libraries, compiled."""
    return build(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def standin(standin_library: Path, tmp_path: Path) -> StandIn:
    """A stand-in of the test's own."""
    return StandIn(standin_library, tmp_path)
