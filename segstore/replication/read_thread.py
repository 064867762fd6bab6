"""`ReadThread`: the thread that reads the logs of a data directory for followers in other directories.

Nothing is on disk. Threads: its own; any thread may call `post` and `stop`.
"""

from __future__ import annotations

from queue import SimpleQueue

from segstore.replication.cpu_placement import CpuPlacement
from segstore.replication.replica_fetch import LeaderRead
from segstore.threads import Background, Latch


class ReadThread:
    """The thread that reads a directory's logs for followers in other directories."""

    def __init__(self, broker: int) -> None:
        self._broker = broker
        self._asked: SimpleQueue[LeaderRead | None] = SimpleQueue()
        self._ended = Latch()
        self._separation = CpuPlacement()
        """Moves this thread to another processor if it runs on the processor of the thread that queues the
        reads.
        """

    def start(self) -> None:
        """Start the thread."""
        Background(self._run, f"segstore-reader-{self._broker}").start()

    def post(self, read: LeaderRead) -> None:
        """Queue a read, or the sync of a log. Called in the thread of the follower's directory."""
        self._separation.note_other()
        self._asked.put(read)

    def stop(self, seconds: float) -> bool:
        """Stop the thread. Wait for its end for at most `seconds`, and return whether it has ended."""
        self._asked.put(None)
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while (read := self._asked.get()) is not None:
                more = self._call(read)
                while more is not None and self._asked.empty():
                    more = self._call(more)
        finally:
            self._ended.open()

    def _call(self, read: LeaderRead) -> LeaderRead | None:
        # If there is more to read, the follower lags. So its thread works while this thread reads.
        if (more := read()) is not None:
            self._separation.keep()
        return more
