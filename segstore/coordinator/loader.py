"""Loading of one partition of an internal topic (Kafka: CoordinatorLoader), and the warnings about its
unusable records.

Only the last record of each key is decoded. If this record is not of the topic's format, it is skipped, and
the log is read again for the last readable record of the key. If the record has a newer version, its group or
transactional id can't be used, because a new record of the key would replace a content that is not
understood.
On disk: only reads. Threads: any; values are immutable, the functions have no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from segstore.logger import Logger
from segstore.storage.producers.aborted_transactions import outcomes
from segstore.storage.store.last_records import LastRecord, LastRecords, last_records
from segstore.storage.store.partition_log import PartitionLog

log = Logger("segstore")

_TOMBSTONE = LastRecord(None, -1)


class UnreadableRecord(NamedTuple):
    """A record that can't be decoded. `newer` is True if the record has a newer version, which makes its
    group or transactional id unusable; False if the record is not of the topic's format, and is skipped.
    """

    offset: int
    reason: str
    newer: bool = False


Replay = Callable[[bytes, LastRecord, "int | None"], "UnreadableRecord | None"]
"""Applies the last record of a key; returns an UnreadableRecord if it can't be decoded. The last argument is
the producer id if the record belongs to an open transaction, else None.
"""


def load_last(
    source: PartitionLog, replay: Replay, judge: Replay, *, transactional: bool = False
) -> list[UnreadableRecord]:
    """Replay the last record of each key up to the present end of the log. If that record is not of the
    topic's format, replay the last readable record of the key instead. Return the unreadable last records.
    Raises CorruptRecordError, StorageError.

    `judge` returns the same as `replay`, but changes nothing. `transactional`: the topic's records may be
    part of transactions.
    """
    end = source.end_offset
    ended = outcomes(source) if transactional else None
    found = _replay_all(last_records(source, end, ended=ended), replay)
    junk = {key for key, each in found.items() if not each.newer}
    # If `judge` refuses even a tombstone, the key itself can't be decoded, and no record of it is readable.
    passed = {key for key in junk if judge(key, _TOMBSTONE, None) is None}
    if passed:

        def wanted(key: bytes, record: LastRecord) -> bool:
            return key in passed and judge(key, record, None) is None

        _replay_all(last_records(source, end, wanted=wanted, ended=ended), replay)
    return list(found.values())


def _replay_all(last: LastRecords, replay: Replay) -> dict[bytes, UnreadableRecord]:
    """Replay records, and return the unreadable ones by key."""
    found = {}
    # Records outside of open transactions come last, because the log may have them after records of the same
    # key in an open transaction.
    for producer_id, records in (*last.open.items(), (None, last.settled)):
        for key, record in records.items():
            unreadable = replay(key, record, producer_id)
            if unreadable is not None:
                found[key] = unreadable
    return found


def warn(source: PartitionLog, what: str, found: Iterable[UnreadableRecord]) -> None:
    """Log one warning about all skipped records of a partition; `what` is the
    owner of the expected kind of record, for example "a transaction's".
    """
    junk = sorted(each for each in found if not each.newer)
    if junk:
        name, n = f"{source.topic}-{source.partition}", len(junk)
        how_many = "1 record is" if n == 1 else f"{n:,} records are"
        log.warning(
            "%s: %s not readable as %s and passed over; the first is at offset %d: %s",
            *(name, how_many, what, junk[0].offset, junk[0].reason),
        )
