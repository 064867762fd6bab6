"""Loads one partition of an internal topic into a coordinator's memory (Kafka: CoordinatorLoader), and warns
of records that can't be decoded.

Only the last record of each key is decoded. If this record is not in the topic's format, it is skipped, and
the log is read again to find the last readable record of the key. If the last record has a newer version than
this segstore can read, its group or transactional id can't be used, because the next record of the key would
replace content that this segstore does not understand.
On disk: only reads. Threads: any; values are immutable, the functions have no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from segstore.logger import Logger
from segstore.storage.producers.aborted_transactions import outcomes
from segstore.storage.store.last_records import LastRecord, LastRecords, last_records
from segstore.storage.store.partition_log import PartitionLog

log = Logger("segstore")
T = TypeVar("T")

_TOMBSTONE = LastRecord(None, -1)


class UnreadableRecord(NamedTuple):
    """A record that can't be decoded. If `newer` is True, it has a newer version than this segstore can read,
    and its group or transactional id can't be used. If `newer` is False, it is not in the topic's format, and
    is skipped.
    """

    offset: int
    reason: str
    newer: bool = False


Replay = Callable[[bytes, LastRecord, "int | None"], "UnreadableRecord | None"]
"""A function that applies the last record of a key to a coordinator's memory. It returns an UnreadableRecord
if the record can't be decoded, else None. Its last argument is the producer id if the record belongs to an
open transaction, else None.
"""


def committed(source: PartitionLog, check: Callable[[], object], load: Callable[[], T]) -> T:
    """Call `check`, which is `source.await_committed` or `source.check_committed`, then `load`, which reads
    the log, and return the result of `load`. If another leader is elected meanwhile, do both again: the
    readers of a new leader may not see all committed records yet. Raises the errors of both calls.
    """
    while True:
        led = source.source, source.leader_epoch
        check()
        loaded = load()
        if led == (source.source, source.leader_epoch):
            return loaded


def committed_now(source: PartitionLog, load: Callable[[], T]) -> tuple[bool, T]:
    """Call `load` as `committed` does, after `source.check_committed`. Return (whether readers saw the whole
    log before the load, the result of `load`). Raises OffsetNotAvailableError, and the errors of `load`.
    """

    def read() -> tuple[bool, T]:
        # `shows_all` is read before the load: if it becomes True later, the load may have missed records.
        return source.shows_all, load()

    return committed(source, source.check_committed, read)


def load_last(
    source: PartitionLog, replay: Replay, judge: Replay, *, transactional: bool = False
) -> list[UnreadableRecord]:
    """Call `replay` with the last record of each key, up to the present end of the log. If that record is not
    in the topic's format, call `replay` with the last readable record of the key too. Return the last records
    that can't be decoded. Raises CorruptRecordError, StorageError.

    `judge` returns what `replay` would return, but changes nothing. `transactional` is True if the topic's
    records may be part of transactions.
    """
    end = source.end_offset
    ended = outcomes(source) if transactional else None
    found = _replay_all(last_records(source, end, ended=ended), replay)
    junk = {key for key, each in found.items() if not each.newer}
    # If `judge` can't decode even a tombstone of a key, the key itself is unreadable, and so are its records.
    passed = {key for key in junk if judge(key, _TOMBSTONE, None) is None}
    if passed:

        def wanted(key: bytes, record: LastRecord) -> bool:
            return key in passed and judge(key, record, None) is None

        _replay_all(last_records(source, end, wanted=wanted, ended=ended), replay)
    return list(found.values())


def _replay_all(last: LastRecords, replay: Replay) -> dict[bytes, UnreadableRecord]:
    """Call `replay` with each of the records. Return the records that can't be decoded, by key."""
    found = {}
    # `last.settled`, the records outside of open transactions, comes last, because it may have a later record
    # of a key than an open transaction has.
    for producer_id, records in (*last.open.items(), (None, last.settled)):
        for key, record in records.items():
            unreadable = replay(key, record, producer_id)
            if unreadable is not None:
                found[key] = unreadable
    return found


def warn(source: PartitionLog, what: str, found: Iterable[UnreadableRecord]) -> None:
    """Log one warning about all skipped records of a partition. `what` says what the records should be, for
    example "a transaction's".
    """
    junk = sorted(each for each in found if not each.newer)
    if junk:
        name, n = f"{source.topic}-{source.partition}", len(junk)
        how_many = "1 record is" if n == 1 else f"{n:,} records are"
        log.warning(
            "%s: %s not readable as %s and passed over; the first is at offset %d: %s",
            *(name, how_many, what, junk[0].offset, junk[0].reason),
        )
