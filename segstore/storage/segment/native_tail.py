"""The native tail of a log: what C needs to append a record by one call, lent to it while nothing unusual is
the case (DESIGN.md, section 6; `_native/tail.c`).

A tail is made for one loan. It is lent, and taken back, by the holder of the partition's append token;
`stop` may be called by any thread: no append begins any more when it returns. What C has appended is in the
log, indexed and published; the Python objects learn of that when the tail is taken back. Until then readers
of this process see it by `end`.
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

enabled = "SEGSTORE_LONG_WAY" not in os.environ
"""Whether tails are lent. Where the environment has SEGSTORE_LONG_WAY, as in tests of the long way, every
append takes that.
"""


def _processors() -> int:
    """Return how many processors this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux has it
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


class NativeTail:
    """A tail of which C's struct is `c`. `write` and `sync` are what `native_write` and `native_sync` of
    `Files` give; `clock` is None where C's clock is the store's; `here` is as `Context.here_for_c`.
    """

    __slots__ = (
        "__weakref__",
        "_is_left",
        "_owners",
        "address",
        "c",
        "clock",
        "due",
        "followers",
        "handle",
        "late",
        "syncs",
        "write",
    )

    def __init__(
        self, handle: Handle, write: NativeWrite, sync: Any, clock: Callable[[], int] | None, here: Any
    ) -> None:
        self.c = ffi.new("seg_tail *")
        self.address = address(self.c)
        self.c.fd, self.c.write, self.c.here = handle.fd, write.c, here
        self.write = write
        self.c.high_watermark = -1
        self.syncs = sync is not None
        """Whether C may sync the log."""
        if self.syncs:
            self.c.sync = sync
        self.clock = clock
        self.due: Callable[[int], None] | None = None
        """Called with the offset behind each append where Python keeps flush.ms or flush.messages."""
        self.late: Callable[[int], None] | None = None
        """Called in place of `due` where C keeps flush.messages, once `c.late` says that C left a flush."""
        self.handle: Handle | None = handle
        """The log's file, None once the tail was stopped."""
        self.followers: Sequence[NativeTail] = ()
        """The tails of other replicas, which get what is appended to this one before readers see it."""
        self._owners: list[Any] = [sync, here]
        self._is_left = False  # whether somebody has quit, who waits for no disk

    def keep(self, *owners: Any) -> None:
        """Keep objects to whose memory the struct points, for as long as the tail lives."""
        self._owners += owners

    def hand_on(self, followers: Sequence[NativeTail]) -> None:
        """Have C append to these tails of followers, too; called before `begin`."""
        self.followers = followers  # they live as long as this tail
        self.c.n_followers = len(followers)
        self.c.spins = len(followers) < _processors()
        for number, follower in enumerate(followers):
            self.c.followers[number] = follower.c
            self.c.hands_over |= follower.by_thread

    def write_by(self, job: Any) -> None:
        """Have what a leader's tail hands on to this one written by the thread that `job` is of, as
        `DiskThread.job` gives it; called before `begin`.
        """
        self.c.job = job
        self.keep(job)

    @property
    def by_thread(self) -> bool:
        """Return whether a thread of its directory writes for this tail."""
        return bool(self.c.job)

    @property
    def is_flushed(self) -> bool:
        """Return whether the topic is flushed by messages or time."""
        return self.due is not None or self.late is not None

    @property
    def is_behind(self) -> bool:
        """Return whether C appends to a log that readers see up to a high watermark only."""
        return bool(self.c.high_watermark >= 0)

    @property
    def is_lent(self) -> bool:
        """Return whether C may append."""
        return bool(self.c.lent)

    @property
    def has_hidden(self) -> bool:
        """Return whether the log ends behind what was shown, since a follower lacks it."""
        return bool(self.c.active.end.next_offset > self.c.shown_offset)

    def begin(self) -> None:
        """Let C append from now on, unless the tail was stopped before. The pool may stop the tail to close
        the log's file.
        """
        # First: once the handle has its user, the pool may close the file at any moment.
        lib.seg_tail_begin(self.c)
        handle = self.handle
        if handle is None:
            self.stop()
        else:
            handle.user = weakref.ref(self)

    @property
    def moved(self) -> bool:
        """Return whether anything was appended, or tried in vain, since the tail was lent."""
        return bool(self.c.appends or self.c.torn)

    def stop(self) -> None:
        """Let no append begin any more, and wait for one that is under way. Calls after the first do
        nothing.
        """
        while lib.seg_tail_stop(self.c) == -errno.EINTR:
            """A signal's handler has run."""
        self.handle = None

    def quit(self) -> None:
        """Let no append begin any more, and wait for nothing. The file stays open for one that is under way:
        that may still end.
        """
        self._is_left = True
        if lib.seg_tail_quit(self.c):
            self.handle = None

    def let_go(self) -> None:
        """Stop, so that the file can be closed. An append of replicas by threads is not waited for: then the
        file stays open as long.
        """
        if self._is_left or self.by_thread or self.c.hands_over:
            self.quit()
        else:
            self.stop()

    def show(self, high_watermark: int) -> bool:
        """Show the log up to a high watermark, and publish that; False where the tail is not lent any more,
        or shows more.
        """
        while (shown := lib.seg_tail_show(self.c, high_watermark)) == -errno.EINTR:
            """A signal's handler has run."""
        return bool(shown)

    def publish_synced(self, synced: int) -> bool:
        """Publish how much is durable; False where the tail is not lent any more."""
        while (told := lib.seg_tail_synced(self.c, synced)) == -errno.EINTR:
            """A signal's handler has run."""
        return bool(told)
