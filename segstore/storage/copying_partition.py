"""Copies one partition up to an offset, while its writer goes on.

On disk: reads the source; writes the target's directory, synced. Threads: one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from segstore import names
from segstore.files import Files
from segstore.storage.log.read_only_partition import Follower
from segstore.storage.meta.published_ends import Ends
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import scan_directory

_STEP = 16 << 20
_SMALL = (names.PARTITION_METADATA, names.LEADER_EPOCHS)


class Held(NamedTuple):
    """A log as one moment had it: open files, and what `.txnindex` files said, by base offset."""

    view: LogView
    aborts: dict[int, bytes]


def hold(files: Files, view: LogView, most: int) -> Held:
    """Keep the first `most` files of a view open; of others it is known whether they are still the same.
    FileNotFoundError where one went meanwhile, or compaction is putting others in place: what it merges is
    there twice then.
    """
    aborts = {}
    for number, segment in enumerate(view.segments):
        if number < most:
            segment.retire()
        with contextlib.suppress(FileNotFoundError):
            aborts[segment.base_offset] = files.read_file(segment.file(names.TXN_INDEX))
    found = scan_directory(files, view.segments[0].directory)
    logs = {base for base, suffixes in found.items() if names.LOG in suffixes}
    half = any(suffix.endswith(names.SWAP) for suffixes in found.values() for suffix in suffixes)
    if half or logs != set(view.bases):
        raise FileNotFoundError(errno.ENOENT, "Segments were replaced meanwhile", view.segments[0].directory)
    return Held(view, aborts)


class PartitionCopy:
    """`run` once; then `start` and `end` are the copy's offsets, `segments` and `size` (bytes) what it has.

    `ends`: what was published at the moment that is copied; None: the log as it is.
    """

    def __init__(
        self,
        files: Files,
        source: Follower,
        ends: Ends | None,
        target: str,
        progress: Callable[[int], None],
        held: Held | None = None,
    ) -> None:
        """`held`: these segments and no others, whatever has their names by now."""
        self._files, self._source, self._target, self._progress = files, source, target, progress
        self._held = held
        view = held.view if held else source.view
        self.start, self.end = (ends.start, ends.end) if ends else (view.start_offset, view.end_offset)
        self.segments = self.size = 0

    def run(self) -> bool:
        """False where files went or changed meanwhile: remove what there is, and copy again. OSError."""
        self._files.mkdir(self._target)
        view = self._held.view if self._held else self._source.view
        self.start = min(max(self.start, view.start_offset), self.end)
        try:
            for slot, segment in enumerate(view.segments):
                if not slot or segment.base_offset < self.end:
                    self._log(segment, self._limit(view, slot))
                    self._aborts(segment)
            self._snapshots()
        except FileNotFoundError:
            self._source.refresh()
            return False
        for name in _SMALL:
            self._small(name)
        self._files.sync_dir(self._target)
        return True

    def _limit(self, view: LogView, slot: int) -> int:
        """Up to which byte a segment is in the copy."""
        size = view.end_of(slot)
        if view.next_base(slot) <= self.end and slot < len(view.segments) - 1:
            return size
        behind = view.segments[slot].locate(self.end, size)
        return size if behind is None else int(behind.position)

    def _log(self, segment: Segment, size: int) -> None:
        path = os.path.join(self._target, os.path.basename(segment.path))
        with self._files.open_anew(path) as out:
            at = 0
            while at < size:
                count = min(_STEP, size - at)
                if self._files.copy_range(segment.handle, at, out, at, count) < count:
                    raise FileNotFoundError(2, "cut off meanwhile", segment.path)
                at += count
            self._files.sync(out)
        self.segments += 1
        self.size += size
        self._progress(size)

    def _aborts(self, segment: Segment) -> None:
        name = os.path.basename(segment.file(names.TXN_INDEX))
        if self._held is None:
            self._small(name)
        elif data := self._held.aborts.get(segment.base_offset):
            self._files.write_atomic(os.path.join(self._target, name), data)

    def _snapshots(self) -> None:
        for name in self._files.listdir(self._source.directory):
            parsed = names.parse_segment_file(name)
            if parsed is not None and parsed[1] == names.SNAPSHOT and parsed[0] <= self.end:
                self._small(name)

    def _small(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # there need be none
            data = self._files.read_file(os.path.join(self._source.directory, name))
            self._files.write_atomic(os.path.join(self._target, name), data)
