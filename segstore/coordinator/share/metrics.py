"""`ShareMetrics`: counters and gauges of a store's share groups, under Kafka's names (Kafka:
ShareGroupMetrics, SharePartitionMetrics). Kafka has rates where this module has totals.

Nothing is on disk. Threads: any; if two threads count at the same moment, one count may be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.runs import StateRun
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType, RecordState
from segstore.storage.store.stats import Family, Metric, MetricSample

ENDS = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
ACKNOWLEDGED = Metric(
    "RecordAcknowledgementsPerSec",
    "segstore_share_acknowledgements_total",
    "counter",
    "offsets that consumers have acknowledged",
    "",
)
LOADS = Metric("PartitionLoadCount", "segstore_share_loads_total", "counter", "loads of share partitions", "")
LOAD_TIME = Metric(
    "PartitionLoadTimeMs", "segstore_share_load_ms_total", "counter", "time that these loads took", ""
)
OF_GROUPS = (
    Metric(
        "DeadLetterQueueRecordCount",
        "segstore_share_dead_letters_total",
        "counter",
        "records that were copied to a dead letter topic",
        "letters",
    ),
    Metric(
        "DeadLetterQueueTotalProduceRequestsPerSec",
        "segstore_share_dead_letter_appends_total",
        "counter",
        "appends to a dead letter topic, those that failed too",
        "appends",
    ),
    Metric(
        "DeadLetterQueueFailedProduceRequestsPerSec",
        "segstore_share_dead_letter_failures_total",
        "counter",
        "times that records were archived without a dead letter",
        "failures",
    ),
)
OF_PARTITIONS = (
    Metric(
        "InFlightMessageCount",
        "segstore_share_in_flight",
        "gauge",
        "offsets in flight that are not done with",
        "messages",
    ),
    Metric("InFlightBatchCount", "segstore_share_in_flight_runs", "gauge", "their runs", "runs"),
    Metric(
        "InFlightBatchMessageCount",
        "segstore_share_window",
        "gauge",
        "offsets from the start offset to the last in flight",
        "window",
    ),
    Metric(
        "AcquisitionLockTimeoutPerSec",
        "segstore_share_lock_timeouts_total",
        "counter",
        "offsets whose lock has run out",
        "timeouts",
    ),
)


class MeasuredSharePartition(Protocol):
    """A share partition in memory, with the attributes that metrics read."""

    core: SharePartition
    topic: str
    timeouts: int

    @property
    def key(self) -> Any:
        """Return the ShareKey of the share partition."""


class ShareMetrics:
    """The counters of one store. Three of them count by group: `letters` the dead letters that were written,
    `appends` the attempts to append to dead letter topics, and `failures` the failures that left records
    without a dead letter.
    """

    def __init__(self) -> None:
        self.acknowledgements: Counter[int] = Counter()
        self.letters: Counter[str] = Counter()
        self.appends: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._loads, self._load_ms = 0, 0.0

    def loaded(self, ms: float) -> None:
        """Count a load of a share partition, which took `ms`."""
        self._loads += 1
        self._load_ms += ms

    def acknowledged(self, batches: Sequence[AckBatch]) -> None:
        """Count acknowledged offsets by the type of acknowledgement."""
        counts = self.acknowledgements
        for first, last, types in batches:
            if len(types) == 1:
                counts[types[0]] += last - first + 1
            else:
                counts.update(types)

    def families(self, partitions: Iterable[MeasuredSharePartition]) -> list[Family]:
        """Return all metrics, including those of the share partitions in memory."""
        led = sorted(partitions, key=lambda each: each.key)
        kinds = [
            MetricSample((kind.name.capitalize(),), self.acknowledgements[kind]) for kind in AcknowledgeType
        ]
        return [
            (LOADS, (), [MetricSample((), self._loads)]),
            (LOAD_TIME, (), [MetricSample((), self._load_ms)]),
            (ACKNOWLEDGED, ("ackType",), kinds),
            *(self._of_groups(metric) for metric in OF_GROUPS),
            *(_of_partitions(metric, led) for metric in OF_PARTITIONS),
        ]

    def _of_groups(self, metric: Metric) -> Family:
        counts: Counter[str] = getattr(self, metric.field)
        groups = sorted({*self.letters, *self.appends, *self.failures})
        return metric, ("group",), [MetricSample((group,), counts[group]) for group in groups]


def _of_partitions(metric: Metric, led: Sequence[MeasuredSharePartition]) -> Family:
    value = _VALUES[metric.field]
    samples = [
        MetricSample((each.key.group, each.topic, str(each.key.partition)), float(value(each)))
        for each in led
    ]
    return metric, ("group", "topic", "partition"), samples


def _live(each: MeasuredSharePartition) -> list[StateRun]:
    return [run for run in each.core.runs() if run.state not in ENDS]


_VALUES: dict[str, Callable[[MeasuredSharePartition], int]] = {
    "messages": lambda each: each.core.in_flight(),
    "runs": lambda each: len(_live(each)),
    "window": lambda each: each.core.window,
    "timeouts": lambda each: each.timeouts,
}
