"""Repairs `.txnindex` files and producer snapshots: they are rewritten from the batches of a log, or removed.

Each file is replaced in one step. Threads: one, while the partition is not open. If the log is complete, the
files can be made from the log alone. If the log's beginning or some batches are missing, a `.txnindex` keeps
its entries for transactions that the log does not show, and a damaged snapshot is removed; an open then loads
the previous snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from segstore import names
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.index.txn_index import AbortedTxn, format_entries, parse
from segstore.storage.meta.small_files import unreadable
from segstore.storage.producers.producer_state import ProducerState
from segstore.storage.producers.replay import merged, take_in
from segstore.storage.segment.batch_scan import walk_past_damage
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

Which = set[tuple[int, str]]
ANEW, REMOVED = "made anew from the log", "removed: the log alone can't tell what it said"


class ProducerFiles:
    """The `.txnindex` files and snapshots of one partition."""

    def __init__(self, files: Files, directory: str, segments: list[Segment]) -> None:
        self._files, self._directory, self._segments = files, directory, segments
        self._next = first = segments[0].base_offset if segments else 0
        self._state, self._whole = ProducerState(first), first == 0

    def make_anew(self, which: Which) -> dict[tuple[int, str], str]:
        """Rewrite the files `which`, or remove them. Return a dict from the (base offset, suffix) of each
        repaired file to a description of its repair. Raises OSError.
        """
        self._begin(which)
        done = dict(self._snapshot(self._next, which))
        for segment, after in zip(self._segments, [*self._segments[1:], None], strict=True):
            aborted = self._replay(segment)
            if (segment.base_offset, names.TXN_INDEX) in which:
                below = self._next if after is None else after.base_offset
                self._write_aborted(segment, aborted, below)
                done[segment.base_offset, names.TXN_INDEX] = ANEW
            self._whole &= after is None or self._next == after.base_offset
            done |= dict(self._snapshot(self._next, which))
        for offset, suffix in which - done.keys():
            if suffix == names.SNAPSHOT:
                done |= self._remove(offset)
        return done

    def _begin(self, which: Which) -> None:
        """Load the producer state from the snapshot at the first offset of the log, unless this snapshot is
        damaged or missing.
        """
        path = self._path(self._next)
        if (self._next, names.SNAPSHOT) not in which and self._files.exists(path):
            self._state = ProducerState.load(self._files.read_file(path), self._next, path)
            self._whole = True

    def _path(self, offset: int) -> str:
        return os.path.join(self._directory, names.segment_file(offset, names.SNAPSHOT))

    def _replay(self, segment: Segment) -> list[AbortedTxn]:
        """Apply the batches of a segment to the producer state. Return the transactions that the segment's
        markers abort.
        """
        found: list[AbortedTxn] = []
        files, damaged, position = self._files, dict[int, CorruptRecordError](), 0
        for step in walk_past_damage(files, segment.handle, segment.size, check_crcs=True, sparse=False):
            self._see(step.batches, step.position == position)
            found += take_in(self._state, segment, step.batches, damaged)
            position = step.stop.position
        self._whole &= position == segment.size and not damaged
        return found

    def _see(self, batches: NDArray[np.void], beside: bool) -> None:
        """Set `_whole` to False if a producer's batch may be missing: the offsets have a gap, an empty batch
        has no producer id, or `beside` is False. `beside`: the batches directly follow the bytes that were
        read before them.
        """
        if not len(batches):
            return
        before = np.concatenate(([self._next], batches["last_offset"][:-1] + 1))
        nobodys = (batches["count"] == 0) & (batches["producer_id"] < 0)
        self._whole &= beside and not bool((batches["base_offset"] > before).any() or nobodys.any())
        self._next = int(batches["last_offset"][-1]) + 1

    def _write_aborted(self, segment: Segment, found: list[AbortedTxn], below: int) -> None:
        path = segment.file(names.TXN_INDEX)
        if not self._whole and self._files.exists(path):
            held = parse(self._files.read_file(path), segment.base_offset)
            known = [AbortedTxn(*fields[1:]) for fields in held[held["last_offset"] < below].tolist()]
            found = merged(known, found)
        if found:
            self._files.write_atomic(path, format_entries(found))
        elif self._files.exists(path):
            self._files.unlink(path)

    def _snapshot(self, offset: int, which: Which) -> Iterator[tuple[tuple[int, str], str]]:
        """If the snapshot at `offset`, the offset of the present state, is one of `which`, write it, or
        remove it if the log is not complete. Yield the repair.
        """
        if (offset, names.SNAPSHOT) not in which:
            return
        if self._whole:
            self._files.write_atomic(self._path(offset), self._state.dump())
            yield (offset, names.SNAPSHOT), ANEW
        else:
            yield from self._remove(offset).items()

    def _remove(self, offset: int) -> dict[tuple[int, str], str]:
        try:
            self._files.read_file(self._path(offset))
        except OSError as error:
            unreadable(error, self._path(offset))  # a transient error is raised, so the snapshot stays
        self._files.unlink(self._path(offset))
        return {(offset, names.SNAPSHOT): REMOVED}
