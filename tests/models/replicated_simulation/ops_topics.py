"""Steps of operators: topics come and go, leaders are elected, partitions move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .world import TIMEOUT, Skip, World

POLICIES: dict[str, dict[str, Any]] = {
    "keep": {},
    "delete": {"retention.bytes": 4000},
    "compact": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
}


def create(world: World, topic: str, partitions: int, minimum: int, flush: bool, policy: str) -> None:
    if topic in world.live.topics():
        raise Skip
    config = {"min.insync.replicas": minimum, "segment.bytes": 2000, "index.interval.bytes": 200}
    config["flush.messages"] = 1 if flush else 1 << 40
    try:
        world.live.create_topic(
            topic, partitions, config | POLICIES[policy], replication_factor=len(world.replicating)
        )
    finally:
        if not world.files.dead and world.store is not None and topic in (topics := world.live.topics()):
            world.synced[topics[topic].topic_id] = flush
            world.forget_deleted()


def delete(world: World, topic: str) -> None:
    if topic not in world.live.topics():
        raise Skip
    world.promised.pop(topic, None)
    info = world.live.topics()[topic]
    world.live.delete_topic(topic)  # where this is interrupted, `forget_deleted` sees what came of it
    world.deleted.add(info.topic_id)
    for key in [key for key in world.parts if key[0] == topic]:
        del world.parts[key]


def elect(world: World, topic: str, number: int) -> str:
    world.part(topic, number)
    return str(world.live.elect_leaders("preferred", [(topic, number)], timeout_ms=TIMEOUT))


def unclean(world: World, topic: str, number: int) -> str:
    """Anything that is not in all replicas may be lost."""
    part = world.part(topic, number)
    if world.live.describe_partition(topic, number).leader >= 0:
        raise Skip
    part.lose()
    return str(world.live.elect_leaders("unclean", [(topic, number)], confirm=True, timeout_ms=TIMEOUT))


def move(world: World, topic: str, number: int, replicas: tuple[int, ...]) -> None:
    part = world.part(topic, number)
    replicas = tuple(each for each in replicas if each in world.replicating)
    if not replicas:
        raise Skip
    part.least = min(part.least, len(replicas))
    world.live.reassign({(topic, number): replicas})


def alter(world: World, topic: str, minimum: int) -> None:
    if topic not in world.live.topics():
        raise Skip
    for part in world.parts.values():
        if part.topic == topic:
            part.least = min(part.least, minimum)
    world.live.alter_topic(topic, {"min.insync.replicas": minimum})


OPS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (create, delete, elect, unclean, move, alter)}
