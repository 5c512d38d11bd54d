"""`python -m tests.support.fake_serve [PORT]`: the serve command's own run over a fake model that never stops."""

from __future__ import annotations

import os
import sys

from strata_cli.address import Address
from strata_cli.app import App
from strata_cli.commands.serve import run_server
from strata_cli.globals import GlobalFlags
from strata_cli.server.names import Names, Served
from strata_cli.server.options import ServerOptions
from strata_cli.server.sockets import bind_tcp
from strata_cli.server.state import ServerState
from strata_cli.server_record import ServerRecord, remove_record
from tests.support.fake_service import FakeService, endless


def main(drain_s: float) -> int:
    """Serve `tiny` until a signal; the exit code of serve."""
    app = App.create(GlobalFlags())
    service = FakeService(endless, context=10_000_000, pace_s=0.01, max_sequences=8)
    listener = bind_tcp(Address("127.0.0.1", 0))
    record = ServerRecord(os.getpid(), "127.0.0.1", listener.getsockname()[1])
    names = Names(service, [Served("tiny", ("tiny",))])
    state = ServerState.create(service, names, ServerOptions(drain_s=drain_s))
    try:
        return run_server(app, state, listener, record, None)
    finally:
        remove_record(app.paths.server_file, os.getpid())
        service.close()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
