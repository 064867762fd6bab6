"""A plain model of what a log says of its producers, from which tests know what C's table must hold.

It keeps no list of open transactions, no hash table and nothing in place: each batch replaces an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from segstore.index.txn_index import AbortedTxn
from segstore.records.control import ABORT, COMMIT
from segstore.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from segstore.storage.producers.producer_state import (
    BatchMetadata,
    ProducerEntry,
    SnapshotEntry,
    format_snapshot,
    parse_snapshot,
)

UNKNOWN = ProducerEntry(-1, -1, -1, -1, ())


class PlainProducers:
    """The producers of a log up to an offset."""

    def __init__(self, map_end_offset: int = 0) -> None:
        self.map_end_offset, self.max_producer_id = map_end_offset, -1
        self.producers: dict[int, ProducerEntry] = {}

    @classmethod
    def load(cls, data: bytes, map_end_offset: int) -> PlainProducers:
        state = cls(map_end_offset)
        for it in parse_snapshot(data, "a snapshot"):
            last = BatchMetadata(it.last_sequence, it.last_offset, it.offset_delta, it.timestamp)
            state._put(
                it.producer_id,
                ProducerEntry(
                    it.producer_epoch,
                    it.coordinator_epoch,
                    it.timestamp,
                    it.current_txn_first_offset,
                    (last,) if it.last_offset >= 0 else (),
                ),
            )
        return state

    def copy(self) -> PlainProducers:
        """Return another state of the same content."""
        other = PlainProducers(self.map_end_offset)
        other.max_producer_id, other.producers = self.max_producer_id, dict(self.producers)
        return other

    def dump(self) -> bytes:
        """Return the bytes of a snapshot."""
        return format_snapshot(self._saved())

    def _saved(self) -> Iterator[SnapshotEntry]:
        for pid, e in self.producers.items():
            batch = e.batches[-1][:3] if e.batches else (-1, -1, 0)
            rest = e.last_timestamp, e.coordinator_epoch, e.current_txn_first_offset
            yield SnapshotEntry(pid, e.producer_epoch, *batch, *rest)

    @property
    def ongoing(self) -> dict[int, int]:
        """Return the first offset of each open transaction by producer id."""
        first = {pid: e.current_txn_first_offset for pid, e in self.producers.items()}
        return {pid: offset for pid, offset in first.items() if offset >= 0}

    @property
    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction."""
        return min(self.ongoing.values(), default=None)

    def update(
        self, batches: np.ndarray, read_control: Callable[[int], tuple[int, int]], now: int = -1
    ) -> list[AbortedTxn]:
        """Take in batches; returns the transactions that they abort."""
        aborted = []
        for i, row in enumerate(batches):
            batch: dict[str, Any] = dict(zip(batches.dtype.names, row.item(), strict=True))
            if batch["base_offset"] >= self.map_end_offset and batch["producer_id"] >= 0:
                aborted += self._take(batch, lambda i=i: read_control(i), now)
                self.map_end_offset = batch["last_offset"] + 1
        if len(batches):
            self.map_end_offset = max(self.map_end_offset, int(batches["last_offset"][-1]) + 1)
        return aborted

    def _take(
        self, batch: dict[str, Any], control: Callable[[], tuple[int, int]], now: int
    ) -> list[AbortedTxn]:
        pid, stamp, aborted = batch["producer_id"], batch["max_timestamp"], []
        entry = self.producers.get(pid, UNKNOWN)
        clock = entry.appended_ms if now < 0 else now
        of_epoch = entry.batches if entry.producer_epoch == batch["producer_epoch"] else ()
        entry = replace(
            entry, producer_epoch=batch["producer_epoch"], last_timestamp=stamp, appended_ms=clock
        )
        begun = entry.current_txn_first_offset
        if batch["attributes"] & CONTROL_FLAG:
            kind, coordinator_epoch = control() if batch["count"] else (-1, -1)
            if kind not in (COMMIT, ABORT):
                return []
            entry = replace(entry, coordinator_epoch=coordinator_epoch, current_txn_first_offset=-1)
            others = [offset for each, offset in self.ongoing.items() if each != pid]
            if kind == ABORT and begun >= 0:
                stable = min(others, default=batch["base_offset"] + 1)
                aborted = [AbortedTxn(pid, begun, batch["base_offset"], stable)]
        else:
            delta, sequence = batch["last_offset"] - batch["base_offset"], batch["base_sequence"]
            last = -1 if sequence < 0 else (sequence + delta) % (1 << 31)
            of_epoch = (*of_epoch, BatchMetadata(last, batch["last_offset"], delta, stamp))[-5:]
            if batch["attributes"] & TRANSACTIONAL_FLAG and begun < 0:
                entry = replace(entry, current_txn_first_offset=batch["base_offset"])
        self._put(pid, replace(entry, batches=of_epoch))
        return aborted

    def _put(self, pid: int, entry: ProducerEntry) -> None:
        self.producers[pid], self.max_producer_id = entry, max(self.max_producer_id, pid)

    def expire(self, now_ms: int, after_ms: int) -> int:
        """Forget producers that wrote nothing for so long; returns how many."""
        stays = {
            pid: e
            for pid, e in self.producers.items()
            if e.current_txn_first_offset >= 0 or now_ms - max(e.last_timestamp, e.appended_ms) < after_ms
        }
        gone, self.producers = len(self.producers) - len(stays), stays
        return gone
