"""The queue in which appends of a partition wait: it orders them, and one thread writes for all.

Appends that C makes by itself don't come here: each is a write of its own, under the tail's lock
(`_native/tail.c`).

Nothing of it is on disk. Threads: any. `deque.append` gives the order; the thread that holds the append token
(`token`) writes all that is queued, so that a thread that waited for the token mostly finds its records
written. Encoding and compression happen before an append is queued, fsync after: neither is ever done with
the token held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, takewhile

from segstore.config.arguments import INT64_MAX
from segstore.errors import ReentrantCallError, StorageError
from segstore.mutex import Mutex, check_apart, refused, under_way
from segstore.records import Encoded
from segstore.storage.log.writer import INTERRUPTED, LogWriter, Pending
from segstore.storage.producers.append_info import Claim, ExpectedEnd


class AppendQueue:
    """`show` makes visible what was written, and is called with the token held; `later` arranges that this is
    done later, where it can't be done now. `needed` are the locks that an append takes while it holds the
    token. `open_tail` lets C append by itself until somebody takes the token.
    """

    def __init__(
        self,
        writer: LogWriter,
        show: Callable[[], None],
        later: Callable[[], None],
        token: Mutex,
        needed: tuple[Mutex, Mutex, Mutex],
        open_tail: Callable[[], None],
    ) -> None:
        self.token = token
        self._queue: deque[Pending] = deque()
        self._writer, self._show, self._later, self._open_tail = writer, show, later, open_tail
        self._hidden = False  # whether something may have been written that is not visible yet
        self._has_first, self._has_second, self._has_third = [lock._is_owned for lock in needed]

    def _check_apart(self) -> None:
        """Raise ReentrantCallError where a signal handler appends inside a call that would keep its record
        from becoming visible or durable; nothing is written then.
        """
        held = self._has_first() or self._has_second() or self._has_third()
        # Where no call is under way, an interrupt has left the lock taken (`Mutex.__enter__`).
        if held and (outer := under_way()) is not None:
            raise refused(outer)
        if self._writer.config.flush_messages != INT64_MAX:
            check_apart("append()")

    def append(self, chunks: Iterator[Encoded], ahead: int, expected: ExpectedEnd | None = None) -> int:
        """Append batches with contiguous offsets, visible together, while they are encoded; returns the first
        offset. Up to `ahead` bytes are encoded before the append takes its place. Raises StorageError, and
        OffsetMismatchError where the log does not end as `expected`; nothing is appended then.
        """
        ready: list[Encoded] = []
        size = 0
        for chunk in chunks:
            ready.append(chunk)
            size += chunk.size
            if size > ahead:
                return self._append_long(chain(ready, chunks), expected)
        return self.put(ready, expected)

    def _append_long(self, chunks: Iterable[Encoded], expected: ExpectedEnd | None) -> int:
        self._check_apart()
        with self.token:
            self.drain()
            self._hidden = True
            try:
                return self._writer.write(chunks, expected)
            finally:
                self.show()

    def put(self, chunks: list[Encoded], claim: Claim | ExpectedEnd | None = None) -> int:
        """Queue the chunks, and return the first offset when they are written; raises the error with which
        writing failed. With a `claim` Kafka's rules for a producer with an id are applied first, which raises
        the errors of `append_info.judge`; or the log's end is compared with the offset that is expected,
        which raises OffsetMismatchError.
        """
        self._check_apart()
        pending = Pending(chunks, claim)
        try:
            self._queue.append(pending)
            with self.token:
                if pending.result is None:
                    self.drain()
                elif self._hidden:  # an interrupt came to the thread that wrote it
                    self.show()
                if not self._hidden and not self._queue:
                    self._open_tail()
        except BaseException:
            pending.abandoned = True  # nobody waits for this append: it must not be written later
            raise
        if isinstance(pending.result, int):
            return pending.result
        if pending.result is INTERRUPTED or pending.result is None:
            raise StorageError(*INTERRUPTED.args)
        try:
            raise pending.result
        finally:
            del pending  # it keeps the error, whose traceback has this frame

    def drain(self) -> None:
        """Write what is queued; the caller holds the token."""
        while self._queue:
            # Appends stay in the queue until they are written: where an interrupt comes here, the threads
            # that wait for them go on. The loop is by number: a deque that other threads append to can't be
            # iterated.
            count = len(self._queue)
            self._hidden = True
            try:
                if count > 1:
                    self._write_together(count)
                for i in range(count):
                    # No variable refers to an append: the traceback of its error has this frame.
                    if self._queue[i].result is None and not self._queue[i].abandoned:
                        self._writer.write_queued(self._queue[i])
            finally:
                self.show()
            for _ in range(count):
                self._queue.popleft()

    def _write_together(self, count: int) -> None:
        """Write the first `count` appends by one call of the system, as far as they lie one behind the other
        and no producer's sequence is to be judged. Those that are left out are written one by one.
        """
        waiting = [self._queue[i] for i in range(count)]
        waiting = [each for each in waiting if each.result is None and not each.abandoned]
        group = list(takewhile(lambda each: each.claim is None, waiting))
        if len(group) > 1:
            self._writer.write_together(group)

    def show(self) -> None:
        """Make visible what was written; the caller holds the token."""
        try:
            self._show()
        except ReentrantCallError:  # the lock's holder waits for a call that this handler interrupted
            self._later()
        else:
            self._hidden = False
