"""Overlapped writes: one chunk of a long append is written while the next chunk is being encoded.

Threads: one at a time uses a `Pipeline`. The caller does the last write. A worker thread does the earlier
writes, and stops at the end of the `with` block. At most one write is under way, so that order and errors are
those of plain calls.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.files import Files, Handle
from segstore.mutex import Mutex
from segstore.threads import Worker

Write = tuple[Handle, memoryview, int]
"""An open file, the bytes to write, and their position in the file."""

_Step = Callable[[], None]


class Pipeline:
    """A context manager that makes writes in order. The end of the block waits for the last write, and raises
    its error.

    Ctrl-C may interrupt the end of the block. So code that catches the interrupt must call `end` before it
    continues.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: _Step | None = None
        self._worker: Worker | None = None
        self._under_way = False
        # The worker thread holds this mutex during a write. If a finalizer runs in a thread that holds a
        # mutex, the finalizer waits for no other thread (`mutex`).
        self._writing = Mutex()

    def __enter__(self) -> Pipeline:
        return self

    def append(self, write: Write) -> None:
        """Schedule a write after the earlier writes. Raises the OSError of an earlier write."""
        pending, self._held = self._held, lambda: self._write(write)
        if pending is not None:
            self._start(pending)

    def then(self, release: Callable[[], None]) -> None:
        """Call `release` when the last scheduled write is done."""
        pending = self._held

        def write_and_release() -> None:
            if pending is not None:
                pending()
            release()

        self._held = write_and_release

    def drain(self, _: Files | None = None) -> None:
        """Wait until all scheduled writes are done. Raises OSError."""
        pending, self._held = self._held, None
        self._wait()
        if pending is not None:
            pending()

    def _write(self, write: Write) -> None:
        self._files.pwrite(*write)

    def _start(self, write: _Step) -> None:
        self._wait()
        if self._worker is None:
            # This is set before `start`, so that `end` can stop the worker.
            self._worker = Worker("segstore-append")
            self._worker.start()
        self._under_way = True
        self._worker.do(lambda: self._run(write))

    def _run(self, write: _Step) -> None:
        with self._writing:
            write()

    def _wait(self) -> None:
        if self._under_way:
            self._under_way = False
            assert self._worker is not None
            self._worker.result()

    def end(self) -> None:
        """Wait for the write that is under way, and drop the scheduled writes that have not begun. The call
        may be repeated.
        """
        if self._worker is not None:
            self._worker.end()

    def __del__(self) -> None:
        if self._worker is not None:
            self._worker.leave()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.end()
