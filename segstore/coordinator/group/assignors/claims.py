"""Who has which partition, of what members claim: the latest generation is right. Nothing on disk.

Threads: any; functions without state. (Kafka: AbstractStickyAssignor.prepopulateCurrentAssignments.)
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.coordinator.structs import TopicPartition

Claims = Mapping[str, tuple[int, list[TopicPartition]]]


def settle(claims: Claims) -> tuple[dict[str, list[TopicPartition]], dict[TopicPartition, str]]:
    """The partitions of each member that has some, and of each partition the owner before the present one.

    Of two members that claim a partition in one generation the first is believed.
    """
    owners: dict[TopicPartition, dict[int, str]] = {}
    for member, (generation, partitions) in claims.items():
        for partition in partitions:
            owners.setdefault(partition, {}).setdefault(generation, member)
    current: dict[str, list[TopicPartition]] = {}
    previous: dict[TopicPartition, str] = {}
    for partition, by_generation in owners.items():
        latest, *older = sorted(by_generation, reverse=True)
        current.setdefault(by_generation[latest], []).append(partition)
        if older:
            previous[partition] = by_generation[older[0]]
    return current, previous
