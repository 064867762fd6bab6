"""Owns a partition's `<offset>.snapshot` files: the producer state at that offset.

A snapshot is written at every roll and at a clean close, as Kafka does, so that opening replays only the
headers behind the newest one. One that can't be read is passed over: the log is the authority.
Threads: the holder of the partition's append token; `stable_offset` is read by nobody else.
"""

from __future__ import annotations

import contextlib
import os

from segstore import names
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.storage.opening import Opened
from segstore.storage.producer_state import ProducerState
from segstore.storage.replay import replay


class Producers:
    """Producer state as of the log end offset."""

    def __init__(self, files: Files, directory: str, state: ProducerState) -> None:
        self._files, self._directory, self._state = files, directory, state

    @classmethod
    def load(cls, files: Files, directory: str, opened: Opened) -> Producers:
        """State at the log's end: the newest snapshot that holds, and what came behind it. OSError."""
        taken = snapshots(files, directory)
        for offset in [o for o in taken if o > opened.end_offset]:
            files.unlink(_path(directory, offset))
            taken.remove(offset)
        state = ProducerState()
        for newest in reversed(taken):
            with contextlib.suppress(SegstoreError):
                path = _path(directory, newest)
                state = ProducerState.load(files.read_file(path), newest, path)
                break
        if state.map_end_offset < opened.end_offset:
            ends = [*(s.base_offset for s in opened.segments[1:]), opened.end_offset]
            for segment, end in zip(opened.segments, ends, strict=True):
                if end > state.map_end_offset:
                    replay(state, segment, segment.size)
        keep = {s.base_offset for s in opened.segments} | set(taken[-1:])
        for stray in set(taken) - keep:
            files.unlink(_path(directory, stray))
        return cls(files, directory, state)

    def stable_offset(self, end: int) -> int:
        """Kafka's last stable offset, where the log ends at `end`."""
        unstable = self._state.first_unstable_offset
        return end if unstable is None else min(unstable, end)

    def snapshot(self, offset: int) -> None:
        """Write the state at `offset`. OSError. Not synced: what a power cut leaves of it is passed over."""
        self._files.write_atomic(_path(self._directory, offset), self._state.dump(), sync=False)

    def forget_snapshot(self, offset: int) -> None:
        """The segment that begins at `offset` was removed."""
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(_path(self._directory, offset))


def snapshots(files: Files, directory: str) -> list[int]:
    """Offsets of the snapshots there are, in order."""
    parsed = map(names.parse_segment_file, files.listdir(directory))
    return sorted(p[0] for p in parsed if p is not None and p[1] == names.SNAPSHOT)


def _path(directory: str, offset: int) -> str:
    return os.path.join(directory, names.segment_file(offset, names.SNAPSHOT))
