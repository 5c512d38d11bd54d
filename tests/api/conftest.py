"""A scripted service and a live server over it, one for all tests of a file; a file may override them."""

from __future__ import annotations

import pytest

from tests.support.fake_service import FakeService
from tests.support.live_server import live_server


@pytest.fixture(scope="module")
def engine():
    made = FakeService()
    yield made
    made.close()


@pytest.fixture
def service(engine):
    """The scripted service as new; after the test it is idle again."""
    engine.reset()
    yield engine
    engine.open()
    engine.wait_until(lambda s: s.idle)


@pytest.fixture(scope="module")
def shared(engine):
    with live_server(engine) as found:
        yield found


@pytest.fixture
def live(shared, service):
    """The server, over a service as new."""
    return shared
