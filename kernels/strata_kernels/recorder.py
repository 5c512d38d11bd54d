"""Runs or records native ops: the thread pool handle, the program builder and the recorded step."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from strata_kernels.arrays import Seen
from strata_kernels.binding import STATUS, KernelsUnavailable, Library, Op

Pointer = Seen | int | None


class Pool:
    """Native threads of one instruction-set build; they end when the last user of this object is gone.

    Raises: KernelsUnavailable when the build cannot run here, ValueError on a bad thread count.
    """

    def __init__(self, library: Library, threads: int, build: str | None) -> None:
        """`build` None takes the fastest this CPU can run."""
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.library = library
        self.threads = threads
        functions = library.functions
        self.handle = functions.llmrun_pool_create(threads, build.encode() if build else None)
        if not self.handle:
            raise KernelsUnavailable(library.error())
        self.build: str = functions.llmrun_pool_build(self.handle).decode()
        weakref.finalize(self, functions.llmrun_pool_destroy, self.handle)


class NativeStep:
    """A recorded program and everything its addresses point into."""

    def __init__(self, pool: Pool, ops: Sequence[Op], keep: Sequence[object]) -> None:
        """Raises ValueError when the library refuses an op."""
        functions = pool.library.functions
        array = (Op * len(ops))(*ops)
        handle = functions.llmrun_program_create(pool.handle, array, len(ops))
        if not handle:
            raise ValueError(pool.library.error())
        self._pool = pool
        self._keep = tuple(keep)
        self._handle = handle
        self._run = functions.llmrun_program_run
        self.op_count = len(ops)
        # The pool rides along so that it is destroyed after the program.
        weakref.finalize(self, _destroy, pool, handle)

    def run(self) -> None:
        """Execute all ops in order, reading the buffers as they are now.

        Raises: IndexError when an id, slot, page or index in a buffer is out of range (outputs are then undefined),
        MemoryError when the kernels find no scratch memory.
        """
        status = self._run(self._handle)
        if status == 0:
            return
        text = STATUS.get(status, f"native status {status}")
        if status in (1, 2, 3, 4, 7, 8):
            raise IndexError(text)
        if status == 5:
            raise MemoryError(text)
        raise RuntimeError(f"{text}: {self._pool.library.error()}")


def _destroy(pool: Pool, handle: int) -> None:
    pool.library.functions.llmrun_program_destroy(handle)


class Recorder:
    """Collects ops between begin and end; outside of them every op runs at once."""

    def __init__(self, pool: Pool) -> None:
        """Ops run on `pool`."""
        self.pool = pool
        self.recording = False
        self._ops: list[Op] = []
        self._keep: list[object] = []

    def begin(self) -> None:
        """Raises RuntimeError inside a recording."""
        if self.recording:
            raise RuntimeError("begin: a step is being recorded already")
        self.recording = True
        self._ops, self._keep = [], []

    def end(self) -> NativeStep:
        """Raises RuntimeError outside a recording."""
        if not self.recording:
            raise RuntimeError("end: no step is being recorded")
        self.recording = False
        ops, keep = self._ops, self._keep
        self._ops, self._keep = [], []
        return NativeStep(self.pool, ops, keep)

    def abandon(self) -> None:
        """Forget what was recorded since begin."""
        self.recording = False
        self._ops, self._keep = [], []

    def emit(
        self,
        code: int,
        numbers: Sequence[int],
        pointers: Sequence[Pointer],
        floats: Sequence[float] = (),
        flags: int = 0,
    ) -> None:
        """Add one op (or run it at once). Arrays among `pointers` are kept alive by the step."""
        op = Op(code=code, flags=flags)
        for i, number in enumerate(numbers):
            op.n[i] = number
        for i, pointer in enumerate(pointers):
            op.p[i] = pointer.start if isinstance(pointer, Seen) else pointer
        for i, value in enumerate(floats):
            op.f[i] = ctypes.c_float(value).value
        if self.recording:
            self._ops.append(op)
            self._keep.extend(pointer for pointer in pointers if isinstance(pointer, Seen))
        else:
            NativeStep(self.pool, [op], pointers).run()
