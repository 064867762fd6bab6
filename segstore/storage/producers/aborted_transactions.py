"""Finds the outcomes of a partition's transactions by the control batches of the log, for `read_committed`
reads.

All control batches of a log are read once. Later only new control batches are read. The `.txnindex` files are
not used, because a lost or emptied file would mean that no transaction was aborted, and a check of the file
would need to read the same control batches. Threads: any; the outcomes are cached, under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.index.txn_index import AbortedTxn
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.records import CONTROL_FLAG, TRANSACTIONAL_FLAG, Records
from segstore.records.control import COMMIT
from segstore.storage.producers.producer_state import ProducerState
from segstore.storage.producers.replay import read_marker, take_in
from segstore.storage.segment.batch_scan import walk_past_damage
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")


# --- outcomes ----------------------------------------------------------------------------------

# A reader that reads all records of a log selects the committed records by an `Outcomes`.

COMMITTED, ABORTED, OPEN = range(3)


class Outcomes(NamedTuple):
    """The outcomes of transactions. `aborted` has a row with the fields of `AbortedTxn` for each aborted
    transaction, ordered by last offset. `ongoing` has the first offset of each open transaction, by producer
    id.
    """

    aborted: NDArray[np.int64]
    ongoing: dict[int, int]

    def of(self, records: Records) -> NDArray[np.int8]:
        """Return COMMITTED, ABORTED or OPEN for each record; COMMITTED for a record without a transaction."""
        batches = records.batches
        found = np.full(len(batches), COMMITTED, np.int8)
        if not (batches["attributes"] & TRANSACTIONAL_FLAG).any():
            return found[records.batch_indexes()]
        inside = (batches["attributes"] & TRANSACTIONAL_FLAG) != 0
        bases, producers = batches["base_offset"], batches["producer_id"]
        for producer_id, first in self.ongoing.items():
            found[inside & (producers == producer_id) & (bases >= first)] = OPEN
        near = (self.aborted[:, 2] >= bases[0]) & (self.aborted[:, 1] <= batches["last_offset"][-1])
        for producer_id, first, last, _ in self.aborted[near].tolist():
            found[inside & (producers == producer_id) & (bases >= first) & (bases <= last)] = ABORTED
        return found[records.batch_indexes()]


class Viewed(Protocol):
    """A log whose `with_view` calls a function with the log's present view, and calls the function again with
    a newer view if files were removed.
    """

    aborted_transactions: AbortedTransactions

    def with_view(self, use: Callable[[LogView], T]) -> T:
        """Return the result of `use(view)`. Raises StorageError, StoreClosedError, CorruptRecordError."""


def outcomes(log: Viewed) -> Outcomes:
    """Return the outcomes of transactions up to the log's current end. Raises StorageError,
    CorruptRecordError.
    """
    return log.with_view(log.aborted_transactions.outcomes)


# --- aborted transactions ------------------------------------------------------------

MOST_SEARCHED = 10_000
"""The largest number of offsets that a thread that must not block may search for control batches. If there
are more offsets, another thread searches them.
"""
_NO_MARKER = "the end of the batch's transaction is not in the log"


class _ReadEntries(NamedTuple):
    """The transactions that were found in the log below `end_offset`. `segment` is the last segment that was
    searched; it was searched up to the byte `position`. `aborted` and `ongoing` have the same meaning as in
    `Outcomes`.
    """

    segment: Segment | None
    position: int
    end_offset: int
    aborted: NDArray[np.int64]
    ongoing: dict[int, int]


class AbortedTransactions:
    """Finds the aborted transactions of one partition. The log is not searched for control batches before a
    reader has read transactional batches.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = Mutex()
        self._forget()

    def _forget(self) -> None:
        self._state = ProducerState()
        # The errors of the transaction markers that can't be read, by the marker's offset.
        self._damaged: dict[int, CorruptRecordError] = {}
        self._found: _ReadEntries | None = None

    def stable_offset(self, view: LogView) -> int:
        """Compute the last stable offset of a log that has no published ends, such as a broker's log."""
        ongoing = self._replay(view).ongoing
        unstable = min(ongoing.values(), default=view.end_offset)
        return min(max(unstable, view.start_offset), view.end_offset)

    def unread(self, view: LogView) -> int:
        """Return the number of offsets up to the view's end that were not searched for control batches yet.
        No lock is taken, so another thread may search these offsets at the same time.
        """
        done = -1 if self._found is None else self._found.end_offset
        return view.end_offset - (max(done, view.start_offset) if done <= view.end_offset else 0)

    def outcomes(self, view: LogView) -> Outcomes:
        """Return the outcomes of the transactions up to the view's end."""
        found = self._replay(view)
        return Outcomes(found.aborted, found.ongoing)

    def without(self, view: LogView, records: Records) -> Records:
        """Return the records that belong to no aborted transaction. The result ends before the first record
        whose transaction has an unknown outcome. Raises CorruptRecordError if there is no record before it.
        """
        bad, doubt = self.judged(view, records.batches)
        if doubt is not None:
            records = _up_to(view, records, *doubt)
        return records.take(~bad[records.batch_indexes()]) if bad.any() else records

    def judged(
        self, view: LogView, batches: NDArray[np.void]
    ) -> tuple[NDArray[np.bool_], tuple[int, str] | None]:
        """Return (mask, doubt). `mask` is True for each batch of an aborted transaction. `doubt` is (index,
        reason) of the first batch whose transaction has an unknown outcome; None if there is no such batch.
        """
        bad = np.zeros(len(batches), bool)
        open_to_doubt = (batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)) == TRANSACTIONAL_FLAG
        if not open_to_doubt.any():
            return bad, None
        aborted, ongoing = self._replay(view)[-2:]
        first, last = batches["base_offset"][0], batches["last_offset"][-1]
        # Why the outcome of a batch's transaction is not known, by the batch's index.
        reasons: dict[int, str] = {}
        near = aborted[(aborted[:, 2] >= first) & (aborted[:, 1] <= last)]
        for producer_id, begin, end, _ in near.tolist():
            hit = open_to_doubt & (batches["producer_id"] == producer_id)
            hit &= (batches["base_offset"] >= begin) & (batches["base_offset"] <= end)
            bad |= hit
            if end in self._damaged:
                reasons |= dict.fromkeys(hit.nonzero()[0].tolist(), self._damaged[end].reason)
        # All batches are below the last stable offset, so their transactions have ended. So if a transaction
        # has no transaction marker in the log, this marker was lost.
        for producer_id, begin in ongoing.items():
            hit = open_to_doubt & (batches["producer_id"] == producer_id) & (batches["base_offset"] >= begin)
            reasons |= dict.fromkeys(hit.nonzero()[0].tolist(), _NO_MARKER)
        return bad, (min(reasons), reasons[min(reasons)]) if reasons else None

    def _replay(self, view: LogView) -> _ReadEntries:
        """Search the log for new control batches up to the view's end, and return the transactions so far."""
        with self._lock:
            if self._found is not None and self._found.end_offset > view.end_offset:
                self._forget()
            done = self._found or _ReadEntries(None, 0, -1, np.empty((0, 4), np.int64), {})
            if done.end_offset < view.end_offset:
                try:
                    slot = view.slot(max(done.end_offset, view.start_offset))
                    # After a compaction or a roll the view may have another segment here, which is read from
                    # its beginning: the state skips batches that were applied before.
                    same = view.segments[slot] is done.segment
                    for at in range(slot, len(view.segments)):
                        done = self._take_in(view, at, done.position if at == slot and same else 0, done)
                except BaseException:
                    # The state may have a part of the new batches, so the next call begins with an empty
                    # state.
                    self._forget()
                    raise
                done = done._replace(end_offset=view.end_offset, ongoing=self._state.ongoing)
            self._found = done
            return done

    def _take_in(self, view: LogView, slot: int, position: int, before: _ReadEntries) -> _ReadEntries:
        segment, end = view.segments[slot], view.end_of(slot)
        aborted: list[AbortedTxn] = []
        steps = walk_past_damage(
            self._files, segment.handle, end, check_crcs=False, sparse=True, start=position
        )
        for step in steps:
            batches = step.batches[step.batches["last_offset"] < view.next_base(slot)]
            aborted += take_in(self._state, segment, batches, self._damaged)
            if len(batches):
                position = int(batches["position"][-1]) + int(batches["size"][-1])
            if len(batches) < len(step.batches):
                break
        rows = np.array(aborted, np.int64).reshape(-1, 4)
        so_far = np.concatenate((before.aborted, rows))
        return before._replace(segment=segment, position=position, aborted=so_far)


def _up_to(view: LogView, records: Records, batch: int, reason: str) -> Records:
    """Return the records before the batch with the index `batch`, whose transaction has an unknown outcome.
    Raises CorruptRecordError with `reason` if there are none.
    """
    n = int(np.searchsorted(records.batch_indexes(), batch))
    if n:
        return records[:n]
    raise doubtful(view, records.batches[batch], reason)


def doubtful(view: LogView, header: np.void, reason: str) -> CorruptRecordError:
    """Return the error to raise for a batch whose transaction has an unknown outcome."""
    path = view.segments[view.slot(int(header["base_offset"]))].path
    return CorruptRecordError(
        path, int(header["position"]), int(header["base_offset"]), reason, int(header["last_offset"]) + 1
    )


# --- commits -----------------------------------------------------------------------------------

# These functions find committed transactions by a partition's transaction markers. After a power cut the
# markers may be the only record of the coordinator's decision to commit.

log = Logger("segstore")


def committed(source: Viewed, producer_ids: Collection[int]) -> set[tuple[int, int]]:
    """Return (producer id, epoch) of each committed transaction of these producers whose transaction marker
    has the epoch after the transaction's epoch (KIP-890). A transaction whose marker has the transaction's
    own epoch is left out, because many transactions may have this epoch. Raises StorageError.
    """
    return source.with_view(lambda view: _committed(view, producer_ids))


def _committed(view: LogView, producer_ids: Collection[int]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    last: dict[int, int] = {}  # the epoch of each producer's last data batch, by producer id
    wanted = np.array(sorted(producer_ids), np.int64)
    for slot in range(view.slot(view.start_offset), len(view.segments)):
        segment, end = view.segments[slot], view.end_of(slot)
        for step in walk_past_damage(segment.pool.files, segment.handle, end, check_crcs=False, sparse=True):
            theirs = step.batches[np.isin(step.batches["producer_id"], wanted)]
            for at, batch in enumerate(theirs):
                producer_id, epoch = int(batch["producer_id"]), int(batch["producer_epoch"])
                if not batch["attributes"] & CONTROL_FLAG:
                    last[producer_id] = epoch
                elif last.get(producer_id, -1) < epoch and _commits(segment, theirs[at : at + 1]):
                    found.add((producer_id, epoch - 1))
    return found


def _commits(segment: Segment, marker: NDArray[np.void]) -> bool:
    """Return whether a transaction marker commits a transaction; False if compaction has removed the marker's
    record, or if the marker is damaged.
    """
    try:
        return bool(marker["count"][0]) and read_marker(segment, marker)[0] == COMMIT
    except CorruptRecordError as error:
        log.warning("a marker can't be read: %s", error)
        return False
