"""`FetchedData`: one partition's part of an answer to Fetch (Kafka: FetchResponse.PartitionData). Threads:
any; immutable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from segstore.leader_epochs import EpochEnd

UNCOMMITTED, COMMITTED = 0, 1
"""Kafka's isolation levels: fetches go up to the high watermark, or up to the last stable offset."""


class FetchedData(NamedTuple):
    """`error` is a code of Kafka's. `high_watermark` is how far the leader shows its log at the isolation
    level of the fetch. `diverging` says where this log leaves the leader's; there are no records then.
    `records` are a part of the answer as it came, which is not copied.
    """

    error: int
    high_watermark: int
    log_start_offset: int
    diverging: EpochEnd | None
    records: bytes | memoryview


def read_part(held: Any, isolation: int) -> FetchedData:
    """Return what an answer says of a partition."""
    found = held.diverging_epoch
    diverging = EpochEnd(found.epoch, found.end_offset) if found.epoch >= 0 else None
    shown = held.last_stable_offset if isolation == COMMITTED else held.high_watermark
    records = b"" if held.records is None or diverging is not None else held.records
    return FetchedData(held.error_code, shown, held.log_start_offset, diverging, records)
