"""The shared operation tests run over every maker: parametrised fixtures `maker`, `threaded_maker`, `ops`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps
from tests.support.op_makers import Maker, makers


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
