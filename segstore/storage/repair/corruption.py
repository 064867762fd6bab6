"""Finds corruption in logs (bytes that are no batches, and missing offsets), removes these bytes, and fills
in the offsets.

The bytes and a note are written into `.segstore/quarantine`. Then the segment is rewritten without the bytes,
and the new segment replaces it as in a compaction (`storage.cleaner.swap`). If a repair is killed before the
swap, the next repair begins anew; if it is killed during the swap, the next open finishes or undoes the swap.
Threads: one; other threads may append and read at the same time.

An empty batch, as compaction leaves it, takes the place of the lost offsets, so that later offsets stay the
same. Readers skip the empty batch. The batch has no producer id, so that `check` recognizes that the log may
lack batches of producers and transactions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from segstore import names
from segstore._native import ffi, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError, SegstoreError
from segstore.index import txn_index
from segstore.index.sparse import MOST_RELATIVE
from segstore.index.txn_index import AbortedTxn
from segstore.records import HEADER_SIZE, batch_ptr, batch_type, decode
from segstore.records.encoded import checked
from segstore.storage.cleaner.rewrite import Output
from segstore.storage.cleaner.swap import remove_strays, swap, undo
from segstore.storage.finding import Repaired
from segstore.storage.log.partition import Partition
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.segment.batch_scan import BAD, ScanStep, next_whole, walk
from segstore.storage.segment.quarantine import keep, note
from segstore.storage.segment.segment import Segment
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LostRange(NamedTuple):
    """Unreadable bytes, from `position` to `end` - 1, and lost offsets, from `first` to `below` - 1. There
    may be no bytes (`position` equals `end`), or no offsets (`first` equals `below`).
    """

    position: int
    end: int
    first: int
    below: int
    reason: str


def stretches(segment: Segment, below: int, gaps_end: int) -> list[LostRange]:
    """Return the corrupt ranges of a segment. All offsets of the segment are less than `below`. A missing
    offset below `gaps_end` (-1: any missing offset) does not count as lost, because compaction may have
    removed it. Raises OSError.
    """
    search = _Search(segment, below, gaps_end)
    while search.position < segment.size:
        search.go_on()
    search.missing(segment.size, below)
    return search.found


class _Search:
    """A search for the corrupt ranges of a segment. `position` is the next byte to check, and `expected` is
    the smallest valid base offset of a batch at this position.
    """

    def __init__(self, segment: Segment, below: int, gaps_end: int) -> None:
        self.segment, self.below, self._gaps_end = segment, below, gaps_end
        self._files, self._handle = segment.pool.files, segment.handle
        self.position, self.expected = 0, segment.base_offset
        self.found: list[LostRange] = []
        # The position of the last batch, the value of `expected` before this batch, and its base offset.
        self._last: tuple[int, int, int] | None = None

    def go_on(self) -> None:
        """Move `position` past good batches, and past the damage that follows them, if there is any."""
        size, reason = self.segment.size, ""
        for step in walk(
            self._files, self._handle, self.position, size, check_crcs=True, least=self.expected
        ):
            n, reason = self._good(step)
            self._take(step.batches[:n])
            self.position = step.stop.position if n == len(step.batches) else int(step.batches["position"][n])
            if n < len(step.batches):
                break
            reason = BAD.get(step.stop.status, "")
        if self.position < size:
            self._skip(reason or "the file was cut")

    def _good(self, step: ScanStep) -> tuple[int, str]:
        """Return the number of good batches before the first bad batch, and the fault of the bad batch ("" if
        all are good). A good batch can be decoded, and its offsets belong to this segment.
        """
        batches = step.batches
        beyond = np.flatnonzero(batches["last_offset"] >= self.below)
        n, reason = (int(beyond[0]), BAD[lib.SEG_BAD_OFFSETS]) if len(beyond) else (len(batches), "")
        for i in range(n):
            try:
                decode(step.data, batches[i : i + 1], self.segment.path, step.position)
            except CorruptRecordError as error:
                return i, error.reason
        return n, reason

    def _take(self, batches: NDArray[np.void]) -> None:
        fields = ("position", "base_offset", "last_offset")
        for position, base, last in zip(*(batches[name].tolist() for name in fields), strict=True):
            self.missing(position, base)
            self._last = position, self.expected, base
            self.expected = last + 1

    def missing(self, position: int, base: int) -> None:
        """Add the offsets from `expected` to `base` - 1 to `found`, as lost before byte `position`, unless
        compaction may have removed them.
        """
        if base > self.expected >= self._gaps_end >= 0:
            last = base - 1
            reason = f"offsets {self.expected} to {last} are missing"
            self.found.append(LostRange(position, position, self.expected, base, reason))

    def _skip(self, reason: str) -> None:
        """Skip the damage at `position`, and add it to `found`. No CRC covers the base offset of a batch: if
        the batch before `position` has a base offset that is too large, skip that batch instead.
        """
        bad, behind = self.position, self.position + 1
        if self._last is not None and self._last[2] > self._last[1] and self._follows(self._last[1]):
            behind, (bad, self.expected, _) = bad, self._last
            reason = BAD[lib.SEG_BAD_OFFSETS]
            if self.found and self.found[-1].position == bad:
                self.found.pop()
        end, base = self._next(behind)
        self.found.append(LostRange(bad, end, self.expected, base, reason))
        self.position, self.expected, self._last = end, base, None

    def _follows(self, before: int) -> bool:
        """Return whether a whole batch begins at `position`, with a base offset of at least `before`."""
        found = self._next(self.position, before)
        return found[0] == self.position < self.segment.size

    def _next(self, position: int, least: int | None = None) -> tuple[int, int]:
        """Return the position and base offset of the next whole batch whose offsets can belong to this
        segment, or (size of the segment, `below`) if there is none. `least` is the smallest valid base
        offset, by default `expected`.
        """
        size, header = self.segment.size, ffi.new("seg_batch *")
        least = self.expected if least is None else least
        while True:
            found = next_whole(self._files, self._handle, position, size, least)
            if found is None:
                return size, self.below
            last = self.segment.header_at(found, size, header)
            if last is not None and last < self.below:
                return found, int(header.base_offset)
            position = found + 1


# --- excising ----------------------------------------------------------------------------------


def excise_all(store: Store) -> Iterator[Repaired]:
    """Remove the corrupt ranges of every partition, and yield each repair. Raises SegstoreError, OSError."""
    writer = store.writer()
    quarantine = os.path.join(store.path, names.OURS, names.QUARANTINE)
    for info in writer.topics.values():
        for number in info.partition_ids:
            try:
                partition = writer.partition(info.name, number)
            except (SegstoreError, OSError):
                continue  # `check` reports the error
            gaps_end = info.gaps_end(number, writer.cleaned_offset(info.name, number))
            yield from excise(partition, quarantine, gaps_end)


def excise(partition: Partition, quarantine: str, gaps_end: int) -> Iterator[Repaired]:
    """Remove the corrupt ranges of one partition, one segment after the other, and yield each repair."""
    view = partition.view
    for slot, segment in enumerate(view.segments):
        below = view.next_base(slot)
        found = stretches(segment, below, gaps_end)
        if not found:
            continue
        if segment is view.segments[-1]:
            partition.roll_from(view)
        kept = [_keep(segment, quarantine, stretch) for stretch in found]
        _rewrite(partition, segment, found, below)
        for stretch, path in zip(found, kept, strict=True):
            at = stretch.position
            yield Repaired(segment.path, at, stretch.first, stretch.reason, _done(stretch, path))


def _done(stretch: LostRange, path: str | None) -> str:
    moved = f"{stretch.end - stretch.position} bytes moved to {path}" if path else ""
    lost = f"an empty batch stands for offsets {stretch.first} to {stretch.below - 1}"
    return ", ".join(said for said in (moved, lost if stretch.below > stretch.first else "") if said)


def _keep(segment: Segment, quarantine: str, stretch: LostRange) -> str | None:
    """Copy a corrupt range to the quarantine. Return the path of the copy, or None if the range has
    no bytes.
    """
    if stretch.end == stretch.position:
        return None
    path = keep(quarantine, segment, stretch.position, stretch.end)
    lost = f"{stretch.first} to {stretch.below - 1}" if stretch.below > stretch.first else "none"
    said = {
        "file": os.path.join(os.path.basename(segment.directory), os.path.basename(segment.path)),
        "position": stretch.position,
        "bytes": stretch.end - stretch.position,
        "offsets": lost,
        "reason": stretch.reason,
    }
    note(segment.pool.files, path, said)
    return path


def _rewrite(partition: Partition, segment: Segment, found: list[LostRange], below: int) -> None:
    """Replace a segment by a copy without the ranges `found`. Raises OSError, CleaningStopped."""
    remove_strays(partition)
    output = Output(partition, segment.base_offset, MOST_RELATIVE)
    try:
        _copy(partition, segment, found, output)
        new = output.finish(_aborted(segment, below), segment)
        swap(partition, [segment], new)
    except BaseException:
        if partition.unsettled is None and segment in partition.view.segments:
            # An error of `undo` is dropped, because the error that caused the undo is raised. The next
            # rewrite calls `remove_strays`, which removes the files that this undo has left.
            with suppress(OSError):
                undo(partition, output.segments)
        raise


def _copy(partition: Partition, segment: Segment, found: list[LostRange], output: Output) -> None:
    files, handle, at = segment.pool.files, segment.handle, 0
    epochs = LeaderEpochs.load(files, os.path.join(segment.directory, names.LEADER_EPOCHS))
    first = epochs.entries[0][0] if epochs.entries else 0
    for stretch in [*found, LostRange(segment.size, segment.size, 0, 0, "")]:
        for step in walk(files, handle, at, stretch.position, check_crcs=False):
            if len(step.batches):
                whole = step.stop.position - step.position
                output.add(memoryview(step.data)[:whole], step.batches)
        if stretch.below > stretch.first:
            last = min(stretch.below - 1, segment.base_offset + MOST_RELATIVE)
            # No leader epoch is known for offsets below the log start offset: the first known epoch is used.
            known = epochs.epoch_for_offset(stretch.first)
            output.add(*empty_batch(stretch.first, last, first if known is None else known))
        at = stretch.end


def empty_batch(first: int, last: int, leader_epoch: int) -> tuple[memoryview, NDArray[np.void]]:
    """Return the bytes and the header of a batch without records (Kafka:
    DefaultRecordBatch.writeEmptyHeader).
    """
    data, batches = bytearray(HEADER_SIZE), np.zeros(1, batch_type())
    for name in ("base_timestamp", "max_timestamp", "producer_id", "base_sequence", "producer_epoch"):
        batches[name] = -1
    batches["base_offset"], batches["last_offset"] = first, last
    batches["size"], batches["leader_epoch"] = HEADER_SIZE, leader_epoch
    checked(lib.seg_seal(ffi.from_buffer("uint8_t[]", data), HEADER_SIZE, batch_ptr(batches)))
    return memoryview(data), batches


def _aborted(segment: Segment, below: int) -> list[AbortedTxn]:
    """Return the entries of the segment's `.txnindex`. The markers are not read, because they may be among
    the lost bytes.
    """
    path = segment.file(names.TXN_INDEX)
    files = segment.pool.files
    data = files.read_file(path) if files.exists(path) else b""
    held = txn_index.parse(data, segment.base_offset)
    return [AbortedTxn(*fields[1:]) for fields in held[held["last_offset"] < below].tolist()]
