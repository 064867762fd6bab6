"""The queue in which appends of a partition wait: it orders them, and one thread writes for all.

Nothing of it is on disk. Threads: any. `deque.append` gives the order; the thread that holds the append token
(`token`) writes all that is queued, so that a thread that waited for the token mostly finds its records
written. Encoding and compression happen before an append is queued, fsync after: neither is ever done with
the token held.
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

# A long append is encoded up to this many bytes before it takes its place in the queue; one that is longer
# keeps the queue waiting while it is encoded, since its records must lie together whatever their number.
AHEAD_PLAIN = 4 << 20
AHEAD_COMPRESSED = 64 << 20


class AppendQueue:
    """`show` makes visible what was written, and is called with the token held; `later` arranges that this is
    done later, where it can't be done now. `needed` are the locks that an append takes while it holds the
    token.
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
        self._hidden = False  # whether something may have been written that is not visible yet
        self._has_first, self._has_second, self._has_third = (lock._is_owned for lock in needed)

    def _check_apart(self) -> None:
        """Raises ReentrantCallError where a signal handler appends inside a call that would keep its record
        from becoming visible or durable; nothing is written then.
        """
        held = self._has_first() or self._has_second() or self._has_third()
        # Where no call is under way, an interrupt has left the lock taken (`Mutex.__enter__`).
        if held and (outer := under_way()) is not None:
            raise refused(outer)
        if self._writer.config.flush_messages != INT64_MAX:
            check_apart("append()")

    def append(self, chunks: Iterator[Encoded], ahead: int) -> int:
        """Append encoded batches with contiguous offsets, visible together; returns the first offset. Raises
        StorageError; nothing is appended then.
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
        """Queue the chunks, and return the first offset when they are written; raises the error with which
        writing failed. With a `claim` Kafka's rules for a producer with an id are applied first, which raises
        the errors of `append_info.judge`.
        """
        self._check_apart()
        pending = Pending(chunks, claim)
        try:
            self._queue.append(pending)
            with self.token:
                if not pending.done:
                    self.drain()
                elif self._hidden:  # an interrupt came to the thread that wrote it
                    self.show()
        except BaseException:
            pending.error = INTERRUPTED  # nobody waits for this append: it must not be written later
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
        """Write what is queued; the caller holds the token."""
        while self._queue:
            # Appends stay in the queue until they are written: where an interrupt comes here, the threads
            # that wait for them go on. The loop is by number: a deque that other threads append to can't be
            # iterated.
            count = len(self._queue)
            self._hidden = True
            try:
                for i in range(count):
                    # No variable refers to an append: the traceback of its error has this frame.
                    if not self._queue[i].done:
                        self._writer.write_queued(self._queue[i])
            finally:
                self.show()
            for _ in range(count):
                self._queue.popleft()

    def show(self) -> None:
        """Make visible what was written; the caller holds the token."""
        try:
            self._show()
        except ReentrantCallError:  # the lock's holder waits for a call that this handler interrupted
            self._later()
        else:
            self._hidden = False
