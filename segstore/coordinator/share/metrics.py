"""`ShareMetrics`: what share groups of a store have done, under Kafka's names (Kafka: ShareGroupMetrics,
SharePartitionMetrics).

Nothing is on disk. Threads: any; two threads that count at the same moment may count one for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from segstore.coordinator.group.classic.member import MonotonicMs
from segstore.coordinator.metrics import Sensor
from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType, RecordState

NAMES = {kind: kind.name.capitalize() for kind in AcknowledgeType}


class Measured(Protocol):
    """A share partition that is led."""

    core: SharePartition
    topic: str
    timeouts: int

    @property
    def key(self) -> Any:
        """Return the ShareKey."""


class ShareMetrics:
    """Counters of one store. `letters`, `failed_letters` and `sent_letters` are by group: records that became
    dead letters, appends that failed, and all appends.
    """

    def __init__(self, clock: MonotonicMs) -> None:
        self._clock = clock
        self._acknowledged: Counter[int] = Counter()
        self._loads = Sensor(clock=clock)
        self.letters: Counter[str] = Counter()
        self.failed_letters: Counter[str] = Counter()
        self.sent_letters: Counter[str] = Counter()

    def loaded(self, ms: float) -> None:
        """Note how long a share partition took to load."""
        self._loads.record(ms)

    def acknowledged(self, batches: Sequence[AckBatch]) -> None:
        """Count acknowledged offsets by type."""
        counts = self._acknowledged
        for first, last, types in batches:
            if len(types) == 1:
                counts[types[0]] += last - first + 1
            else:
                counts.update(types)

    def values(self, partitions: Iterable[Measured]) -> dict[str, dict[str, float]]:
        """Return {labels: {Kafka's name: value}}, of counts their totals; labels as "group=g,topic=t"."""
        found: dict[str, dict[str, float]] = {
            "": {
                "PartitionLoadTimeMs.avg": self._loads.avg,
                "PartitionLoadTimeMs.max": self._loads.max,
            }
        }
        for kind, name in NAMES.items():
            found[f"ackType={name}"] = {"RecordAcknowledgementsPerSec": self._acknowledged[kind]}
        for group in sorted({*self.letters, *self.failed_letters, *self.sent_letters}):
            found[f"group={group}"] = {
                "DeadLetterQueueRecordCount": self.letters[group],
                "DeadLetterQueueTotalProduceRequestsPerSec": self.sent_letters[group],
                "DeadLetterQueueFailedProduceRequestsPerSec": self.failed_letters[group],
            }
        for each in partitions:
            labels = f"group={each.key.group},topic={each.topic},partition={each.key.partition}"
            found[labels] = _of_partition(each)
        return found


def _of_partition(each: Measured) -> dict[str, float]:
    runs = each.core.runs()
    live = [run for run in runs if run.state not in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)]
    return {
        "InFlightMessageCount": sum(run.last - run.first + 1 for run in live),
        "InFlightBatchCount": len(live),
        "InFlightBatchMessageCount": sum(run.last - run.first + 1 for run in runs),
        "AcquisitionLockTimeoutPerSec": each.timeouts,
    }
