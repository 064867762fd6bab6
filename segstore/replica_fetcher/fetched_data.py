"""`FetchedData`: the data of one partition in an answer to Fetch (Kafka: FetchResponse.PartitionData).
Threads: any. `FetchedData` is immutable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from segstore.leader_epochs import EpochEnd

UNCOMMITTED, COMMITTED = 0, 1
"""Kafka's isolation levels. With UNCOMMITTED a fetch reads up to the high watermark, with COMMITTED up to the
last stable offset.
"""


class FetchedData(NamedTuple):
    """The data of one partition in a fetch answer. `error` is Kafka's error code. If the isolation level is
    COMMITTED, `high_watermark` is not the high watermark, but the last stable offset. If the leader
    finds that the fetcher's log diverges from its own, `diverging` has a leader epoch and its end offset in
    the leader's log, and `records` is empty. If not, `diverging` is None. `records` is a slice of the answer,
    not a copy.
    """

    error: int
    high_watermark: int
    log_start_offset: int
    diverging: EpochEnd | None
    records: bytes | memoryview


def read_part(held: Any, isolation: int) -> FetchedData:
    """Return a partition's `FetchedData`. `held` is the partition's struct in the answer."""
    found = held.diverging_epoch
    diverging = EpochEnd(found.epoch, found.end_offset) if found.epoch >= 0 else None
    shown = held.last_stable_offset if isolation == COMMITTED else held.high_watermark
    records = b"" if held.records is None or diverging is not None else held.records
    return FetchedData(held.error_code, shown, held.log_start_offset, diverging, records)
