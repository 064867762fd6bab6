"""`SharedLogs`: a `.segstore/shared` made by hand, for tests of those that read it; `Sharing`: who writes it.

A writer is alone, and knows no locks: a record is filled that is not current, then `current` names it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stores import logs, raw_batches

import segstore
from segstore._native import ffi, held, lib
from segstore.files import Files, boot
from segstore.storage.meta.published_ends import EndsWriter, slot_key
from segstore.storage.meta.shared_header import MAGIC, STEP


class Shown(NamedTuple):
    """What a record says."""

    next_offset: int
    start_offset: int = 0
    stable_offset: int = -1
    layout: int = 0
    leader_epoch: int = 0
    position: int = 0


class SharedLogs:
    """The file, live and of this start of the machine, with room for eight logs at least."""

    def __init__(self, path: Path, logs: int = 8) -> None:
        self.path, self._files, self._kept = path, Files(), list[Any]()
        with self._files.open(str(path), write=True, create=True) as handle:
            size = lib.SEG_SHARED_LOGS + logs * lib.SEG_SHARED_LOG
            self._files.allocate(handle, 0, -(-size // STEP) * STEP)
        self._map()
        self.header.format, self.header.members = lib.SEG_SHARED_FORMAT, lib.SEG_MEMBERS
        self.header.boot = [boot(), ~boot()]
        self.header.host_slot = -1
        self.header.live = 1
        self.header.magic = MAGIC

    def _map(self) -> None:
        self.size = os.stat(self.path).st_size
        with self._files.open(str(self.path), write=True) as handle:
            self.map = held("uint8_t[]", self._files.map(handle, self.size, write=True))
        self._kept.append(self.map)
        self.header = ffi.cast("seg_shared_header *", self.map)

    def grow(self) -> None:
        """Have room for eight logs more."""
        with self._files.open(str(self.path), write=True) as handle:
            self._files.allocate(handle, self.size, STEP)
        self._map()

    def log(self, number: int) -> Any:
        """Return a log's part."""
        at = lib.SEG_SHARED_LOGS + number * lib.SEG_SHARED_LOG
        return ffi.cast("seg_shared_log *", self.map + at)

    def fill(self, number: int, shown: Shown, *, seat: int = 0) -> int:
        """Fill a record that is not current, and return the word that names it."""
        log = self.log(number)
        which = 1 - (log.current & 1) if log.current >> 8 & 0xFF == seat else 0
        record = log.ends[2 * seat + which]
        record.end.next_offset, record.end.position = shown.next_offset, shown.position
        record.start_offset, record.stable_offset = shown.start_offset, shown.stable_offset
        record.layout, record.leader_epoch = shown.layout, shown.leader_epoch
        return int((log.current >> 16) + 1 << 16 | seat << 8 | which)

    def show(self, number: int, shown: Shown, *, seat: int = 0) -> None:
        """Make this the end of a log."""
        self.log(number).current = self.fill(number, shown, seat=seat)

    def open(self, number: int, key: int, shown: Shown) -> None:
        """Make a log of the partition with this key, which ends so."""
        log = self.log(number)
        log.synced = shown.next_offset
        self.show(number, shown)
        log.key = key

    def prepare(self, together: int, ends: Sequence[tuple[int, Shown]]) -> None:
        """Write the next ends of several logs down, to be swapped as one."""
        for number, shown in ends:
            log = self.log(number)
            log.pending_of, log.pending = 0, self.fill(number, shown)
            log.pending_of = together


class Sharing:
    """A store that is shared, and a host and guests of it in one: partition 0 of "t". Nothing is published by
    anybody else meanwhile.
    """

    def __init__(self, root: Path, topic: str = "t") -> None:
        self.root, self.topic = root, topic
        with segstore.open(root, "r") as store:
            info = store.topics()[topic]
        self.key = slot_key(info.topic_id, topic, 0)
        self.ends = EndsWriter(Files(), str(root / ".segstore" / "ends"))
        self.slot = self.ends.claim(self.key)
        self.map, self.size = self.ends.mapping

    @property
    def file(self) -> Path:
        """Return the active segment's log."""
        return logs(self.root, f"{self.topic}-0")[-1]

    def begin(self) -> None:
        """Make the shared file, and share the log: from here on it ends where that says."""
        path = self.root / ".segstore" / "shared"
        path.unlink(missing_ok=True)
        self.shared = SharedLogs(path, self.slot + 1)
        known = self.ends.get(self.key)
        assert known is not None
        self.shown = Shown(known.end, known.start, layout=known.layout, leader_epoch=known.epoch)
        self.shared.open(self.slot, self.key, self.shown)
        self.ends.publish_sharing()

    def end(self) -> None:
        """Do what a writer does that does not share, before it publishes anything."""
        self.ends.end_sharing()

    def write(self, n: int) -> None:
        """Write so many records behind the end, each in a batch of its own."""
        offsets = range(self.shown.next_offset, self.shown.next_offset + n)
        with self.file.open("ab") as file:
            file.write(raw_batches(offsets, per_batch=1, epoch=self.shown.leader_epoch))

    def show(self, **changed: int) -> None:
        """Have the log end so, and count the append."""
        self.shown = self.shown._replace(**changed)
        self.shared.show(self.slot, self.shown)
        assert lib.seg_shared_count(self.map, self.size, self.shared.map) >= 0

    def append(self, n: int = 1) -> None:
        """Append so many records as a guest does."""
        self.write(n)
        self.show(next_offset=self.shown.next_offset + n)

    def publish(self, n: int) -> None:
        """Append so many records as a writer does that does not share."""
        known = self.ends.get(self.key)
        assert known is not None
        self.shown = Shown(known.end, known.start, layout=known.layout, leader_epoch=known.epoch)
        self.write(n)
        end = known.end + n
        self.ends.publish([self.slot], [known._replace(end=end, high_watermark=end, stable=end)])
