"""`Sharing`: publishes the ends of a host's logs in `.segstore/shared`, for the other processes that append
to the store.

`Sharing` keeps the shares of partitions (`seg_share`, `_native/share.c`) in memory: by a share this process
uses a log's part of the shared file. Threads: the holder of the store's lock, or the thread that opens the
store, calls `of`, `take_over` and `end`; the holder of `EndsWriter.lock` calls `show`. `take_over` is called
before a partition is open.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, lib
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile

if TYPE_CHECKING:
    from segstore.config import StoreConfig
    from segstore.files import Files
    from segstore.storage.meta.published_ends import Numbers, Place, Shown


def _nothing() -> None:
    """Do nothing."""


def new_share(members: Members, file: SharedFile, slot: int, key: int, who: int, *, grow: bool) -> Any:
    """Return a new share (`seg_share *`) of the partition with this slot and key. `who` is SEG_OF_GUEST or
    SEG_OF_APPENDS; `grow` is passed to `SharedFile.log`, whose errors are raised.
    """
    return ffi.new(
        "seg_share *",
        {
            "member": members.c,
            "log": file.log(slot, grow=grow),
            "key": key,
            "generation": -1,
            "who": who,
            "opened": [-1] * 5,
        },
    )


class AbandonedLog(NamedTuple):
    """A log that an earlier host has left open: the log's `end` (`seg_shared_end *`), the offset `synced`
    below which the log is durable, and `failed`, the errno of a failed sync (0 if no sync has failed).
    """

    end: Any
    synced: int
    failed: int


class Sharing:
    """Keeps the shares of a host's partitions. `found`: whether an earlier host has left logs open.
    `take_over` is called for each of these logs when its partition is opened.
    """

    def __init__(self, members: Members, file: SharedFile, *, found: bool) -> None:
        self.members, self.file, self.found = members, file, found
        self._shares: dict[int, Any] = {}
        self.on_grown: Callable[[], object] = _nothing
        """This function is called after `.segstore/shared` has grown, before any process appends to a log in
        the new part of the file.
        """

    @classmethod
    def begin(cls, files: Files, root: str, config: StoreConfig) -> Sharing:
        """Make `.segstore/shared`, or continue with the file of a dead host, and become a member of the
        store. The caller holds `.lock`. Raises StorageError, NotShareableError.
        """
        file = SharedFile.make(
            files,
            root,
            members=config.shared_members,
            stopped_ms=config.shared_stopped_ms,
            answer_ms=config.shared_answer_ms,
        )
        return cls(Members(files, root, file, may_host=True), file, found=not file.made)

    def finish_together(self, ends: Any) -> None:
        """If a dead host has begun a publication of several logs, finish the publication. `ends` is the
        memory mapping of `.segstore/ends`.
        """
        logs = (self.file.size - lib.SEG_SHARED_LOGS) // lib.SEG_SHARED_LOG
        lib.seg_share_finish_together(self.members.c, logs, ends)

    def left(self) -> dict[int, list[int]]:
        """Return, by slot, the eight fields of `Ends` of each log that an earlier host has left open."""
        logs, values = {}, ffi.new("int64_t[8]")
        for slot in range((self.file.size - lib.SEG_SHARED_LOGS) // lib.SEG_SHARED_LOG):
            values[0] = self.file.log(slot).key
            if lib.seg_shared_ends(self.file.memory, self.file.size, slot, values):
                logs[slot] = list(values)
        return logs

    def go_live(self) -> None:
        """Allow other processes to join, and wake the members that wait for a host."""
        self.file.live = True
        self.members.become_host()

    def sealed(self, slot: int, key: int) -> dict[int, int]:
        """Return {base offset: end in bytes} of a log's sealed segments, which are closed to appends. A
        process that is stopped now may still write bytes after this end.
        """
        pairs = ffi.new("int64_t[]", 2 * lib.SEG_SEALED)
        n = lib.seg_shared_sealed(self.file.memory, self.file.size, slot, key, pairs)
        return {pairs[2 * i]: pairs[2 * i + 1] for i in range(n)}

    def of(self, slot: int, key: int) -> Any:
        """Return the `seg_share *` by which C code uses the log's part of the shared file. Raises OSError."""
        share = self._shares.get(slot)
        if share is None or share.key != key:
            size = self.file.size
            share = new_share(self.members, self.file, slot, key, lib.SEG_OF_APPENDS, grow=True)
            self._shares[slot] = share
            if share.log.key != key:  # the present values belong to a partition that had this slot before
                share.log.synced = share.log.failed = share.log.synced_offset = share.log.synced_position = 0
                share.log.sync_from = -1
            if self.file.size != size:
                self.on_grown()
        return share

    def is_left(self, slot: int, key: int) -> bool:
        """Return whether an earlier host has left this log open, and `take_over` was not called for the log
        yet.
        """
        share = self._shares.get(slot)
        if not self.found or (share is not None and share.key == key):
            return False
        log = self.file.log_if_there(slot)
        return log is not None and log.key == key and bool(log.current)

    def take_over(self, slot: int, key: int) -> AbandonedLog | None:
        """Refuse further appends of guests to a log that an earlier host has left open, and return the log's
        state; None if no earlier host has left this log open. The log's files may have bytes after the log's
        end.
        """
        if self.file.log_if_there(slot) is None:
            return None
        end, share = ffi.new("seg_shared_end *"), self.of(slot, key)
        while (has_end := lib.seg_share_take_over(share, end)) == -errno.EINTR:
            """A signal's handler has run."""
        # `failed` is cleared, because the open syncs the log again.
        failed, share.log.failed = int(share.log.failed), 0
        return AbandonedLog(end, int(share.log.synced), failed) if has_end else None

    def show(self, shown: Sequence[Shown], ends: Any) -> None:
        """Publish the ends of these logs in `.segstore/shared`, all at one moment. `ends` is the memory
        mapping of `.segstore/ends`.
        """
        marked = [(self._shares[slot], numbers, place) for slot, numbers, place in shown if place is not None]
        marks = ffi.new("seg_marks[]", [_marks(numbers, place) for _, numbers, place in marked])
        if len(marked) == 1:
            lib.seg_share_show(marked[0][0], marks)
        elif marked:
            shares = ffi.new("seg_share *[]", [share for share, _, _ in marked])
            lib.seg_share_show_together(shares, marks, len(marked), ends)

    def end(self, slot: int, key: int) -> None:
        """Refuse appends to the log of a deleted partition."""
        while lib.seg_share_end(self.of(slot, key)) == -errno.EINTR:
            """A signal's handler has run."""
        self._shares.pop(slot, None)


def _marks(numbers: Numbers, place: Place | None) -> dict[str, int]:
    assert place is not None
    _, start, end, _, stable, _, layout, epoch = numbers
    base, position = place
    return {
        "base_offset": base,
        "position": position,
        "next_offset": end,
        "start_offset": start,
        "stable_offset": -1 if stable == end else stable,
        "layout": layout,
        "leader_epoch": epoch,
    }
