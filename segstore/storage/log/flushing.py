"""The policy of a partition's flushes: by flush.messages and flush.ms, after a roll, and on request.

On disk the flusher syncs. Threads: any. Callers of `adopted` and `bind` hold the append token, callers of the
other methods don't.
"""

from __future__ import annotations

from functools import partial

from segstore.errors import StorageError, StoreClosedError, copy_of
from segstore.integers import INT64_MAX
from segstore.storage.context import StoreContext
from segstore.storage.log.flusher import Flusher
from segstore.storage.log.visibility import Visible
from segstore.storage.log.writer import LogWriter
from segstore.storage.segment.native_tail import NativeTail

NEVER = INT64_MAX  # this is Kafka's default for flush.ms


class FlushPolicy:
    """Decides when a partition is flushed: by flush.messages and flush.ms, after a roll, and on request.

    `changed`: whether the log was written or recovered after its last clean close. If so, `Partition.close`
    writes a producer snapshot.
    """

    def __init__(
        self, context: StoreContext, writer: LogWriter, flusher: Flusher, visible: Visible, changed: bool
    ) -> None:
        self._context, self._writer, self._flusher, self._visible = context, writer, flusher, visible
        self.changed = changed
        self._planned = False
        self.failure: StorageError | None = None
        """The error of a failed sync in the background; closing the partition raises it."""

    def flush(self) -> None:
        """Make all visible records durable. Raises StorageError."""
        self._flusher.flush(self._visible.log_end_offset)

    def flush_if_due(self, after: int) -> None:
        """Apply `flush.messages` and `flush.ms` to an append that ends at offset `after`. Raises
        StorageError.
        """
        config = self._writer.config
        if config.flush_messages != NEVER and after - self._flusher.recovery_point >= config.flush_messages:
            self._flusher.flush(after)
        elif not self._planned and config.flush_ms < NEVER:
            self._plan(config.flush_ms / 1000)
        self.changed = True

    def bind(self, tail: NativeTail) -> None:
        """Give a tail its flush settings. C applies `flush.messages` if C may sync. If not, `flush_if_due`
        applies `flush.messages`. flush.ms is always applied by `flush_if_due`.
        """
        config = self._writer.config
        by_messages = config.flush_messages != NEVER
        by_c = by_messages and tail.syncs
        tail.c.flush_messages = config.flush_messages if by_c else 0
        tail.flush_left = self.flush_if_due if by_c else None
        by_python = config.flush_ms < NEVER or (by_messages and not tail.syncs)
        tail.on_append = self.flush_if_due if by_python else None

    def _plan(self, seconds: float) -> None:
        self._planned = True
        try:
            self._context.scheduler.after(seconds, self._as_planned)
        except BaseException:  # if this is Ctrl-C, the next append plans the flush anew
            self._planned = False
            raise

    def adopted(self, end: int) -> None:
        """Set the recovery point to `end`. The caller holds the append token. All records below `end` are
        durable; the caller makes them visible after this call.
        """
        self._flusher.set_recovery_point(end)
        self.changed = True

    def soon(self, upto: int) -> None:
        """Make all records below `upto` durable in the background."""
        self._context.scheduler.soon(partial(self._quietly, upto))

    def _as_planned(self) -> None:
        self._planned = False
        self._quietly(NEVER)

    def _quietly(self, upto: int) -> None:
        if not self._context.closed and self._visible.current is not None:
            try:
                self._flusher.flush(min(upto, self._visible.log_end_offset))
            except StoreClosedError:
                pass  # the topic was deleted
            except StorageError as error:
                if error.errno is not None:  # an error without errno only reports an earlier fence
                    self.failure = copy_of(error)
                raise
