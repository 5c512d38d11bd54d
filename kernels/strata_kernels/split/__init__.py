"""One model over two Ops: a device's and the processor's. See ops.py."""
