"""The loan of a partition's native tail: when C may append by itself, and what becomes of what it appended.

The tail is lent at the end of an append that was made the long way, and taken back whenever somebody takes
the append token: so whoever holds the token finds the log as if the long way had been taken always. Threads:
the holder of the append token; any thread may `stop` the tail, and append by it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from segstore._native import lib, seg_tail_flush
from segstore.errors import StorageError, is_refusal
from segstore.files.reserve import NO_ROOM
from segstore.mutex import Mutex
from segstore.storage.context import Context, wall_clock
from segstore.storage.log.flushing import NEVER, Flushing
from segstore.storage.log.validator import LogValidator
from segstore.storage.log.writer import LogWriter, Restore
from segstore.storage.segment import native_tail
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.native_tail import NativeTail

if TYPE_CHECKING:
    from segstore.files import Handle
    from segstore.storage.log.visibility import Visible
    from segstore.storage.segment.disk_thread import DiskThread

ALL = -1
"""What `seg_tail_flush` takes for the offset where the tail ends."""


class TailLoan:
    """The loan of one partition; `tail` is what C appends at, None where it may not. `behind` is such a tail
    of a log that readers see up to a high watermark which another machine decides: who appends there, for a
    leader, tells of that.
    """

    def __init__(self, context: Context, writer: LogWriter, visible: Visible, flushing: Flushing) -> None:
        self._files, self._writer, self._visible, self._flushing = context.files, writer, visible, flushing
        self.token = Mutex()
        """The append token, which is held where the log's end or its segments change."""
        self.token.on_taken = self.take_back
        self._here = context.here_for_c
        self._clock = None if context.clock is wall_clock else context.clock
        self.tail: NativeTail | None = None
        self.behind: NativeTail | None = None
        self.has_standby = False
        """Whether the high watermark is what a standby in sync mode has."""
        writer.segments.stop_appends = self.stop

    # --- lending --------------------------------------------------------------------------

    def lend(self, validator: LogValidator) -> None:
        """Lend the tail, if nothing unusual is the case; the caller holds the append token."""
        if self._writer.follows or self._writer.term is not None:
            return
        if self.has_standby:
            self.lend_behind(validator)
        elif not self._visible.is_replica:
            self._lend(validator)

    def lend_behind(self, validator: LogValidator) -> None:
        """Lend the tail of one side of a primary and its standby, if nothing unusual is the case; the caller
        holds the append token.
        """
        if self.behind is None and self._visible.is_plain:
            self._lend(validator, follows=self._writer.follows, behind=True)

    def lend_leader(
        self, validator: LogValidator, epoch: int, end_offset: int, followers: Sequence[NativeTail]
    ) -> NativeTail | None:
        """Lend the tail of a replica that leads in this epoch, if its log ends at `end_offset`, all of it is
        shown, and nothing unusual is the case: C appends to the tails of all `followers`, too. Return the
        tail, None where it is not lent. The caller holds the append token.
        """
        if len(followers) > lib.SEG_FOLLOWERS or not self._is_whole(epoch, end_offset, follows=False):
            return None
        self._lend(validator, followers=followers)
        return self.tail

    def lend_follower(
        self, validator: LogValidator, epoch: int, end_offset: int, thread: DiskThread | None = None
    ) -> NativeTail | None:
        """Lend the tail of a follower to its leader's, as `lend_leader`. With a `thread` that writes what the
        leader's tail hands on, else the appender.
        """
        if not native_tail.enabled or not self._is_whole(epoch, end_offset, follows=True):
            return None
        job = None if thread is None else thread.job()
        if thread is None or job is not None:
            self._lend(validator, follows=True, job=job)
        return self.tail

    def _is_whole(self, epoch: int, end_offset: int, *, follows: bool) -> bool:
        """Return whether a replica has this role, and shows its log up to the end, which is `end_offset`."""
        writer, shown = self._writer, self._visible.current
        config = writer.config
        return (
            (writer.epoch, writer.follows) == (epoch, follows)
            and writer.segments.next_offset == end_offset
            and isinstance(shown, LogView)
            and shown.end_offset == shown.stable_offset == end_offset
            and config.flush_messages == config.flush_ms == NEVER  # replicas sync at the same time
        )

    def _lend(
        self,
        validator: LogValidator,
        *,
        followers: Sequence[NativeTail] = (),
        follows: bool = False,
        job: Any = None,
        behind: bool = False,
    ) -> None:
        if self.tail is not None or not native_tail.enabled or not self._is_usual():
            return
        handle, here = self._log(), self._here
        if handle is None or here is None:
            return
        writer = self._writer
        # Noted first: whatever an interrupt leaves undone here, the tail is taken back.
        tail = NativeTail(
            handle, self._files.native_write(handle), self._files.native_sync(handle), self._clock, here
        )
        if behind:
            self.behind, tail.c.high_watermark = tail, 0
        else:
            self.tail = tail
        self._flushing.lend(tail)
        writer.segments.active.lend(tail)
        validator.lend(tail)
        writer.producers.lend(tail)
        tail.c.leader_epoch, tail.c.follows = writer.epoch, follows
        tail.hand_on(followers)
        if job is not None:
            tail.write_by(job)
        self._visible.lend(tail)
        # Meanwhile a sync may have failed, or the pool have let go of the file, of which it would not know.
        if writer.segments.fenced is not None or self._log() is not handle:
            tail.stop()

    def _log(self) -> Handle | None:
        """Return the active segment's log; None where it can't be opened: the append is done, and must not
        fail.
        """
        try:
            return self._writer.segments.active.handle
        except OSError as error:
            if not is_refusal(error):
                raise
            return None

    def _is_usual(self) -> bool:
        segments = self._writer.segments
        return (
            self._flushing.changed
            and self._writer.owed is None
            and self._writer.save_epochs is None
            and segments.fenced is None
            and not segments.closed
            and self._visible.is_all
            and self._visible.stays_stable
        )

    def flush(self) -> bool:
        """Make durable what C has appended, by one call of C; False where the long way must be taken. Threads
        that a sync has served come back one after the other: each waits for what Python does in those before.
        """
        tail = self.tail
        if tail is None or (_file := tail.handle) is None:  # which stays open
            return False
        code: int = seg_tail_flush(tail.address, ALL)
        if code == 1:  # readers were not told
            self._visible.publish()
        return code >= 0

    # --- taking back ----------------------------------------------------------------------

    def take_back(self) -> None:
        """Take the tail back, if it is lent; the caller holds the append token. What an append that failed
        has left is noted in the writer. May be repeated.
        """
        tail = self.tail or self.behind
        if tail is None:
            return
        tail.stop()
        writer = self._writer
        if tail.c.torn and writer.owed is None:
            writer.owed = Restore(writer.segments)
        self._visible.take_back()
        self.tail = self.behind = None

    def torn(self, tail: NativeTail, number: int, need: int) -> BaseException:
        """Take back what an append of C's of `need` bytes, which failed with this errno, has left; return the
        error for its caller. Where there is no room for that, the next append begins with it. The caller
        holds the append token.
        """
        self._writer.take_back()
        raised = tail.write.raised()
        if raised is not None and not is_refusal(raised):
            return raised
        error = StorageError(number, os.strerror(number), self._writer.segments.active.segment.path)
        if number in NO_ROOM:
            self._writer.no_room(error, need)
        return error

    def stop(self) -> None:
        """Let no append of C's begin any more. Any thread may call this."""
        tail = self.tail or self.behind
        if tail is not None:
            tail.stop()

    def quit(self) -> None:
        """Do what `stop` does, but wait for no disk: an append that is under way may still end."""
        tail = self.tail or self.behind
        if tail is not None:
            tail.quit()
