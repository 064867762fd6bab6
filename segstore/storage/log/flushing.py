"""Decides when a partition is flushed: by flush.messages and flush.ms, behind a roll, when asked to.

On disk: through the flusher. Threads: any; the append token is never held here, but for `adopted`.
"""

from __future__ import annotations

from functools import partial

from segstore.errors import StorageError, StoreClosedError, copy_of
from segstore.storage.context import Context
from segstore.storage.log.flusher import Flusher
from segstore.storage.log.visibility import Visible
from segstore.storage.log.writer import LogWriter

NEVER = 2**63 - 1  # Kafka's default for flush.ms


class Flushing:
    """`changed`: whether anything came that the next open should find in a producer snapshot."""

    def __init__(
        self, context: Context, writer: LogWriter, flusher: Flusher, visible: Visible, changed: bool
    ) -> None:
        self._context, self._writer, self._flusher, self._visible = context, writer, flusher, visible
        self.changed = changed
        self._planned = False
        self.untold: StorageError | None = None
        """Why a sync in the background failed: whoever closes the partition is told."""

    def flush(self) -> None:
        """Make all that is visible durable. StorageError."""
        self._flusher.flush(self._visible.view.end_offset)

    def settle(self, after: int) -> None:
        """Keep `flush.messages` and `flush.ms` for what ends at offset `after`. StorageError."""
        config = self._writer.config
        if after - self._flusher.recovery_point >= config.flush_messages:
            self._flusher.flush(after)
        elif not self._planned and config.flush_ms < NEVER:
            self._plan(config.flush_ms / 1000)
        self.changed = True

    def _plan(self, seconds: float) -> None:
        self._planned = True
        try:
            self._context.scheduler.after(seconds, self._as_planned)
        except BaseException:  # Ctrl-C: the next append plans it anew
            self._planned = False
            raise

    def adopted(self, end: int) -> None:
        """What was written up to `end` is durable, and about to be shown; with the append token held."""
        self._flusher.recovery_point = end
        self.changed = True

    def soon(self, upto: int) -> None:
        """Make what is below `upto` durable, in the background."""
        self._context.scheduler.soon(partial(self._quietly, upto))

    def _as_planned(self) -> None:
        self._planned = False
        self._quietly(NEVER)

    def _quietly(self, upto: int) -> None:
        if not self._context.closed and self._visible.current is not None:
            try:
                self._flusher.flush(min(upto, self._visible.view.end_offset))
            except StoreClosedError:
                pass  # the topic was deleted meanwhile
            except StorageError as error:
                if error.errno is not None:  # a fence of before was told
                    self.untold = copy_of(error)
                raise
