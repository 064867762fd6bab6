"""The rules by which compaction keeps or drops batches whatever their keys (Kafka: Cleaner.cleanInto).

The rules for keys are in `_native/compact.c` (Kafka: Cleaner.shouldRetainRecord): `seg_map_keep` checks
whether a record's offset is the latest of its key, and `judge` checks whether a tombstone may be removed.

Segments are only read. Threads: the cleaning thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from segstore._native import lib
from segstore.arrays import np
from segstore.config import TopicConfig
from segstore.index.txn_index import AbortedTxn
from segstore.records import CODECS, CONTROL_FLAG, TRANSACTIONAL_FLAG
from segstore.records.control import ABORT, COMMIT
from segstore.records.header import DELETE_HORIZON_FLAG
from segstore.storage.producers.replay import read_marker, replay
from segstore.storage.producers.state_manager import state_at
from segstore.storage.segment.log_view import LogView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.segment.segment import Segment


# --- transactions ------------------------------------------------------------------------------

# The rules for batches of transactions (Kafka: CleanedTransactionMetadata): records of an aborted transaction
# are dropped. A marker stays while a batch of its transaction is in the log, and for delete.retention.ms
# after that. The markers in the log show which transactions were aborted. They are read when the first batch
# of a transaction is cleaned.

_OF_TRANSACTION = TRANSACTIONAL_FLAG | CONTROL_FLAG


class Aborted:
    """The aborted transactions of a log, from the markers in `view()`. `view` is called at most once, and its
    result is not kept, because a view keeps the files of replaced segments open.
    """

    def __init__(self, view: Callable[[], LogView]) -> None:
        self._view = view

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Return one row for each aborted transaction, with the fields of AbortedTxn, ordered by last offset.
        Raises CorruptRecordError if a marker is damaged.
        """
        view = self._view()
        first = view.segments[0]
        # A transaction may have begun in a deleted segment. Its first offset is then in the producer snapshot
        # at the first segment.
        state, found = state_at(first.pool.files, first.directory, first.base_offset), []
        for slot, segment in enumerate(view.segments):
            found += replay(state, segment, view.end_of(slot))
        return np.array(found, np.int64).reshape(-1, 4)

    def without_keys(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return a mask of the batches whose keys compaction ignores: markers, and batches of aborted
        transactions.
        """
        kinds = batches["attributes"] & _OF_TRANSACTION
        mask: NDArray[np.bool_] = kinds & CONTROL_FLAG != 0
        for i in (kinds == TRANSACTIONAL_FLAG).nonzero()[0].tolist():
            mask[i] = self.of(batches[i]) is not None
        return mask

    def of(self, batch: np.void) -> AbortedTxn | None:
        """Return the aborted transaction to which a batch or marker belongs, or None if there is none."""
        rows, base = self.rows, batch["base_offset"]
        hit = (rows[:, 0] == batch["producer_id"]) & (rows[:, 1] <= base) & (rows[:, 2] >= base)
        return AbortedTxn(*rows[int(hit.argmax())].tolist()) if hit.any() else None


class Decided:
    """Decides which batches and markers of transactions stay. `policies` must be called with all batches of
    the cleaned part of the log, in order.
    """

    def __init__(self, aborted: Aborted, now_ms: int) -> None:
        self._aborted, self._now = aborted, now_ms
        # The ids of the producers that have an open transaction at the present batch. Transactions without
        # an earlier batch in the cleaned part of the log are left out.
        self._met: set[int] = set()
        self.kept: list[AbortedTxn] = []
        """The entries of a new .txnindex: the aborted transactions that still have batches, in order of their
        markers.
        """

    def policies(self, segment: Segment, batches: NDArray[np.void]) -> NDArray[np.uint8]:
        """Return the flags SEG_NO_RECORDS, SEG_ALL_RECORDS and SEG_SPENT_MARKER of each batch, or 0 if no
        flag applies.
        """
        policies: NDArray[np.uint8] = np.zeros(len(batches), np.uint8)
        kinds = batches["attributes"] & _OF_TRANSACTION
        for i in kinds.nonzero()[0].tolist():
            batch = batches[i : i + 1]
            if kinds[i] & CONTROL_FLAG:
                policies[i] = self._of_marker(segment, batch)
            else:
                self._met.add(int(batch["producer_id"][0]))
                if self._aborted.of(batch[0]) is not None:
                    policies[i] = lib.SEG_NO_RECORDS
        return policies

    def _of_marker(self, segment: Segment, batch: NDArray[np.void]) -> int:
        if not self._is_spent(segment, batch):
            return int(lib.SEG_ALL_RECORDS)
        horizon = batch["attributes"][0] & DELETE_HORIZON_FLAG and batch["base_timestamp"][0] <= self._now
        return int(lib.SEG_NO_RECORDS if horizon else lib.SEG_ALL_RECORDS | lib.SEG_SPENT_MARKER)

    def _is_spent(self, segment: Segment, batch: NDArray[np.void]) -> bool:
        """Return whether the log has no more batches of the marker's transaction. Return True also if an
        earlier cleaning has removed the marker's record.
        """
        if not batch["count"][0]:
            return True
        kind, _ = read_marker(segment, batch)
        if kind not in (ABORT, COMMIT):
            return False
        producer_id = int(batch["producer_id"][0])
        met = producer_id in self._met
        self._met.discard(producer_id)
        txn = self._aborted.of(batch[0]) if met and kind == ABORT else None
        if txn is not None:
            self.kept.append(txn)
        return not met


# --- retain ------------------------------------------------------------

LastRecords = Mapping[int, tuple[int, int]]
"""For each producer id: the last offset of the producer's last data batch (-1 if there is none), and the
producer's epoch.
"""


class Policy:
    """The flags and codecs of the rewritten batches. `until` is the end offset of the cleaned part of the
    log. The last batch of this part stays, even without records, so that the part still ends at `until`.
    """

    def __init__(self, config: TopicConfig, decided: Decided, last_records: LastRecords, until: int) -> None:
        self._decided, self._last_records, self._until = decided, last_records, until
        self._last_offsets = np.array([last for last, _ in last_records.values()], np.int64)
        self.retained: NDArray[np.int64] = np.unique(np.append(self._last_offsets, until - 1))
        """For batches that belong to no transaction: the last offsets, ascending, of the batches that stay
        even without records.
        """
        self._codec = None if config.compression_type == "producer" else _code(config.compression_type)
        self.level = levels(config)

    @property
    def recodes(self) -> bool:
        """Return whether batches get the topic's codec. A batch may grow when its codec changes."""
        return self._codec is not None

    @property
    def compresses(self) -> bool:
        """Return whether the topic's codec compresses, so that uncompressed batches become compressed."""
        return bool(self._codec)

    def policies(self, segment: Segment, batches: NDArray[np.void]) -> NDArray[np.uint8]:
        """Return the flags of seg_compact for each batch."""
        policies = self._decided.policies(segment, batches)
        stays = self._last_of_producer(batches) | (batches["last_offset"] + 1 == self._until)
        policies[stays] |= lib.SEG_RETAIN_EMPTY
        return policies

    def codecs(self, batches: NDArray[np.void], before: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the new codec of each batch; `before` are the present codecs."""
        codecs = before.copy()
        if self._codec is not None:
            codecs[(batches["attributes"] & CONTROL_FLAG == 0) & (batches["count"] > 0)] = self._codec
        return codecs

    def _last_of_producer(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return a mask of the batches that stay because of an active producer: its last data batch, which
        has its last sequence number, or, if the producer has no data batch, the markers with its epoch.
        """
        found: NDArray[np.bool_] = np.zeros(len(batches), bool)
        if not self._last_records:
            return found
        ids = batches["producer_id"]
        likely = np.isin(batches["last_offset"], self._last_offsets)
        likely |= batches["attributes"] & CONTROL_FLAG != 0
        for i in (likely & (ids >= 0)).nonzero()[0].tolist():
            last, epoch = self._last_records.get(int(ids[i]), (-2, -1))
            if last >= 0:
                found[i] = batches["last_offset"][i] == last
            elif last == -1 and batches["attributes"][i] & CONTROL_FLAG:
                found[i] = batches["producer_epoch"][i] == epoch
        return found


def levels(config: TopicConfig) -> dict[int, int | None]:
    """Return {number of a codec: its compression level, or None if it has no levels}."""
    return {code: getattr(config, f"compression_{name}_level", None) for code, name in enumerate(CODECS)}


def _code(compression_type: str) -> int:
    return 0 if compression_type == "uncompressed" else CODECS.index(compression_type)
