"""The tail of a partition's log: when C may append there, and what becomes of an append that failed.

C appends while the tail is open. Whoever takes the append token pauses it, and so finds the log as if the
long way had been taken always; the next append that was made with the token held opens it again, while
nothing unusual is the case. Threads: the holder of the append token; any thread may `pause` the tail, and
append by it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from segstore._native import lib, seg_tail_flush
from segstore.errors import StorageError, is_refusal
from segstore.files.reserve import NO_ROOM
from segstore.mutex import Mutex
from segstore.storage.context import StoreContext
from segstore.storage.log.flushing import NEVER, FlushPolicy
from segstore.storage.log.validator import LogValidator
from segstore.storage.log.writer import AppendUndo, LogWriter
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.native_tail import NativeTail

if TYPE_CHECKING:
    from segstore.files import Handle
    from segstore.storage.log.visibility import Visible
    from segstore.storage.segment.disk_thread import DiskThread

ALL = -1
"""What `seg_tail_flush` takes for the offset where the tail ends."""


class Tail:
    """The tail of one partition: `native` is what C appends at."""

    def __init__(
        self,
        context: StoreContext,
        native: NativeTail,
        writer: LogWriter,
        visible: Visible,
        flushing: FlushPolicy,
    ) -> None:
        self.native = native
        self._context, self._writer, self._visible, self._flushing = context, writer, visible, flushing
        self.token = Mutex()
        """The append token, which is held where the log's end or its segments change."""
        self.token.on_taken = self._taken
        self.may_be_open = False
        """Whether C may have appended since the append token was taken last."""
        self._binding: tuple[object, ...] = ()
        """What the tail was bound to last: it is bound anew when that has changed."""
        self.has_standby = False
        """Whether the high watermark is what a standby in sync mode has."""
        writer.segments.stop_appends = native.pause

    # --- opening --------------------------------------------------------------------------

    def open(self, validator: LogValidator) -> None:
        """Let C append, if nothing unusual is the case; the caller holds the append token."""
        if self._writer.follows or self._writer.term is not None:
            return
        if self.has_standby:
            self.open_behind(validator)
        elif not self._visible.is_replica:
            self._open(validator)

    def open_behind(self, validator: LogValidator) -> None:
        """Let C append to the log of one side of a primary and its standby, which readers see up to a high
        watermark that another machine decides, if nothing unusual is the case; the caller holds the append
        token.
        """
        if self._visible.is_plain:
            self._open(validator, follows=self._writer.follows, behind=True)

    def open_leader(
        self, validator: LogValidator, epoch: int, end_offset: int, followers: Sequence[NativeTail]
    ) -> None:
        """Let C append to the log of a replica that leads in this epoch, and to the tails of all `followers`,
        if its log ends at `end_offset`, all of it is shown, and nothing unusual is the case. The caller holds
        the append token.
        """
        if len(followers) <= lib.SEG_FOLLOWERS and self._is_whole(epoch, end_offset, follows=False):
            self._open(validator, followers=followers)

    def open_follower(
        self, validator: LogValidator, epoch: int, end_offset: int, thread: DiskThread | None = None
    ) -> bool:
        """Let C append to the log of a follower what its leader's tail hands on, as `open_leader`; return
        whether it may. A `thread` writes that, else the appender.
        """
        if self._is_whole(epoch, end_offset, follows=True):
            self._open(validator, follows=True, thread=thread)
        return self.native.is_open

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

    def _open(
        self,
        validator: LogValidator,
        *,
        followers: Sequence[NativeTail] = (),
        follows: bool = False,
        thread: DiskThread | None = None,
        behind: bool = False,
    ) -> None:
        if self._context.here_for_c is None or not self._is_usual():
            return
        handle, job = self._log(), None if thread is None else thread.job()
        if handle is None or (thread is not None and job is None):
            return
        native, writer, files = self.native, self._writer, self._context.files
        is_bound = native.is_bound_to(handle)
        if not is_bound:
            native.bind(handle, files.native_write(handle), files.native_sync(handle))
        binding = is_bound, writer.segments.active, writer.producers.state, validator
        if binding != self._binding:
            writer.segments.active.bind(native)
            writer.producers.bind(native)
            validator.bind(native)
            self._flushing.bind(native)
            self._binding = binding
        native.c.leader_epoch, native.c.follows = writer.epoch, follows
        native.hand_on(followers)
        native.write_by(job)
        self.may_be_open = True  # first: whatever an interrupt leaves undone here, the tail is paused
        try:
            self._visible.open(behind)
            # Meanwhile a sync may have failed, or the pool have let go of a file of which it did not know yet
            # who uses it.
            if writer.segments.fenced is not None or not (is_bound or self._log() is handle):
                native.pause()
        except BaseException:  # an interrupt between both: C must not append to such a log
            native.pause()
            raise

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
            not self.may_be_open
            and self._flushing.changed
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
        # Of a shared log C knows what it has appended here, and other processes append, too.
        upto = self._visible.log_end_offset if self.native.c.share else ALL
        code: int = seg_tail_flush(self.native.address, upto)
        if code == 1:  # readers were not told
            self._visible.publish()
        return code >= 0

    # --- pausing --------------------------------------------------------------------------

    def _taken(self) -> None:
        """Pause the tail, since the append token was taken. What an append that failed has left is noted in
        the writer. A shared log is fenced if a sync of another process has failed [S2]. May be repeated.
        """
        if self.native.c.share and self.native.sync_failure:
            self._fence()
        if not self.may_be_open:
            return
        native, writer = self.native, self._writer
        native.pause()
        if native.c.torn and writer.owed is None:
            writer.owed = AppendUndo(writer.segments)
        self._visible.take_in()
        if native.is_sealed:
            writer.leave_sealed(native)
            self._visible.show()
        self.may_be_open = False

    def _fence(self) -> None:
        segments, number = self._writer.segments, self.native.sync_failure
        if segments.fenced is None:
            told = f"a sync failed: {os.strerror(number)}"
            segments.fence(OSError(number, told, segments.active.segment.path))

    def torn(self, number: int, need: int) -> BaseException:
        """Take back what an append of C's of `need` bytes, which failed with this errno, has left; return the
        error for its caller. Where there is no room for that, the next append begins with it. The caller
        holds the append token.
        """
        self._writer.take_back()
        raised = self.native.write.raised()
        if raised is not None and not is_refusal(raised):
            return raised
        error = StorageError(number, os.strerror(number), self._writer.segments.active.segment.path)
        if number in NO_ROOM:
            self._writer.no_room(error, need)
        return error

    def pause(self) -> None:
        """Let no append of C's begin any more, and wait for one that is under way. Any thread may call
        this.
        """
        self.native.pause()

    def quit(self) -> None:
        """Do what `pause` does, but wait for no disk: an append that is under way may still end."""
        self.native.quit()

    def fence(self, epoch: int) -> None:
        """Let no append of C's begin under a leader epoch below this one: another replica was elected. Any
        thread may call this, and waits for no disk.
        """
        self.native.fence(epoch)
