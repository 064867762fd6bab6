"""Which partitions a sticky assignment has moved so far: no two members shall swap partitions of one topic.

Nothing on disk. Threads: one, within a call of `assign`. (Kafka: AbstractStickyAssignor.PartitionMovements.)
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.coordinator.structs import TopicPartition


class _Pair(NamedTuple):
    source: str
    target: str


class Movements:
    """From the first owner of each moved partition to the present one."""

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, _Pair] = {}
        self._moved: dict[tuple[str, _Pair], set[TopicPartition]] = {}

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """`partition` goes from `source` to `target`; back at its first owner it has not moved at all."""
        before = self._pairs.pop(partition, None)
        if before is not None:
            self._moved[partition.topic, before].discard(partition)
            source = before.source
        if source != target:
            pair = self._pairs[partition] = _Pair(source, target)
            self._moved.setdefault((partition.topic, pair), set()).add(partition)

    def instead(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """What to move from `source` to `target` instead: one that went the other way, if there is one."""
        before = self._pairs.get(partition)
        back = _Pair(target, before.source if before else source)
        return min(self._moved.get((partition.topic, back), ()), default=partition)
