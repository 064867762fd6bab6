"""Checks one segment: its batches and records, and whether both indexes agree with them. Files on disk are
only read.

Threads: any.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

from segstore import names
from segstore._native import lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.index import SealedOffsetIndex, SealedTimeIndex
from segstore.records import APPEND_TIME_FLAG, CODEC_MASK, MAGIC, decode
from segstore.records.header import NO_EPOCH
from segstore.storage.finding import Finding
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.meta.small_files import reason
from segstore.storage.segment.batch_scan import BAD, ScanStep, walk_past_damage
from segstore.storage.segment.segment import Segment

Index = TypeVar("Index", SealedOffsetIndex, SealedTimeIndex)
Findings = Iterator[Finding]


class SegmentCheck:
    """Checks one segment, which is visible up to byte `end`, and whose offsets must all be below `below`.

    Below `gaps_end` compaction may have left gaps (-1: anywhere). `run` sets `next_offset`, and whether the
    segment is `damaged`, damaged up to its end (`ends_in_damage`), has gaps (`gapped`), and holds batches of
    producers with an id (`of_producers`).
    """

    def __init__(
        self,
        segment: Segment,
        end: int,
        below: int,
        epochs: LeaderEpochs | None,
        active: bool,
        at_rest: bool,
        gaps_end: int = -1,
    ) -> None:
        self.segment, self.end, self.below, self.epochs = segment, end, below, epochs
        self.active, self.at_rest, self.gaps_end = active, at_rest, gaps_end
        self.next_offset = segment.base_offset
        self.damaged = self.gapped = self.of_producers = False
        self.ends_in_damage = False
        self._starts: list[int] = []
        self._lasts: list[int] = []
        self._magics: list[int] = []
        self._stamps: list[int] = []
        # The largest timestamp of each batch, -1 for a batch without records.
        self._of_records: list[int] = []

    def run(self) -> Iterator[Finding]:
        """Yield the findings on the segment."""
        segment = self.segment
        expected = 0
        for step in walk_past_damage(segment.pool.files, segment.handle, self.end, check_crcs=True):
            yield from self._check_step(step)
            expected = step.stop.position
            if step.stop.status in BAD and not (
                step.stop.status == lib.SEG_SHORT and expected < self._seen_end(step)
            ):
                yield from self._damage(expected, step.stop.status)
        yield from self._check_indexes()

    def _seen_end(self, step: ScanStep) -> int:
        # If a step stops before the end, its last batch may be incomplete, and is read again by the next
        # step.
        return self.end if step.position + len(step.data) < self.end else -1

    def _damage(self, position: int, status: int) -> Iterator[Finding]:
        if self.active and self.next_offset >= self.below and not self.at_rest:
            return
        self.damaged = self.ends_in_damage = True
        yield Finding(self.segment.path, position, self.next_offset, f"no valid batch: {BAD[status]}")

    def _check_step(self, step: ScanStep) -> Iterator[Finding]:
        batches = step.batches
        keep = batches["base_offset"] < self.below
        if self.active and not self.at_rest:
            batches = batches[keep]
        if not len(batches):
            return
        path = self.segment.path
        if batches["base_offset"][0] < self.next_offset:
            yield Finding(
                path, int(batches["position"][0]), int(batches["base_offset"][0]), "offsets do not rise"
            )
        if batches["last_offset"][-1] >= self.below:
            yield Finding(
                path,
                int(batches["position"][-1]),
                int(batches["last_offset"][-1]),
                f"offset not below {self.below}",
            )
        yield from self._check_gaps(batches)
        self.next_offset = int(batches["last_offset"][-1]) + 1
        self.of_producers |= bool((batches["producer_id"] >= 0).any())
        self._starts += batches["position"].tolist()
        self._lasts += batches["last_offset"].tolist()
        self._magics += batches["magic"].tolist()
        self._stamps += batches["max_timestamp"].tolist()
        self._of_records += np.where(batches["count"] > 0, batches["max_timestamp"], -1).tolist()
        yield from self._check_records(step, batches)
        yield from self._check_epochs(batches)

    def _check_gaps(self, batches: np.ndarray) -> Findings:
        bases = batches["base_offset"]
        before = np.concatenate(([self.next_offset], batches["last_offset"][:-1] + 1))
        missing = bases > before
        wrappers = (batches["magic"] != MAGIC) & (batches["attributes"] & CODEC_MASK != 0)
        missing &= ~wrappers  # the first offset of a wrapper is not known before the wrapper is decompressed
        # These batches have fewer records than offsets: compaction or a repair has removed some.
        thinned = (batches["count"] <= batches["last_offset"] - bases) & ~wrappers
        self.gapped |= bool(missing.any() or thinned.any())
        if self.ends_in_damage:
            missing[0] = False  # the gap comes from damage that was already reported
            self.ends_in_damage = False
        for i in np.flatnonzero(missing & (before >= self.gaps_end)).tolist() if self.gaps_end >= 0 else ():
            first, last = int(before[i]), int(bases[i]) - 1
            at = int(batches["position"][i])
            yield Finding(self.segment.path, at, first, f"offsets {first} to {last} are missing")

    def _check_records(self, step: ScanStep, batches: np.ndarray) -> Iterator[Finding]:
        for first, last in _decoded_together(batches):
            batch = batches[first:last]
            position, base = int(batch["position"][0]), int(batch["base_offset"][0])
            try:
                records = decode(step.data, batch, self.segment.path, step.position)
            except CorruptRecordError as error:
                yield Finding(self.segment.path, error.position, error.offset, error.reason)
                continue
            # The first offset of a step's first wrapper is not known.
            below = first > 0 and len(records) and records.offsets[0] < base
            if below or (len(records) and (np.diff(records.offsets) <= 0).any()):
                yield Finding(self.segment.path, position, base, "offsets of records do not rise")
            stamped = not batch["attributes"][0] & APPEND_TIME_FLAG
            if len(records) and stamped and records.timestamps.max() > batch["max_timestamp"].max():
                yield Finding(
                    self.segment.path, position, base, "a record is later than its batch's max timestamp"
                )

    def _check_epochs(self, batches: np.ndarray) -> Iterator[Finding]:
        epochs = self.epochs
        if epochs is None or epochs.latest is None:
            return
        # Messages of magic 0 and 1, and batches that an upgrade has made of such messages, have no epoch.
        batches = batches[batches["leader_epoch"] != NO_EPOCH]
        if not len(batches):
            return
        held = batches["leader_epoch"]
        for i in (0, *(np.flatnonzero(held[1:] != held[:-1]) + 1).tolist()):
            base, epoch = int(batches["base_offset"][i]), int(batches["leader_epoch"][i])
            known = epochs.epoch_for_offset(base)
            if known is not None and known != epoch:
                yield Finding(
                    self.segment.path,
                    int(batches["position"][i]),
                    base,
                    f"leader epoch {epoch}, but {known} in {names.LEADER_EPOCHS}",
                )

    # --- indexes --------------------------------------------------------------------------

    def _check_indexes(self) -> Iterator[Finding]:
        yield from self._check_index(SealedOffsetIndex, names.INDEX, self._check_offsets)
        yield from self._check_index(SealedTimeIndex, names.TIME_INDEX, self._check_times)

    def _check_index(
        self, kind: type[Index], suffix: str, check: Callable[[Index, str], Findings]
    ) -> Findings:
        path = self.segment.file(suffix)
        try:
            index = kind(self.segment.pool.files, path, log_size=self.segment.size, mapped=not self.active)
        except FileNotFoundError:
            if self.at_rest:
                yield Finding(
                    path, None, self.segment.base_offset, "missing: rebuilt at the next open for writing"
                )
            return
        except OSError as error:
            yield Finding(path, None, None, reason(error))
            return
        if index.damaged and (self.at_rest or not self.active):
            at = index.entries * index.ENTRY.size
            yield Finding(path, at, None, "an entry is out of order or points outside")
        # Entries of lost batches can't be checked; the finding on the log is enough.
        if not self.damaged:
            yield from check(index, path)

    def _check_offsets(self, index: SealedOffsetIndex, path: str) -> Iterator[Finding]:
        for slot in range(index.entries):
            relative, position = index.entry(slot)
            last = self.segment.base_offset + relative
            if last >= self.below and not self.at_rest:
                return
            i = bisect.bisect_left(self._starts, position)
            if i == len(self._starts) or self._starts[i] != position or not self._ends_at(i, last):
                yield Finding(
                    path, slot * 8, last, f"points to byte {position}, where no batch ends with that offset"
                )

    def _ends_at(self, i: int, last: int) -> bool:
        """Return whether an index entry for batch `i` may have the offset `last`. The entry of a batch of
        magic 2 has the batch's last offset. The entry of a message of magic 0 or 1 may also have the offset
        of a later message of the same append.
        """
        if self._magics[i] == MAGIC:
            return self._lasts[i] == last
        j = bisect.bisect_left(self._lasts, last, i)
        return j < len(self._lasts) and self._lasts[j] == last and MAGIC not in self._magics[i : j + 1]

    def _check_times(self, index: SealedTimeIndex, path: str) -> Iterator[Finding]:
        # Kafka counts the timestamps of batches that compaction left empty, too.
        largest, of_records = map(_largest, (self._stamps, self._of_records))
        for slot in range(index.entries):
            stamp, relative = index.entry(slot)
            last = self.segment.base_offset + relative
            if last >= self.below and not self.at_rest:
                return
            i = bisect.bisect_left(self._lasts, last)
            if (
                i == len(self._lasts)
                or self._lasts[i] != last
                or self._stamps[i] != stamp
                or stamp not in (largest[i], of_records[i])
            ):
                yield Finding(
                    path, slot * 12, last, f"timestamp {stamp} is not the largest up to that offset"
                )
        whole = not self.active and len(largest) and of_records[-1] >= 0
        # The entry of a first batch with timestamp 0 is all zeros, like unused room in the file, so readers
        # ignore this entry and all later entries.
        unseen = not index.entries and whole and self._stamps[0] == 0
        end = index.entry(-1)[0] if index.entries else 0
        if whole and not unseen and end not in (largest[-1], of_records[-1]):
            yield Finding(
                path, None, None, f"does not end with the segment's largest timestamp {largest[-1]}"
            )


def _decoded_together(batches: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (index of the first batch, index after the last batch) of the batches that are decoded together:
    single batches of magic 2, single wrappers, and runs of plain messages of magic 0 and 1.
    """
    single = (batches["magic"] == MAGIC) | (batches["attributes"] & CODEC_MASK != 0)
    bounds = [0, *(np.flatnonzero(single[1:] | single[:-1]) + 1).tolist(), len(batches)]
    yield from itertools.pairwise(bounds)


def _largest(stamps: list[int]) -> np.ndarray:
    """Return the running maximum of the timestamps."""
    return np.maximum.accumulate(stamps) if stamps else np.empty(0, np.int64)
