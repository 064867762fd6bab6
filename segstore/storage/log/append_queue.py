"""The queue in front of a partition's writer: it orders appends, and one thread writes for all.

On disk: nothing of its own.
Threads: any. `deque.append` gives the order; whoever holds the `token` writes what is queued, so that
a thread that waited for it mostly finds its records written. Encoding and compression happen
before an append is queued, fsync after: neither is ever done with the token held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from segstore.config.arguments import INT64_MAX
from segstore.errors import ReentrantCallError, StorageError
from segstore.mutex import Mutex, check_apart, refused, under_way
from segstore.records import Encoded
from segstore.storage.log.writer import INTERRUPTED, LogWriter, Pending
from segstore.storage.producers.append_info import Claim

# A long append is encoded up to here before it takes its place in the queue; what is longer keeps
# the queue waiting while it is encoded, since its records must lie together whatever their number.
AHEAD_PLAIN = 4 << 20
AHEAD_COMPRESSED = 64 << 20


class AppendQueue:
    """`show` lets what was written be seen, and is called with the token held; `later` has that done where
    it can't be done now. `needed`: locks that an append takes behind the token.
    """

    def __init__(
        self,
        writer: LogWriter,
        show: Callable[[], None],
        later: Callable[[], None],
        needed: tuple[Mutex, Mutex, Mutex],
    ) -> None:
        self.token = Mutex()
        self._queue: deque[Pending] = deque()
        self._writer, self._show, self._later = writer, show, later
        self._hidden = False  # whether anything may have been written that was not shown
        self._has_first, self._has_second, self._has_third = (lock._is_owned for lock in needed)

    def _check_apart(self) -> None:
        """ReentrantCallError where a handler appends in the midst of what would keep its record from being
        shown, or made durable: nothing is written then.
        """
        held = self._has_first() or self._has_second() or self._has_third()
        # Where no call is under way, an interrupt has left the lock taken (`Mutex.__enter__`).
        if held and (outer := under_way()) is not None:
            raise refused(outer)
        if self._writer.config.flush_messages != INT64_MAX:
            check_apart("append()")

    def append(self, chunks: Iterator[Encoded], ahead: int) -> int:
        """Append encoded batches, contiguous, visible together: the first offset. StorageError: nothing is
        there.
        """
        ready: list[Encoded] = []
        size = 0
        for chunk in chunks:
            ready.append(chunk)
            size += chunk.size
            if size > ahead:
                return self._append_long(chain(ready, chunks))
        return self.put(ready)

    def _append_long(self, chunks: Iterable[Encoded]) -> int:
        self._check_apart()
        with self.token:
            self.drain()
            self._hidden = True
            try:
                return self._writer.write(chunks)
            finally:
                self.show()

    def put(self, chunks: list[Encoded], claim: Claim | None = None) -> int:
        """Queue, and return the first offset when the chunks are written; raises what failed. With a `claim`,
        judged by Kafka's rules for a producer with an id: the errors of `judging`.
        """
        self._check_apart()
        pending = Pending(chunks, claim)
        try:
            self._queue.append(pending)
            with self.token:
                if not pending.done:
                    self.drain()
                elif self._hidden:  # an interrupt came to who has written it
                    self.show()
        except BaseException:
            pending.error = INTERRUPTED  # nobody waits for it: it is not to be written later
            raise
        if pending.error is INTERRUPTED:
            raise StorageError(*INTERRUPTED.args)
        if pending.error is not None:
            try:
                raise pending.error
            finally:
                del pending  # it keeps the error, whose traceback has this frame
        return pending.first

    def drain(self) -> None:
        """Write what is queued; with the token held."""
        while self._queue:
            # They stay in the queue until they are done: where an interrupt comes here, those who wait for
            # them go on. By number: a queue that others append to can't be iterated over.
            count = len(self._queue)
            self._hidden = True
            try:
                for i in range(count):
                    if not self._queue[i].done:  # no variable keeps one: its error's traceback has this frame
                        self._writer.write_queued(self._queue[i])
            finally:
                self.show()
            for _ in range(count):
                self._queue.popleft()

    def show(self) -> None:
        """Let what was written be seen; with the token held."""
        try:
            self._show()
        except ReentrantCallError:  # another thread has the lock, and waits for a call that a handler is in
            self._later()
        else:
            self._hidden = False
