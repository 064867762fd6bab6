"""Makes the metrics about the lag of a leader's replicas, or of a primary's standby. Files are only read.
Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from segstore.errors import SegstoreError
from segstore.storage.segment.log_view import LogView
from segstore.storage.store.stats import Family, Metric, MetricSample


class ReplicaLag(NamedTuple):
    """The lag of a replica: `records` is the number of records that it lacks. `bytes` is the stored size of
    these records (-1 if it can't be counted). `ms` is the time that has passed after the replica last had the
    whole log.
    """

    records: int
    bytes: int
    ms: int


_NAME = "segstore_replication_lag"
METRICS = (
    Metric("ReplicaLag", f"{_NAME}_records", "gauge", "records that a replica lacks", "records"),
    Metric("ReplicaLagBytes", f"{_NAME}_bytes", "gauge", "bytes that a replica lacks", "bytes"),
    Metric("ReplicaLagMs", f"{_NAME}_ms", "gauge", "ms since a replica had all records", "ms"),
)
Key = tuple[str, int]


def bytes_from(view: LogView, offset: int) -> int:
    """Return the number of a log's bytes from the batch that holds `offset` on; -1 if they can't be
    counted.
    """
    try:
        slot = view.slot(offset)
        found = view.segments[slot].locate(offset, view.end_of(slot)) if offset < view.end_offset else None
        behind = sum(map(view.end_of, range(slot + 1, len(view.segments))))
        return behind + (view.end_of(slot) - int(found.position) if found is not None else 0)
    except (SegstoreError, OSError):  # a segment is damaged, or was removed after the view was taken
        return -1


def of_partitions(lags: Mapping[Key, ReplicaLag], replica: int) -> dict[str, dict[str, dict[int, int]]]:
    """Return {"topic-partition": {Kafka's name: {replica: value}}} of one replica's lags."""
    return {
        f"{topic}-{partition}": {each.name: {replica: getattr(lag, each.field)} for each in METRICS}
        for (topic, partition), lag in lags.items()
    }


def families(rows: Iterable[tuple[Key, int, Mapping[str, Any]]]) -> list[Family]:
    """Return the metrics for Prometheus. A row is ((topic, partition), replica's id, {Kafka's name: value}).
    Negative values, which stand for unknown, are left out.
    """
    held = list(rows)
    return [
        (
            metric,
            ("topic", "partition", "replica"),
            [
                MetricSample((topic, str(partition), str(replica)), float(values[metric.name]))
                for (topic, partition), replica, values in held
                if values[metric.name] >= 0
            ],
        )
        for metric in METRICS
    ]
