"""The tail of a partition's log is the state that C needs to append. This module decides when C may append,
and undoes C's failed appends.

C appends while the tail is open. A thread that takes the append token pauses the tail. The log is then in the
state that the slow path would have left. After an append by the token's holder the tail is opened again,
unless the partition is closed, fenced or a follower, or has an append to undo. Threads: the holder of the
append token; any thread may pause the tail, or append through the tail.
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
"""The argument of `seg_tail_flush` for the tail's end."""


class Tail:
    """The tail of one partition's log: C appends through `native`."""

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
        """The append token: its holder may change the log's end and its segments."""
        self.token.on_taken = self._taken
        self.may_be_open = False
        """Whether C may have appended since the append token was taken last."""
        self._binding: tuple[object, ...] = ()
        """The objects that the tail was bound to last. If one of them has changed, the tail is bound again.
        """
        self.has_standby = False
        """Whether the high watermark is the fetch offset of a standby in sync mode."""
        writer.segments.stop_appends = native.pause

    # --- opening --------------------------------------------------------------------------

    def open(self, validator: LogValidator) -> None:
        """Let C append if `_is_usual()` is True; the caller holds the append token."""
        if self._writer.follows or self._writer.term is not None:
            return
        if self.has_standby:
            self.open_replicated(validator)
        elif not self._visible.is_replica:
            self._open(validator)

    def open_replicated(self, validator: LogValidator) -> None:
        """Let C append to this log, the log of a primary or a standby, if `_is_usual()` is True. Another
        machine decides the log's high watermark. The caller holds the append token.
        """
        if self._visible.is_plain:
            self._open(validator, follows=self._writer.follows, replicated=True)

    def open_leader(
        self, validator: LogValidator, epoch: int, end_offset: int, followers: Sequence[NativeTail]
    ) -> None:
        """Let C append to the log of a replica that leads in this epoch, and let C pass the batches on to the
        tails of all `followers`. C may append only if the log ends at `end_offset`, the whole log is visible,
        and `_is_usual()` is True. The caller holds the append token.
        """
        if len(followers) <= lib.SEG_FOLLOWERS and self._is_whole(epoch, end_offset, follows=False):
            self._open(validator, followers=followers)

    def open_follower(
        self, validator: LogValidator, epoch: int, end_offset: int, thread: DiskThread | None = None
    ) -> bool:
        """Let C append to a follower's log the batches that the leader's tail passes on, under the conditions
        of `open_leader`; return whether C may append. `thread` writes the batches; if `thread` is None, the
        thread that appends to the leader's log writes them.
        """
        if self._is_whole(epoch, end_offset, follows=True):
            self._open(validator, follows=True, thread=thread)
        return self.native.is_open

    def _is_whole(self, epoch: int, end_offset: int, *, follows: bool) -> bool:
        """Return whether the replica has this leader epoch and role (`follows`), its whole log is visible and
        ends at `end_offset`, and the topic has neither flush.messages nor flush.ms.
        """
        writer, shown = self._writer, self._visible.current
        config = writer.config
        return (
            (writer.epoch, writer.follows) == (epoch, follows)
            and writer.segments.next_offset == end_offset
            and isinstance(shown, LogView)
            and shown.end_offset == shown.stable_offset == end_offset
            # With flush.messages or flush.ms the slow path appends, because it can sync the replicas in
            # parallel.
            and config.flush_messages == config.flush_ms == NEVER
        )

    def _open(
        self,
        validator: LogValidator,
        *,
        followers: Sequence[NativeTail] = (),
        follows: bool = False,
        thread: DiskThread | None = None,
        replicated: bool = False,
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
        # This is set before C may append, so that after an interrupt the next holder of the append token
        # stops C.
        self.may_be_open = True
        try:
            self._visible.open(replicated)
            # Before C was allowed to append, nothing marked the file as in use by C. So the pool may have
            # closed the file. A sync may also have failed.
            if writer.segments.fenced is not None or not (is_bound or self._log() is handle):
                native.pause()
        except BaseException:  # an interrupt may have prevented the checks above
            native.pause()
            raise

    def _log(self) -> Handle | None:
        """Return the active segment's log, or None if it can't be opened."""
        try:
            return self._writer.segments.active.handle
        except OSError as error:
            if not is_refusal(error):
                raise
            return None  # The error is not raised, because the append before this call has succeeded.

    def _is_usual(self) -> bool:
        """Return whether C may append now. C may append if the log is open, is not fenced and is wholly
        visible, if no append must be undone and no epoch must be saved, and if `Visible.stays_stable` is
        True. C does not make the first append after a clean open.
        """
        segments = self._writer.segments
        return (
            not self.may_be_open
            and self._flushing.changed
            and self._writer.pending_undo is None
            and self._writer.save_epochs is None
            and segments.fenced is None
            and not segments.closed
            and self._visible.is_all
            and self._visible.stays_stable
        )

    def flush(self) -> bool:
        """Make C's appends durable by one call of C; return False if the slow path must be taken."""
        # In a shared log C flushes up to a given offset, because C knows only this process's appends, and
        # other processes append, too.
        upto = self._visible.log_end_offset if self.native.c.share else ALL
        code: int = seg_tail_flush(self.native.address, upto)
        if code == 1:  # C has not published the new recovery point
            self._visible.publish()
        return code >= 0

    # --- pausing --------------------------------------------------------------------------

    def _taken(self) -> None:
        """Stop C's appends, because the append token was just taken. If an append by C has failed, set the
        writer's `pending_undo`, so that the append is undone. If a sync of another process has failed, fence
        the shared log [S2]. The call may be repeated.
        """
        if self.native.c.share and self.native.sync_failure:
            self._fence()
        if not self.may_be_open:
            return
        native, writer = self.native, self._writer
        native.pause()
        if native.c.torn and writer.pending_undo is None:
            writer.pending_undo = AppendUndo(writer.segments)
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
        """Undo an append of `need` bytes by C, which failed with errno `number`; return the error that the
        append's caller raises. If the disk has no room for the undo, the next append tries the undo again
        first. The caller holds the append token.
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
        """Let no append by C begin any more, and wait until an append that is under way has ended. Any thread
        may call this.
        """
        self.native.pause()

    def quit(self) -> None:
        """Let no append by C begin any more, without waiting for the disk. An append that is under way may
        still complete.
        """
        self.native.quit()

    def fence(self, epoch: int) -> None:
        """Let no append by C begin under a leader epoch below `epoch`, because another replica was elected.
        Any thread may call this; the call does not wait for the disk.
        """
        self.native.fence(epoch)
