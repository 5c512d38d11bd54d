"""What every test run needs, wherever it is started from."""

from __future__ import annotations

import os
import signal
import threading

# read when triton is first imported: kernels of a GPU run in its interpreter here, and are compiled in other processes
os.environ["TRITON_INTERPRET"] = "1"

# A run started in the background of a script inherits "ignore SIGINT", and so would every program that the tests start
# and interrupt. A handler of our own is not inherited: children start with the default again.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
