"""Writes one chunk of a long append while the next one is being encoded.

On disk: nothing of its own.
Threads: used by one at a time. A single write is done in place; from the second on they go to a thread
that lives as long as the append. At most one is under way, so that order and errors stay those of
plain calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from segstore.files import Files, Handle

_Write = Callable[[], None]


class _Turn:
    """A write that the thread does, or that is never done. An interrupt may hide from the executor a thread
    that it has started: what ends the append may not wait for that one alone.
    """

    def __init__(self, write: _Write) -> None:
        self._write, self._doing, self._over = write, threading.Lock(), False

    def run(self) -> None:
        with self._doing:
            if not self._over:
                self._write()

    def end(self) -> None:
        """From now on it is done, or will never be."""
        with self._doing:
            self._over = True


class Pipeline:
    """A context: leaving it waits for the last write and raises what failed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: _Write | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._turn: _Turn | None = None
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Pipeline:
        return self

    def pwrite(self, handle: Handle, data: memoryview, position: int) -> None:
        """Write `data` when what came before is written, not necessarily at once. OSError of an earlier
        write.
        """
        held, self._held = self._held, lambda: self._write(handle, data, position)
        if held is not None:
            self._start(held)

    def then(self, release: Callable[[], None]) -> None:
        """Call `release` when the write that was asked for last is done."""
        held = self._held

        def write_and_release() -> None:
            if held is not None:
                held()
            release()

        self._held = write_and_release

    def drain(self) -> None:
        """Wait until all is written. OSError."""
        held, self._held = self._held, None
        self._wait()
        if held is not None:
            held()

    def _write(self, handle: Handle, data: memoryview, position: int) -> None:
        self._files.pwrite(handle, data, position)

    def _start(self, write: _Write) -> None:
        self._wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="segstore-append")
        self._turn = _Turn(write)
        self._under_way = self._thread.submit(self._turn.run)

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            if self._turn is not None:
                self._turn.end()
            if self._thread is not None:
                self._thread.shutdown(wait=True)
