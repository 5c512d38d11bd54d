"""Runs or records native ops: the thread pool handle, the program builder and the recorded step."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from struct import Struct

from strata_kernels.arrays import Seen
from strata_kernels.binding import NUMBERS, POINTERS, STATUS, KernelsUnavailable, Library, Op

Pointer = Seen | int | None

# The bytes of binding.Op. One call fills a record; through ctypes each of its forty fields would take one.
_FLOATS = 4
_RECORD = Struct(f"=ii{NUMBERS}q{POINTERS}Q{_FLOATS}f")
_NONE = (0,) * max(NUMBERS, POINTERS)


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

    def __init__(self, pool: Pool, ops: bytearray, keep: Sequence[object]) -> None:
        """`ops`: records one after the other. Raises ValueError when the library refuses an op."""
        functions = pool.library.functions
        count = len(ops) // _RECORD.size
        array = (Op * count).from_buffer(ops)
        handle = functions.llmrun_program_create(pool.handle, array, count)
        if not handle:
            raise ValueError(pool.library.error())
        self._pool = pool
        self._keep = tuple(keep)
        self._handle = handle
        self._run = functions.llmrun_program_run
        self.op_count = count
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
        self._ops = bytearray()
        self._keep: list[object] = []

    def begin(self) -> None:
        """Raises RuntimeError inside a recording."""
        if self.recording:
            raise RuntimeError("begin: a step is being recorded already")
        self.recording = True
        self._ops, self._keep = bytearray(), []

    def end(self) -> NativeStep:
        """Raises RuntimeError outside a recording."""
        if not self.recording:
            raise RuntimeError("end: no step is being recorded")
        self.recording = False
        ops, keep = self._ops, self._keep
        self._ops, self._keep = bytearray(), []
        return NativeStep(self.pool, ops, keep)

    def abandon(self) -> None:
        """Forget what was recorded since begin."""
        self.recording = False
        self._ops, self._keep = bytearray(), []

    def emit(
        self,
        code: int,
        numbers: Sequence[int],
        pointers: Sequence[Pointer],
        floats: Sequence[float] = (),
        flags: int = 0,
    ) -> None:
        """Add one op (or run it at once). Arrays among `pointers` are kept alive by the step."""
        record = _RECORD.pack(
            code,
            flags,
            *numbers,
            *_NONE[len(numbers) : NUMBERS],
            *[pointer.start if isinstance(pointer, Seen) else pointer or 0 for pointer in pointers],
            *_NONE[len(pointers) : POINTERS],
            *floats,
            *_NONE[len(floats) : _FLOATS],
        )
        if self.recording:
            self._ops += record
            self._keep += [pointer for pointer in pointers if isinstance(pointer, Seen)]
        else:
            NativeStep(self.pool, bytearray(record), pointers).run()
