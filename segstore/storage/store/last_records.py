"""`LastRecords` finds the last record of each key in a compacted log, below an end offset.

Files are only read. Threads: one for each `LastRecords`; any thread may call the functions. For speed,
records are decoded by column; keys and values stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from segstore.records import Records
from segstore.storage.producers.aborted_transactions import COMMITTED, OPEN, Outcomes
from segstore.storage.scans.scan import reads
from segstore.storage.store.partition_log import PartitionLog


class LastRecord(NamedTuple):
    """The value of a record (None if the record is a tombstone), and the record's offset, `at`."""

    value: bytes | None
    at: int


_make_record: Any = partial(tuple.__new__, LastRecord)

Wanted = Callable[[bytes, LastRecord], bool]


def last_records(
    log: PartitionLog,
    end: int,
    *,
    wanted: Wanted | None = None,
    ended: Outcomes | None = None,
    valued: Callable[[bytes], bool] | None = None,
) -> LastRecords:
    """Return the last record of each key below the offset `end`. Raises the errors of `scan.reads`.

    Records for which `wanted(key, record)` is False are ignored. `ended` has the outcomes of the log's
    transactions; None if the log has no transactions. If `valued(key)` is False, b"" replaces the value; the
    value None of a tombstone stays.
    """
    last = LastRecords(wanted, valued)
    for records in reads(log, log.start_offset, end):
        last.take(records, ended)
    return last


class LastRecords:
    """Collects the last record of each key for which `wanted(key, record)` is True. `settled` has plain and
    committed records by key. `open` has the records of open transactions, by producer id and key. Records of
    aborted transactions are left out. A record without a key has the key b"".
    """

    def __init__(self, wanted: Wanted | None = None, valued: Callable[[bytes], bool] | None = None) -> None:
        self.settled: dict[bytes, LastRecord] = {}
        self.open: dict[int, dict[bytes, LastRecord]] = {}
        self._wanted, self._valued = wanted, valued

    def take(self, records: Records, ended: Outcomes | None = None) -> None:
        """Add the next records of the log. `ended` has the outcomes of the log's transactions; None if the
        log has no transactions.
        """
        if ended is None:
            self.settled.update(self._by_key(records))
            return
        outcomes = ended.of(records)
        self.settled.update(self._by_key(records.take(outcomes == COMMITTED) if outcomes.any() else records))
        if (outcomes == OPEN).any():
            self._take_open(records.take(outcomes == OPEN))

    def _take_open(self, records: Records) -> None:
        producers = dict(
            zip(
                records.offsets.tolist(),
                records.batches["producer_id"][records.batch_indexes()].tolist(),
                strict=True,
            )
        )
        for key, record in self._by_key(records):
            self.open.setdefault(producers[record.at], {})[key] = record

    def _by_key(self, records: Records) -> Iterable[tuple[bytes, LastRecord]]:
        keys = [key or b"" for key in records.keys.tolist()]
        records_of = zip(self._values(keys, records), records.offsets.tolist(), strict=True)
        pairs = zip(keys, map(_make_record, records_of), strict=True)
        wanted = self._wanted
        return pairs if wanted is None else (pair for pair in pairs if wanted(*pair))

    def _values(self, keys: list[bytes], records: Records) -> list[bytes | None]:
        values, valued = records.values, self._valued
        if valued is None:
            return values.tolist()
        absent = (values.lengths < 0).tolist()
        return [None if absent[i] else values[i] if valued(key) else b"" for i, key in enumerate(keys)]
