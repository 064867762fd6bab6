"""What a store shows: the records of a log, those of each replica, and which replicas lag."""

from __future__ import annotations

from typing import Any

from replicated_stores import states
from simulation.model import hold

from segstore.replication.kept_records import PRODUCER_ID
from segstore.replication.metadata.image import MetadataImage

from .judge import latest


def records_of(log: Any, start: int, end: int, isolation: str = "read_uncommitted") -> dict[int, bytes]:
    """The values of a log's records, by offset."""
    at, found = start, dict[int, bytes]()
    while at < end:
        records = log.read(at, isolation_level=isolation)
        if records.next_offset == at:
            break
        found.update({record.offset: record.value for record in records if record.offset < end})
        at = records.next_offset
    return found


def lagging(store: Any) -> dict[Any, Any]:
    """The partitions whose replicas are not all in sync, with their logs' ends."""
    return {
        key: (state.leader, state.isr, [each.log_end_offset for each in state.replica_states])
        for key, state in states(store).items()
        if {*state.isr} != {*state.replicas} or len({e.log_end_offset for e in state.replica_states}) > 1
    }


def read_followers(world: Any) -> None:
    """Once all are in sync, every replica shows what the leader shows (R39)."""
    for (topic, number), part in world.parts.items():
        log = world.live.partition(topic, number)
        start, end, found = world.read(part)
        for replica in world.live.describe_partition(topic, number).replicas:
            there = records_of(log.nearest(str(replica), start), start, end)
            if part.compacted:  # each replica compacts for itself
                hold(latest(there) == latest(found), part, replica, "shows other latest records:", there)
            else:
                hold(there == found, part, replica, "shows other records:", there.items() ^ found.items())


def said(image: MetadataImage) -> tuple[Any, ...]:
    """All that the metadata says."""
    return image.next_offset, image.partitions, image.brokers, decided(image)


def decided(image: MetadataImage) -> tuple[Any, ...]:
    """What the metadata says of topics and settings."""
    topics = {name: (topic.topic_id, dict(topic.config)) for name, topic in image.topics.items()}
    return topics, dict(image.features), dict(image.cluster_config)


def keeps(before: MetadataImage, after: MetadataImage) -> bool:
    """Whether all that was decided before an open is there. The open adopts staged appends, for which it
    makes topics and takes producer ids.
    """
    (topics, features, config), (topics_now, features_now, config_now) = decided(before), decided(after)
    taken, taken_now = int(config.pop(PRODUCER_ID, 0)), int(config_now.pop(PRODUCER_ID, 0))
    same = features == features_now and config == config_now and taken <= taken_now
    return same and topics.items() <= topics_now.items()
