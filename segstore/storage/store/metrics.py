"""A store's metrics, as a dict and in Prometheus' text. Nothing on disk of its own. Threads: any.

Names are Kafka's (kafka.log:type=Log, type=LogCleanerManager), in Prometheus' form where that has one:
bytes, offsets and ms, `_total` for what only grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.errors import needing
from segstore.storage.store.stats import PartitionStats, store_stats

if TYPE_CHECKING:
    from segstore.storage.store.store import Store


class Metric(NamedTuple):
    """One measure of a partition: Kafka's name, Prometheus' name and kind, meaning, and where it is found."""

    name: str
    prometheus: str
    kind: str
    doc: str
    field: str


METRICS = (
    Metric("Size", "segstore_log_size_bytes", "gauge", "bytes of a partition's logs", "bytes"),
    Metric("IndexSize", "segstore_log_index_size_bytes", "gauge", "bytes of its indexes", "index_bytes"),
    Metric("NumLogSegments", "segstore_log_segments", "gauge", "segments", "segments"),
    Metric("LogStartOffset", "segstore_log_start_offset", "gauge", "first offset there is", "start_offset"),
    Metric("LogEndOffset", "segstore_log_end_offset", "gauge", "offset of the next record", "end_offset"),
    Metric(
        "dirty-ratio", "segstore_log_dirty_ratio", "gauge", "part that was not compacted yet", "dirty_ratio"
    ),
    Metric(
        "deleted-bytes-total",
        "segstore_retention_deleted_bytes_total",
        "counter",
        "bytes that retention has let go",
        "deleted_bytes",
    ),
    Metric(
        "compacted-bytes-total",
        "segstore_cleaner_compacted_bytes_total",
        "counter",
        "bytes that compaction has freed",
        "compacted_bytes",
    ),
    Metric("last-sweep-ms", "segstore_last_sweep_ms", "gauge", "when it was swept, by the clock", "swept_ms"),
    Metric(
        "error", "segstore_partition_failed", "gauge", "1 where it can't be read or swept, else 0", "error"
    ),
)


def store_metrics(store: Store) -> dict[str, dict[str, Any]]:
    """{"topic-partition": {name: value}}; the error as its text, None where there is none."""
    return {
        f"{stats.topic}-{stats.partition}": {m.name: getattr(stats, m.field) for m in METRICS}
        for stats in store_stats(store, records=False)
    }


def prometheus_text(store: Store) -> str:
    """All metrics in Prometheus' text format, labelled by topic and partition.

    MissingPackageError without the prometheus_client package (`segstore[metrics]`).
    """
    with needing("prometheus_client", "metrics", "metrics_text"):
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    rows = list(store_stats(store, records=False))

    class Families(Collector):
        def collect(self) -> Iterator[Any]:
            for metric in METRICS:
                # Not Counter: it would tell when it was made, now, as if it had begun at 0 then.
                kind: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.prometheus, metric.doc, labels=("topic", "partition"))
                for stats in rows:
                    value = _number(stats, metric)
                    if value is not None:
                        family.add_metric((stats.topic, str(stats.partition)), value)
                yield family

    registry = CollectorRegistry()
    registry.register(Families())
    text: str = generate_latest(registry).decode()
    return text


def _number(stats: PartitionStats, metric: Metric) -> float | None:
    value = getattr(stats, metric.field)
    if metric.field == "error":
        return float(value is not None)
    return None if value is None else float(value)
