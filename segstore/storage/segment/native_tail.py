"""The native tail of a log: the state that C needs to append by one call (docs/engine.md;
`_native/append.c`).

A partition has one tail as long as the partition is open. While the tail is open, C appends; `pause` stops
new appends, and any thread may call it. The holder of the partition's append token pauses the tail, and may
then change the tail's fields, bind the tail to another segment, and open the tail again. C's appends are in
the log, indexed and published, and readers of this process see them (`Visible`).
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from segstore._native import address, ffi, lib

if TYPE_CHECKING:
    from segstore.files import Handle
    from segstore.files.native_write import NativeWrite


def _processors() -> int:
    """Return the number of processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # this function exists only on Linux
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def _until_done(call: Callable[..., int], *arguments: Any) -> int:
    """Call C, and repeat the call if a signal has interrupted it and the signal handler has raised nothing.
    Return the result.
    """
    while (answer := call(*arguments)) == -errno.EINTR:
        """The signal handler has run."""
    return answer


class NativeTail:
    """The state that C needs to append to one log; `c` is the struct with that state. `clock` is None if the
    store uses C's clock. `owner` is `Context.here_for_c`; if `owner` is None, C never appends.
    `recovery_point` is the offset below which all records are durable.
    """

    __slots__ = (
        "__weakref__",
        "_has_quit",
        "_kept",
        "_owners",
        "address",
        "c",
        "clock",
        "commit",
        "failure",
        "flush_left",
        "followers",
        "handle",
        "on_append",
        "syncs",
        "write",
    )

    def __init__(self, clock: Callable[[], int] | None, owner: Any, recovery_point: int) -> None:
        owner = ffi.new("uint8_t[1]", b"\1") if owner is None else owner
        self.failure = ffi.new("int32_t *")
        """The errno of a failed sync. A file of the pool refers to the memory of this number, and may exist
        longer than the tail.
        """
        self.commit = commit = ffi.new("seg_commit *", {"synced": recovery_point, "failed": self.failure})
        at_first = {"fd": -1, "high_watermark": -1, "fenced_below": -1}
        self.c = ffi.new("seg_tail *", {**at_first, "owner": owner, "commit": commit})
        self.address = address(self.c)
        self.clock = clock
        self.on_append: Callable[[int], None] | None = None
        """Called with the end offset of each append if Python applies flush.ms or flush.messages."""
        self.flush_left: Callable[[int], None] | None = None
        """Called in place of `on_append` if C applies flush.messages, but the recovery point shows that the
        append is still unflushed. The appending thread compares the recovery point.
        """
        self.handle: Handle | None = None
        """The active segment's log; None after the pool has closed the log."""
        self.write: NativeWrite
        """The native write of the log's file; set when the tail is bound."""
        self.syncs = False
        """Whether C may sync the log."""
        self.followers: Sequence[NativeTail] = ()
        """The tails of other replicas, which get each append to this tail before readers see it."""
        # `_owners` keeps alive the objects to whose memory `c` points.
        self._owners: dict[str, Any] = {"owner": owner}
        self._kept: list[Any] = []  # `_kept` has files and sync functions that a sync may still use
        self._has_quit = False  # whether `quit` was called, which does not wait for the disk

    # --- by the holder of the append token, while the tail is paused ----------------------

    def keep(self, what: str, owner: Any) -> None:
        """Keep `owner` alive, because `c` points to its memory. The object that was kept as `what` before is
        released.
        """
        self._owners[what] = owner

    def is_bound_to(self, handle: Handle) -> bool:
        """Return whether C's appends go to this open log."""
        return self.handle is handle and self.c.fd >= 0

    def bind(self, handle: Handle, write: NativeWrite, sync: Any) -> None:
        """Append to this open log from now on. `write` and `sync` are the results of `Files.native_write` and
        `Files.native_sync`.
        """
        if not self._is_synced:
            self._kept.clear()  # C begins no sync during this call
        if self.handle is not None and self.handle is not handle:
            self._let_go_of(self.handle)
        self.handle = handle
        self.c.fd, self.c.write, self.write = handle.fd, write.c, write
        self.syncs = sync is not None
        self.c.sync = sync if self.syncs else ffi.NULL
        if self._is_synced:
            self._kept.append(self._owners.get("sync"))
        self.keep("sync", sync)
        handle.user = weakref.ref(self)

    @property
    def _is_synced(self) -> bool:
        return bool(self.c.commit.word & 1)

    def _let_go_of(self, handle: Handle | None) -> None:
        """Release a log's file. If C is syncing the file, keep it open until that sync is done."""
        if self._is_synced:
            self._kept.append(handle)
        # After C released `handle`, the holder of the append token may have bound it again.
        if self.handle is handle and self.c.fd < 0:
            self.handle = None

    def hand_on(self, followers: Sequence[NativeTail]) -> None:
        """Make C append to these followers' tails, too."""
        if not followers and not self.followers:
            return
        self.followers = followers  # the reference keeps alive the structs that `c` points to
        self.c.n_followers = len(followers)
        self.c.spins = len(followers) < _processors()
        self.c.hands_over = any(follower.by_thread for follower in followers)
        for number, follower in enumerate(followers):
            self.c.followers[number] = follower.c

    def share(self, share: Any, owner: object) -> None:
        """Append to a log that is shared with other processes. `share` is a `seg_share *`, whose memory
        `owner` keeps alive.
        """
        self.c.share = share
        self.keep("share", (share, owner))

    def write_by(self, job: Any) -> None:
        """Make the thread of `job` (`DiskThread.job`) write the leader's batches for this tail. If `job` is
        None, the thread that appends to the leader's log writes them.
        """
        self.c.job = ffi.NULL if job is None else job
        self.keep("job", job)

    def begin(self) -> None:
        """Let C append from now on, unless the pool has closed the log's file."""
        self._has_quit = False
        _until_done(lib.seg_tail_begin, self.c)

    # --- state ----------------------------------------------------------------------------

    @property
    def by_thread(self) -> bool:
        """Return whether a DiskThread writes the leader's batches to this tail."""
        return bool(self.c.job)

    @property
    def is_flushed(self) -> bool:
        """Return whether the topic has flush.messages or flush.ms."""
        return self.on_append is not None or self.flush_left is not None

    @property
    def is_replicated(self) -> bool:
        """Return whether C appends to a log whose readers see it only up to a high watermark."""
        return bool(self.c.high_watermark >= 0)

    @property
    def is_shared(self) -> bool:
        """Return whether other processes append to the log, too."""
        return bool(self.c.share)

    @property
    def is_sealed(self) -> bool:
        """Return whether the shared log was sealed because its lock was taken from a stopped process. Then
        the next append needs a new segment.
        """
        return bool(self.c.share and self.c.share.is_sealed)

    @property
    def is_open(self) -> bool:
        """Return whether C may append."""
        return bool(self.c.open)

    @property
    def moved(self) -> bool:
        """Return whether C has tried to append since it was last allowed to append."""
        return bool(self.c.appends or self.c.torn)

    @property
    def synced(self) -> int:
        """Return the offset below which all records are durable."""
        share = self.c.share
        return int(share.log.synced if share else self.commit.synced)

    @synced.setter
    def synced(self, offset: int) -> None:
        share = self.c.share
        if not share:
            self.commit.synced = offset
        elif offset > share.log.synced:  # other processes may have synced beyond `offset`
            share.log.synced = offset

    @property
    def sync_failure(self) -> int:
        """Return the errno of a failed sync of this or another process, 0 if no sync has failed."""
        share = self.c.share
        return int(self.failure[0] or (share.log.failed if share else 0))

    # --- by any thread --------------------------------------------------------------------

    def pause(self) -> None:
        """Let no append begin any more, and wait until an append that is under way has ended."""
        _until_done(lib.seg_tail_pause, self.c, False)

    def quit(self) -> None:
        """Let no append begin any more; return without waiting for C. An append that is under way may still
        complete, so the log's file stays open until that append is done.
        """
        self._has_quit, handle = True, self.handle
        if lib.seg_tail_quit(self.c):
            self._let_go_of(handle)

    def fence(self, epoch: int) -> None:
        """Let no append begin under a leader epoch below `epoch`; return without waiting for C. An append
        that waits for another append then gets the answer SLOW.
        """
        lib.seg_tail_fence(self.c, epoch)

    def is_fenced(self, epoch: int) -> bool:
        """Return whether C refuses appends under this leader epoch."""
        return bool(epoch < self.c.fenced_below)

    def let_go(self) -> None:
        """Stop C's appends, and release the log's file. If another directory's thread may append to this log,
        call `quit`, which does not wait for that thread. The file stays open until the last append or sync is
        done.
        """
        if self._has_quit or self.by_thread or self.c.hands_over:
            self.quit()
        else:
            handle = self.handle
            _until_done(lib.seg_tail_pause, self.c, True)
            self._let_go_of(handle)

    def look(self, position: int, shown: int, seen: int) -> None:
        """Set the end that readers of this process see. Do nothing if C may append, because C then sets that
        end (`seg_tail_look`).
        """
        _until_done(lib.seg_tail_look, self.c, position, shown, seen)

    def show(self, high_watermark: int) -> bool:
        """Show and publish the log up to a high watermark, and return True. Do nothing and return False if
        C may not append now, or if the log is already visible up to a higher offset.
        """
        return bool(_until_done(lib.seg_tail_show, self.c, high_watermark))

    def publish_synced(self, synced: int) -> bool:
        """Publish the recovery point `synced`; return False if C may not append now."""
        return bool(_until_done(lib.seg_tail_synced, self.c, synced))
