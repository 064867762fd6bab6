"""Overlapped writes: one chunk of a long append is written while the next one is being encoded.

Threads: used by one at a time. A single write is done in place; from the second on, writes go to a thread
that lives as long as the append. At most one write is under way, so that order and errors are those of plain
calls.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.files import Files, Handle
from segstore.mutex import Mutex
from segstore.threads import Worker

_Write = Callable[[], None]


class Pipeline:
    """A context manager: leaving it waits for the last write and raises what failed.

    Ctrl-C may come while it is left, too: code that goes on behind it calls `end` first.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: _Write | None = None
        self._worker: Worker | None = None
        self._under_way = False
        self._writing = Mutex()  # a finalizer that runs here must not wait for a thread that waits for it

    def __enter__(self) -> Pipeline:
        return self

    def pwrite(self, handle: Handle, data: memoryview, position: int) -> None:
        """Write `data` after the earlier data is written, not necessarily at once. Raises the OSError of an
        earlier write.
        """
        held, self._held = self._held, lambda: self._write(handle, data, position)
        if held is not None:
            self._start(held)

    def then(self, release: Callable[[], None]) -> None:
        """Call `release` when the last write asked for is done."""
        held = self._held

        def write_and_release() -> None:
            if held is not None:
                held()
            release()

        self._held = write_and_release

    def drain(self) -> None:
        """Wait until all is written. Raises OSError."""
        held, self._held = self._held, None
        self._wait()
        if held is not None:
            held()

    def _write(self, handle: Handle, data: memoryview, position: int) -> None:
        self._files.pwrite(handle, data, position)

    def _start(self, write: _Write) -> None:
        self._wait()
        if self._worker is None:
            self._worker = Worker("segstore-append")  # first: `end` ends also one that was not quite started
            self._worker.start()
        self._under_way = True
        self._worker.do(lambda: self._run(write))

    def _run(self, write: _Write) -> None:
        with self._writing:
            write()

    def _wait(self) -> None:
        if self._under_way:
            self._under_way = False
            assert self._worker is not None
            self._worker.result()

    def end(self) -> None:
        """Wait for the write that is under way; writes that were not begun are never made. May be
        repeated.
        """
        if self._worker is not None:
            self._worker.end()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.end()
