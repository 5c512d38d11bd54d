"""Fetches the bytes of one remote file into a Part: several ranges at once, resumable after a kill at any byte.

Flow: probe one byte -> keep or drop the earlier part -> threads take missing pieces; the calling thread writes the
journal, reports, and stops everything on an error or Ctrl-C. Without working ranges one stream is read from the start.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

from strata_engine.errors import HashMismatch, NetworkError, OutOfMemory
from strata_engine.registry.journal import Origin, Part
from strata_engine.registry.limits import Patience, RateLimit, disk_full
from strata_engine.registry.remote import Probe, Remote, content_range, is_encoded, probe
from strata_engine.registry.web import Retry, Target, opened, refuse
from strata_engine.units import format_bytes

T = TypeVar("T")
_TICK_S, _SAVE_S, _SAVE_BYTES = 0.05, 0.5, 16 << 20
_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 20, 64 << 20


@dataclass(frozen=True)
class TransferOptions:
    """`limit_rate` in bytes a second, 0 = none."""

    connections: int = 8
    limit_rate: float = 0.0
    patience: Patience = field(default_factory=Patience)


class NoRanges(NetworkError):
    """The server cannot send a window of a file."""


class _Changed(Exception):
    """The server no longer has the version that was begun."""


class Transfer:
    """One file. `tick(done_bytes, total_bytes)` is called about twenty times a second from the calling thread."""

    def __init__(
        self,
        client: httpx.Client,
        remote: Remote,
        path: Path,
        options: TransferOptions,
        tick: Callable[[int, int], None],
        say: Callable[[str, str], None],
    ) -> None:
        self.client, self.remote, self.path, self.options = client, remote, path, options
        self._tick_report, self._say = tick, say
        self._stop = threading.Event()
        self._limit = RateLimit(options.limit_rate, self._stop)
        self._open: set[httpx.Response] = set()
        self._open_lock = threading.Lock()
        self._saved_at, self._saved_bytes = 0.0, 0
        self._caller = threading.get_ident()

    def run(self) -> None:
        """Fetch all bytes into `path`. Raises NetworkError, AuthError, NotFound, HashMismatch (size), OutOfMemory."""
        for attempt in range(4):
            found = self.with_retries(lambda: probe(self.client, self.remote))
            size = self._size(found)
            part = Part(self.path, Origin(self.remote.url, found.identity, size or 0, self.remote.sha256))
            try:
                part.open()
                self._tick_report(part.done_bytes, size or 0)
                if found.ranged and size and attempt < 2:
                    self._parallel(part, found, size)
                else:
                    self._single(part, found, size)
                return
            except _Changed as change:
                self._say("restart", str(change))
                part.restart()
            except OSError as error:
                raise self._disk_error(error, part) from error
            finally:
                with contextlib.suppress(OSError):  # a full disk: the older journal stays, and is true
                    part.save()
                part.close()
        raise NetworkError(f"{self.remote.name}: the server keeps changing its answer", "try again later")

    def _size(self, found: Probe) -> int | None:
        wanted = self.remote.size
        if wanted and found.size is not None and found.size != wanted and (found.ranged or not self.remote.window):
            raise HashMismatch(f"{self.remote.name}: the server has {found.size} bytes, {wanted} are expected",
                               "another source, or a newer catalog",
                               {"expected_bytes": wanted, "got_bytes": found.size})  # fmt: skip
        if self.remote.window and not found.ranged:
            raise NoRanges(f"{self.remote.name}: the server cannot send a part of a file")
        return wanted or found.size

    def _disk_error(self, error: OSError, part: Part) -> Exception:
        if not disk_full(error):
            return error
        return OutOfMemory(f"no space left on the disk of {self.path.parent}: {format_bytes(part.done_bytes)} of "
                           f"{self.remote.name} are kept", "free some space and run the same command again",
                           {"kept_bytes": part.done_bytes})  # fmt: skip

    # several ranges

    def _parallel(self, part: Part, found: Probe, size: int) -> None:
        self._stop.clear()
        listed = list(_pieces(part.missing(0, size), size, self.options.connections))
        workers = max(1, min(self.options.connections, len(listed)))
        pieces, lock = iter(listed), threading.Lock()

        def work() -> None:
            while not self._stop.is_set():
                with lock:
                    piece = next(pieces, None)
                if piece is None:
                    return
                self._piece(part, found, *piece)

        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(work) for _ in range(workers)}
            try:
                self._watch(futures, part, size)
            finally:
                self._halt()
        if part.missing(0, size):
            raise NetworkError(f"{self.remote.name}: {part.done_bytes} of {size} bytes came", "run it again")
        self._tick_report(part.done_bytes, size)

    def _watch(self, futures: set[Future[None]], part: Part, total: int) -> None:
        while futures:
            done, futures = wait(futures, _TICK_S, FIRST_COMPLETED)
            for future in done:
                future.result()
            self._tick(part, total)

    def _halt(self) -> None:
        self._stop.set()
        with self._open_lock:
            for response in self._open:
                _shut(response)

    def _piece(self, part: Part, found: Probe, start: int, end: int) -> None:
        failures = 0
        where = found.url
        while gaps := part.missing(start, end):
            if self._stop.is_set():
                return
            before = part.done_bytes
            try:
                self._range(part, found, where, gaps[0][0], end)
                fault = Retry(f"{self.remote.name}: the server sent other bytes than asked for")
            except Retry as error:
                fault, where = error, self.remote.url
            if not part.missing(start, end) or self._stop.is_set():
                return
            failures = 1 if part.done_bytes > before else failures + 1
            self._pause(failures, fault, part)

    def _range(self, part: Part, found: Probe, url: str, start: int, end: int) -> None:
        base = self.remote.offset
        headers = {"Range": f"bytes={base + start}-{base + end - 1}"}
        if found.if_range:
            headers["If-Range"] = found.if_range
        with self._opened(url, headers) as response:
            if response.status_code in (401, 403, 404, 410) and url != self.remote.url:
                raise Retry(f"{self.remote.name}: the signed link has run out")
            refuse(response, self.remote.target)
            span = content_range(response)
            if response.status_code != 206 or span is None or is_encoded(response):
                raise _Changed(f"{self.remote.name}: the server sends the whole file in place of a part")
            whole = base + part.origin.size
            if span.total is not None and (span.total < whole or (not self.remote.window and span.total != whole)):
                raise _Changed(f"{self.remote.name}: its length changed to {span.total}")
            self._receive(response, part, span.start - base, part.origin.size)

    # one stream

    def _single(self, part: Part, found: Probe, size: int | None) -> None:
        failures = 0
        while True:
            before = part.done_bytes
            try:
                self._stream(part, found, size)
                return
            except Retry as error:
                failures = 1 if part.done_bytes > before else failures + 1
                self._pause(failures, error, part)

    def _stream(self, part: Part, found: Probe, size: int | None) -> None:
        have = part.missing(0, 1 << 62)[0][0] if found.ranged and found.identity else 0
        if have == 0 and part.done_bytes:
            part.restart()
        if size is not None and have == size:
            return
        headers = {"Range": f"bytes={have}-", "If-Range": found.if_range} if have and found.if_range else {}
        have = have if headers else 0
        with self._opened(self.remote.url, headers) as response:
            refuse(response, self.remote.target)
            span = content_range(response)
            if response.status_code == 416:
                if span is not None and span.total == have:
                    return
                raise _Changed(f"{self.remote.name}: it became shorter")
            if have and (response.status_code != 206 or span is None or span.start != have):
                part.restart()
                have = 0
                if response.status_code != 200:
                    raise Retry(f"{self.remote.name}: the server sent other bytes than asked for")
            self._receive(response, part, have, size)
        self._check_length(part, size)

    def _check_length(self, part: Part, size: int | None) -> None:
        got = part.done_bytes
        if got == 0 and size != 0:
            raise Retry(f"{self.remote.name}: the server sent nothing")
        if size is not None and got < size:
            raise Retry(f"{self.remote.name}: the server sent {got} of {size} bytes")

    # both

    def _receive(self, response: httpx.Response, part: Part, position: int, size: int | None) -> None:
        """Write the body at `position`; never past `size`."""
        encoded = is_encoded(response)
        # As they come: collecting larger blocks would lose what was collected when the connection breaks.
        blocks = response.iter_bytes() if encoded else response.iter_raw()
        for block in blocks:
            if self._stop.is_set():
                return
            self._limit.take(len(block))
            if size is not None and position + len(block) > size:
                if not self.remote.window and response.status_code != 206:
                    raise HashMismatch(f"{self.remote.name}: the server sent more than the expected {size} bytes",
                                       "another source", {"expected_bytes": size})  # fmt: skip
                block = block[: size - position]
            part.write(position, block)
            position += len(block)
            if threading.get_ident() == self._caller:
                self._tick(part, size or 0)

    @contextlib.contextmanager
    def _opened(self, url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        target = self.remote.target if url == self.remote.url else Target(url)
        with opened(self.client, target, headers) as response:
            with self._open_lock:
                self._open.add(response)
            try:
                yield response
            finally:
                with self._open_lock:
                    self._open.discard(response)

    def _tick(self, part: Part, total: int) -> None:
        now, done = time.monotonic(), part.done_bytes
        if now - self._saved_at >= _SAVE_S or done - self._saved_bytes >= _SAVE_BYTES:
            part.save()
            self._saved_at, self._saved_bytes = now, done
        self._tick_report(done, total)

    def with_retries(self, action: Callable[[], T]) -> T:
        """The action's result, after waits for faults that may pass."""
        failures = 0
        while True:
            try:
                return action()
            except Retry as error:
                failures += 1
                self._pause(failures, error, None)

    def _pause(self, failures: int, fault: Retry, part: Part | None) -> None:
        """Wait before the next try. Raises NetworkError when there were enough."""
        patience = self.options.patience
        if failures >= patience.tries or fault.after_s > patience.longest_asked_s:
            kept = part.done_bytes if part is not None else 0
            asked = f" (the server asks to wait {fault.after_s:.0f} s)" if fault.after_s else ""
            hint = f"{format_bytes(kept)} are kept: the same command goes on from there" if kept else "try again later"
            raise NetworkError(f"{fault}{asked}; gave up after {failures} tries", hint,
                               {"kept_bytes": kept, "tries": failures}) from fault  # fmt: skip
        wait_s = patience.wait_s(failures, fault.after_s)
        self._say("retry", f"{fault}; next try in {wait_s:.1f} s")
        self._stop.wait(wait_s)


def _pieces(gaps: list[tuple[int, int]], size: int, connections: int) -> Iterator[tuple[int, int]]:
    """The gaps cut so that every connection gets several pieces: a slow one then delays little."""
    step = min(_LARGEST_PIECE, max(_SMALLEST_PIECE, size // (connections * 4)))
    for start, end in gaps:
        for at in range(start, end, step):
            yield at, min(end, at + step)


def _shut(response: httpx.Response) -> None:
    """Wake a thread that waits for bytes of this answer."""
    stream = response.extensions.get("network_stream")
    raw = stream.get_extra_info("socket") if stream is not None else None
    if isinstance(raw, socket.socket):
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_RDWR)
