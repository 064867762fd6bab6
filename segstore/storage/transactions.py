"""Which transactions of a partition were aborted: what `read_committed` leaves out.

On disk: reads `.txnindex` files, or, where one is missing, the control batches of the logs.
Threads: any; what was found of sealed segments is kept, under a lock.
"""

from __future__ import annotations

import threading

import numpy as np

from segstore import names
from segstore.files import Files
from segstore.index import txn_index
from segstore.index.txn_index import AbortedTxn
from segstore.records import CONTROL_FLAG, TRANSACTIONAL_FLAG, Records
from segstore.storage.producer_state import ProducerState
from segstore.storage.replay import replay
from segstore.storage.segment import Segment
from segstore.storage.view import LogView


class AbortedTransactions:
    """Looks only where batches of transactions are read."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._indexed: dict[int, tuple[int, list[AbortedTxn]]] = {}
        self._replayed: tuple[LogView | None, ProducerState, list[AbortedTxn]] = (None, ProducerState(), [])

    def stable_offset(self, view: LogView) -> int:
        """The last stable offset of a log whose writer publishes none."""
        unstable = self._replay(view)[0].first_unstable_offset
        return view.end_offset if unstable is None else min(unstable, view.end_offset)

    def without(self, view: LogView, records: Records) -> Records:
        """The records that do not belong to an aborted transaction."""
        batches = records.batches
        open_to_doubt = (batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)) == TRANSACTIONAL_FLAG
        if not open_to_doubt.any():
            return records
        bad = np.zeros(len(batches), bool)
        for txn in self._of(view, int(batches["base_offset"][0])):
            bad |= (
                open_to_doubt
                & (batches["producer_id"] == txn.producer_id)
                & (batches["base_offset"] >= txn.first_offset)
                & (batches["base_offset"] <= txn.last_offset)
            )
        return records.take(~bad[records.batch_indexes()]) if bad.any() else records

    def _of(self, view: LogView, offset: int) -> list[AbortedTxn]:
        found: list[AbortedTxn] = []
        for segment in view.segments[view.slot(offset) :]:
            indexed = self._from_index(segment)
            if indexed is None:
                return self._replay(view)[1]
            found += indexed
        return found

    def _from_index(self, segment: Segment) -> list[AbortedTxn] | None:
        """What the segment's `.txnindex` says; None where there is none, or it makes no sense."""
        path = segment.file(names.TXN_INDEX)
        try:
            size = self._files.size(path)
            known = self._indexed.get(segment.base_offset)
            if known is None or known[0] != size:
                data = self._files.read_file(path)
                found = txn_index.parse(data, segment.base_offset)
                if len(found) * txn_index.ENTRY.itemsize != len(data):
                    return None
                known = size, [AbortedTxn(*fields[1:]) for fields in found.tolist()]
                self._indexed[segment.base_offset] = known
        except FileNotFoundError:
            return None
        return known[1]

    def _replay(self, view: LogView) -> tuple[ProducerState, list[AbortedTxn]]:
        """The state at the view's end and all aborted transactions, from the control batches."""
        with self._lock:
            before, state, aborted = self._replayed
            if before is not None and (
                before.start_offset != view.start_offset or before.end_offset > view.end_offset
            ):
                before, state, aborted = None, ProducerState(), []
            done = before.end_offset if before is not None else view.start_offset
            if before is None or done < view.end_offset:
                for slot in range(view.slot(done), len(view.segments)):
                    aborted = aborted + replay(state, view.segments[slot], view.end_of(slot))
                self._replayed = view, state, aborted
            return state, aborted
