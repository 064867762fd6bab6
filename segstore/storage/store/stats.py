"""Makes statistics and metrics of each partition, for an operator.

Reads only batch headers, and the compressed messages of magic 0 and 1. Another process may write the store at
the same time. Threads: any. Each metric has two names: Kafka's name (kafka.log:type=Log,
type=LogCleanerManager), and a name for Prometheus. The name for Prometheus ends in the unit (bytes, offset,
ms), or, for a counter, in `_total`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names
from segstore.arrays import np
from segstore.config import TopicConfig
from segstore.errors import CorruptRecordError, Needing, SegstoreError
from segstore.files import Files
from segstore.records import CODEC_MASK, CONTROL_FLAG, MAGIC, bring_up
from segstore.storage.context import StoreContext
from segstore.storage.full_disk import FullNote, read_note
from segstore.storage.meta.offset_checkpoints import read_offsets
from segstore.storage.meta.sweep_states import SweepState
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.segment.batch_scan import ScanStep, walk_past_damage
from segstore.storage.segment.log_view import LogView

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from prometheus_client import CollectorRegistry

    from segstore.storage.store.partition_log import PartitionLog


class StatisticsSource(NamedTuple):
    """The calls of a store that are needed for the store's statistics. `topics()` returns the topics by name.
    `partition(topic, n)` returns a log. `states()` returns the states of sweeps, and `cleaned()` the
    cleaner's offsets, both by (topic, partition).
    """

    context: StoreContext
    topics: Callable[[], Mapping[str, TopicInfo]]
    partition: Callable[[str, int], PartitionLog]
    states: Callable[[], Mapping[tuple[str, int], SweepState]]
    cleaned: Callable[[], Mapping[tuple[str, int], int]]


class PartitionStats(NamedTuple):
    """The statistics of a partition at one moment. `bytes` is the size of the segments. `index_bytes` is the
    size of their indexes. `records` does not count control records. `dirty_ratio` is the share of the bytes
    of all segments except the active segment that was not compacted yet; None if the topic is not compacted
    (Kafka: LogToClean.cleanableRatio). `swept_ms` is the time of the last sweep in ms since the epoch; -1 if
    there was no sweep. `deleted_bytes` and `compacted_bytes` are the bytes that retention and compaction have
    freed. `error` is the error of reading the partition; if there is none, a text about the full disk; if the
    disk is not full, the error of the last sweep, or None.
    """

    topic: str
    partition: int
    segments: int = 0
    bytes: int = 0
    index_bytes: int = 0
    records: int = 0
    start_offset: int = 0
    end_offset: int = 0
    dirty_ratio: float | None = None
    swept_ms: int = -1
    deleted_bytes: int = 0
    compacted_bytes: int = 0
    error: str | None = None


def store_stats(store: StatisticsSource, *, records: bool = True) -> Iterator[PartitionStats]:
    """Yield the statistics of each partition of each topic, in the order of `store.topics()`. If `records`,
    all batch headers are read to count the records. If not, end offset minus start offset is taken as the
    number of records.
    """
    states, cleaned, full = store.states(), store.cleaned(), full_text(store.context)
    for info in store.topics().values():
        for number in info.partition_ids:
            key = info.name, number
            state = states.get(key, SweepState())
            state = state if full is None else state._replace(error=full)
            yield _one(store, info, number, state, cleaned.get(key, 0), records)


def _full(context: StoreContext) -> FullNote | None:
    """Return the note about a full disk, in the writer's process from memory, in other processes from
    `.segstore/full`; None if the disk is not full.
    """
    return context.full.note if context.writable else read_note(context.files, context.root)


def full_text(context: StoreContext) -> str | None:
    """Return a text about the full disk, for an operator; None if the disk is not full."""
    note = _full(context)
    if note is None:
        return None
    since = datetime.fromtimestamp(note.since_ms // 1000, timezone.utc).isoformat()
    return f"{note.error}: appends fail since {since}"


def cleaned_offsets(files: Files, root: str) -> dict[tuple[str, int], int]:
    """Return the offsets in cleaner-offset-checkpoint; an empty dict if this file can't be read."""
    try:
        return read_offsets(files, os.path.join(root, names.CLEANER_OFFSETS))
    except (SegstoreError, OSError):
        return {}  # `segstore check` reports the error of the file


def _one(
    store: StatisticsSource, info: TopicInfo, number: int, state: SweepState, cleaned: int, records: bool
) -> PartitionStats:
    known = PartitionStats(
        info.name,
        number,
        swept_ms=state.swept_ms,
        deleted_bytes=state.deleted_bytes,
        compacted_bytes=state.compacted_bytes,
        error=state.error,
    )
    try:
        log: PartitionLog = store.partition(info.name, number)
        found: PartitionStats = log.with_view(
            lambda view: _of_view(known, view, store.context.files, info.settings, cleaned, records)
        )
    except SegstoreError as error:
        return known._replace(error=str(error))
    return found


def _of_view(
    known: PartitionStats, view: LogView, files: Files, config: TopicConfig, cleaned: int, records: bool
) -> PartitionStats:
    sizes = [view.end_of(slot) for slot in range(len(view.segments))]
    return known._replace(
        segments=len(sizes),
        bytes=sum(sizes),
        index_bytes=_index_bytes(view, files),
        records=_count(view, files) if records else view.end_offset - view.start_offset,
        start_offset=view.start_offset,
        end_offset=view.end_offset,
        dirty_ratio=dirty_ratio(view, cleaned) if "compact" in config.cleanup_policy else None,
    )


def dirty_ratio(view: LogView, cleaned: int) -> float:
    """Return the share of bytes at or above the offset `cleaned` in all segments except the active segment;
    0 if there is only the active segment.
    """
    sealed = range(len(view.segments) - 1)
    total = sum(map(view.end_of, sealed))
    # If `cleaned` is outside of this log, the cleaner cleans the whole log, so all bytes count.
    first = view.slot(cleaned) if view.start_offset <= cleaned <= view.end_offset else 0
    return sum(view.end_of(slot) for slot in sealed if slot >= first) / total if total else 0.0


def _index_bytes(view: LogView, files: Files) -> int:
    size = 0
    for segment in view.segments:
        for suffix in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX):
            # Some segments have no transaction index, and retention may delete a segment during this loop.
            with suppress(FileNotFoundError):
                size += files.size(segment.file(suffix))
    return size


def _count(view: LogView, files: Files) -> int:
    """Return the number of records that a reader with read_uncommitted gets. Damaged batches are
    not counted.
    """
    count, start = 0, view.start_offset
    for slot, segment in enumerate(view.segments):
        end, sparse = view.end_of(slot), not segment.may_be_old
        for step in walk_past_damage(files, segment.handle, end, check_crcs=False, sparse=sparse):
            batches = step.batches if sparse else _with_inner_counts(step, segment.path)
            seen = (batches["attributes"] & CONTROL_FLAG) == 0
            seen &= (batches["last_offset"] >= start) & (batches["last_offset"] < view.end_offset)
            # The first batch may begin below the log start offset, so only its records from the log start
            # offset on are counted.
            room = batches["last_offset"][seen] - start + 1
            count += int(np.minimum(batches["count"][seen], room).sum(dtype=np.int64))
    return count


def _with_inner_counts(step: ScanStep, path: str) -> NDArray[np.void]:
    """Return the batch headers of a step of a scan. The count of a compressed message of magic 0 or 1 is the
    number of its inner messages.
    """
    batches = step.batches.copy()
    wrappers = (batches["magic"] != MAGIC) & (batches["attributes"] & CODEC_MASK != 0)
    for i in np.flatnonzero(wrappers).tolist():
        try:
            _, found = bring_up(step.data, step.batches[i : i + 1], path, step.position)
            batches["count"][i] = found["count"].sum()
        except CorruptRecordError:
            batches["count"][i] = 0
    return batches


# --- metrics -----------------------------------------------------------------------------------


class Metric(NamedTuple):
    """One metric: Kafka's `name`, the name and `kind` for Prometheus, a description (`doc`), and the `field`
    of PartitionStats with the value.
    """

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
        "error",
        "segstore_partition_failed",
        "gauge",
        "1 where it can't be read, swept or appended to",
        "error",
    ),
)


class MetricSample(NamedTuple):
    """One value of a metric, and the values of the labels. A sample of a histogram has the `suffix`
    "_bucket", "_count" or "_sum". With "_bucket", the last label is "le".
    """

    labels: tuple[str, ...]
    value: float
    suffix: str = ""


Family = tuple[Metric, tuple[str, ...], list[MetricSample]]
"""A metric, the names of its labels, and its values."""


_FULL = Metric("", "segstore_disk_full", "gauge", "1 while appends find no room, else 0", "")
_FREE = Metric("", "segstore_disk_free_bytes", "gauge", "bytes that this user may still write", "")


def _disk_families(context: StoreContext) -> list[Family]:
    """Return the metrics of the disk that holds the store."""
    found = [(_FULL, float(_full(context) is not None))]
    with suppress(OSError):
        found.append((_FREE, float(context.files.space(context.root).usable)))
    return [(metric, (), [MetricSample((), value)]) for metric, value in found]


def store_metrics(store: StatisticsSource) -> dict[str, dict[str, Any]]:
    """Return {"topic-partition": {Kafka's name: value}}; the value of "error" is a text, or None."""
    return {
        f"{stats.topic}-{stats.partition}": {m.name: getattr(stats, m.field) for m in METRICS}
        for stats in store_stats(store, records=False)
    }


def by_labels(families: Iterable[Family]) -> dict[str, dict[str, float]]:
    """Return {"label=value,...": {Kafka's name: value}}. Used for metrics whose labels are not topic and
    partition.
    """
    found: dict[str, dict[str, float]] = {}
    for metric, labels, samples in families:
        for sample in samples:
            key = ",".join(f"{label}={value}" for label, value in zip(labels, sample.labels, strict=True))
            found.setdefault(key, {})[metric.name] = sample.value
    return found


def store_families(store: StatisticsSource) -> list[Family]:
    """Return the metrics of all partitions, labelled by topic and partition, and the metrics of the disk."""
    rows = list(store_stats(store, records=False))
    return [*(_of_partitions(metric, rows) for metric in METRICS), *_disk_families(store.context)]


def registry_of(families: Iterable[Family]) -> CollectorRegistry:
    """Return a prometheus-client registry with these metrics. Raises ImportError without that package."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

    class Families(Collector):
        def collect(self) -> Iterator[Any]:
            return map(prometheus_family, families)

    registry = CollectorRegistry()
    registry.register(Families())
    return registry


def prometheus_text(families: Iterable[Family]) -> str:
    """Return metrics in Prometheus' text format. Raises MissingPackageError without the package
    prometheus-client.
    """
    with Needing("prometheus-client", "metrics_text (stats --prometheus)"):
        from prometheus_client import generate_latest

        registry = registry_of(families)
    text: str = generate_latest(registry).decode()
    return text


def prometheus_family(family: Family) -> Any:
    """Convert a `Family` to an object of prometheus-client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    metric, labels, samples = family
    # The class Counter of prometheus-client would report the time of this call as the time when the counter
    # was created, so CounterMetricFamily is used.
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    made: Any = kinds[metric.kind](metric.prometheus, metric.doc, labels=labels)
    for sample in samples:
        if metric.kind == "histogram":
            # Samples with the suffix `_count` or `_sum` have no label `le`.
            named = dict(zip(labels, sample.labels, strict=False))
            made.add_sample(metric.prometheus + sample.suffix, named, sample.value)
        else:
            made.add_metric(sample.labels, sample.value)
    return made


def _of_partitions(metric: Metric, rows: Iterable[PartitionStats]) -> Family:
    values = [(stats, _number(stats, metric)) for stats in rows]
    samples = [MetricSample((s.topic, str(s.partition)), value) for s, value in values if value is not None]
    return metric, ("topic", "partition"), samples


def _number(stats: PartitionStats, metric: Metric) -> float | None:
    value = getattr(stats, metric.field)
    if metric.field == "error":
        return float(value is not None)
    return None if value is None else float(value)
