"""Checks `.txnindex` files and producer snapshots against the batches of the logs.

Files on disk are only read. Threads: one.

The log is replayed from its first segment on, beginning with the producer state in the snapshot at that
segment's base offset. If that snapshot is missing, or compaction removed batches, the log alone does not show
where every transaction began. Then an index may have more entries than the log shows, but never fewer. A
transaction needs no entry if the log has only its marker, because compaction drops such entries.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from segstore import names
from segstore.arrays import np
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.index import txn_index
from segstore.index.txn_index import AbortedTxn
from segstore.records.header import CONTROL_FLAG, NO_EPOCH, NO_SEQUENCE
from segstore.storage.check.segment import SegmentCheck
from segstore.storage.finding import Finding
from segstore.storage.meta.small_files import reason
from segstore.storage.producers.producer_state import ProducerState, SnapshotEntry, parse_snapshot
from segstore.storage.producers.replay import replay
from segstore.storage.segment.batch_scan import walk_past_damage


class TransactionCheck:
    """Checks the transactions of one partition. The caller passes the partition's segments to `check`, in
    order. `state` is the producer state after the segments that were passed.
    """

    def __init__(self, files: Files, directory: str, base_offset: int) -> None:
        self._files, self._directory = files, directory
        self.state = ProducerState(base_offset)
        self._base = base_offset
        self._whole = base_offset == 0
        self._lost = False
        path = os.path.join(directory, names.segment_file(base_offset, names.SNAPSHOT))
        # A snapshot that can't be read has a finding of its own.
        with contextlib.suppress(SegstoreError, OSError):
            self.state = ProducerState.load(files.read_file(path), base_offset, path)
            self._whole = True

        self._begun_before = set(self.state.ongoing)
        self._unseen: set[int] = set()
        """Last offsets of transactions of which the log has only the marker. They may lack an index entry,
        because compaction drops such entries.
        """

    @property
    def known(self) -> bool:
        """Return whether all transactions are known: the log has no gaps and no damage, and the producer
        snapshot before its first segment, if there must be one, could be read.
        """
        return self._whole and not self._lost

    def check(self, one: SegmentCheck) -> Iterator[Finding]:
        """Yield the findings on the `.txnindex` of a segment that was checked."""
        path = one.segment.file(names.TXN_INDEX)
        self._whole &= not one.gapped
        self._lost |= one.damaged
        replayed = self._replay(one)
        # Compaction may have removed all batches of transactions that began before the log's first segment,
        # so these transactions are not compared.
        if not self.known:
            replayed = [txn for txn in replayed if txn.first_offset >= self._base]
        try:
            data = self._files.read_file(path)
        except FileNotFoundError:
            replayed = [txn for txn in replayed if txn.last_offset not in self._unseen]
            if replayed and not self._lost and (one.at_rest or not one.active):
                message = f"missing, but {len(replayed)} transactions were aborted"
                yield Finding(path, None, one.segment.base_offset, message)
            return
        except OSError as error:
            yield Finding(path, None, None, reason(error))
            return
        found = txn_index.parse(data, one.segment.base_offset)
        size = len(found) * txn_index.ENTRY_SIZE
        if size != len(data):
            yield Finding(path, size, None, "no entry of an aborted transaction")
        held = {txn.last_offset: txn for txn in (AbortedTxn(*fields[1:]) for fields in found.tolist())}
        yield from self._compare(path, held, replayed, one)

    def check_snapshot(self, offset: int) -> Iterator[Finding]:
        """Yield the findings on the snapshot at `offset`, the end of the last checked segment, if there is a
        snapshot.

        It is no fault if the snapshot lacks a producer without an open transaction, or a coordinator epoch,
        because a producer may expire, and write again later.
        """
        path = os.path.join(self._directory, names.segment_file(offset, names.SNAPSHOT))
        if not self.known or not self._files.exists(path):
            return
        # The partition's check reports a snapshot that can't be read.
        with contextlib.suppress(SegstoreError, OSError):
            held = {e.producer_id: e for e in parse_snapshot(self._files.read_file(path), path)}
            expected = {e.producer_id: e for e in self.state.entries()}
            missing = set(self.state.ongoing) - set(held)
            for producer_id in sorted(
                {p for p, e in held.items() if not _fits(e, expected.get(p))} | missing
            ):
                message = f"says {held.get(producer_id)}, but the log {expected.get(producer_id)}"
                yield Finding(path, None, offset, message)

    def _replay(self, one: SegmentCheck) -> list[AbortedTxn]:
        """Return the transactions that the segment's control batches abort."""
        if not one.of_producers or self._lost:
            return []
        try:
            self._look_for_unseen(one)
            found = replay(self.state, one.segment, one.end)
        except SegstoreError:
            # The segment's check reports the damage.
            self._lost = True
            return []
        return [txn for txn in found if txn.last_offset < one.next_offset]

    def _look_for_unseen(self, one: SegmentCheck) -> None:
        """Add to `_unseen` the transactions that began before the log's first segment, and of which the log
        has only the marker.
        """
        files, handle = one.segment.pool.files, one.segment.handle
        if not self._begun_before:
            return
        for step in walk_past_damage(files, handle, one.end, check_crcs=False, sparse=True):
            for batch in step.batches[np.isin(step.batches["producer_id"], list(self._begun_before))]:
                if batch["producer_id"] in self._begun_before and batch["attributes"] & CONTROL_FLAG:
                    self._unseen.add(int(batch["last_offset"]))
                self._begun_before.discard(int(batch["producer_id"]))

    def _compare(
        self, path: str, held: dict[int, AbortedTxn], replayed: list[AbortedTxn], one: SegmentCheck
    ) -> Iterator[Finding]:
        for txn in replayed:
            entry = held.pop(txn.last_offset, None)
            if entry is None:
                if txn.last_offset not in self._unseen and (one.at_rest or not one.active):
                    yield Finding(path, None, txn.last_offset, f"{_named(txn)} is not in it")
            elif not self._agree(entry, txn):
                yield Finding(path, None, txn.last_offset, f"says {entry}, but the log {txn}")
        for last, txn in held.items():
            beyond = last >= one.next_offset
            if (beyond and one.at_rest) or (beyond and not one.active) or (self.known and not beyond):
                yield Finding(path, None, last, f"{_named(txn)} is not in the log")

    def _agree(self, entry: AbortedTxn, txn: AbortedTxn) -> bool:
        if self.known:
            return entry == txn
        return entry.producer_id == txn.producer_id and entry.first_offset <= txn.first_offset


def _fits(held: SnapshotEntry, expected: SnapshotEntry | None) -> bool:
    if expected is not None and held.coordinator_epoch == NO_EPOCH:
        expected = expected._replace(coordinator_epoch=NO_EPOCH)
    # The snapshot says that the log has no batch of the producer, only a marker. So only the fields of the
    # marker are compared.
    if expected is not None and held.last_offset < 0:
        expected = expected._replace(last_sequence=NO_SEQUENCE, last_offset=-1, offset_delta=0)
    return held == expected


def _named(txn: AbortedTxn) -> str:
    offsets = f"from {txn.first_offset} to {txn.last_offset}"
    return f"the aborted transaction of producer {txn.producer_id} {offsets}"
