"""Steps that create, alter and delete topics, sweep them, and close the store, kill it or cut its power."""

from __future__ import annotations

from functools import cache
from typing import Any

import segstore
from segstore.config import TopicConfig
from segstore.errors import StorageError, TopicAlreadyExistsError

from .files import GROUPS
from .model import Part, Topic, hold
from .world import Skip, World

SMALL: dict[str, object] = {"segment.bytes": 700, "index.interval.bytes": 100, "file.delete.delay.ms": 0}
COMPACT: dict[str, object] = {
    **SMALL,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 5000,
}
CONFIGS: list[dict[str, object]] = [
    SMALL,
    {**SMALL, "flush.messages": 1},
    COMPACT,
    {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": 600_000, "flush.messages": 1},
    {**SMALL, "retention.bytes": 2000, "flush.messages": 3},
    {**SMALL, "retention.ms": 60_000, "segment.ms": 5000, "file.delete.delay.ms": 1000},
    {**SMALL, "message.timestamp.type": "LogAppendTime"},
    {**SMALL, "compression.type": "zstd", "segment.bytes": 2000, "flush.ms": 1000},
]


@cache
def _parsed(config: tuple[tuple[str, Any], ...]) -> TopicConfig:
    return TopicConfig.parse(dict(config))


class Topics(World):
    """What the steps of this module need."""

    def settle_topics(self) -> None:
        """What failed, or was killed, is there or not."""
        there = self.live.topics()
        for name, topic in self.doubtful.items():
            if topic is not None and name in there and name not in self.topics:
                self.topics[name] = topic
            elif name not in there:
                self.forget_topic(name)
        self.doubtful.clear()
        mine = {name for name in there if not name.startswith("__")}
        hold(mine == set(self.topics), "topics are", sorted(mine), "and not", sorted(self.topics))
        for name, topic in self.topics.items():
            self._settle_config(topic, there[name])

    def _settle_config(self, topic: Topic, info: segstore.TopicInfo) -> None:
        configs = [topic.config, *topic.doubts]
        fitting = [c for c in configs if _parsed(tuple(c.items())) == info.settings]
        hold(bool(fitting), topic.name, "has the settings", info.settings)
        topic.config, topic.doubts = fitting[0], []
        sizes = {len(topic.parts), topic.total}
        hold(info.partitions in sizes, topic.name, "has", info.partitions, "partitions, and not", sizes)
        topic.parts += [Part(topic, n) for n in range(len(topic.parts), info.partitions)]
        topic.total = info.partitions

    def forget_topic(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        for transaction in self.transactions:
            for part in topic.parts:
                transaction.first.pop(part, None)
            transaction.offsets = [sent for sent in transaction.offsets if sent.key[1] != name]
        for key in [key for key in self.offsets if key[1] == name]:
            self.offsets[key] = [None]  # one that is made later begins without them


def create(world: Topics, name: str, partitions: int, config: int) -> str:
    """A topic with one of CONFIGS."""
    if name in world.topics:
        try:
            world.live.create_topic(name, partitions)
        except TopicAlreadyExistsError:
            return "there already"
        hold(False, name, "was made twice")
    topic = world.doubtful[name] = Topic(name, partitions, CONFIGS[config % len(CONFIGS)])
    world.live.create_topic(name, partitions, topic.config)
    world.topics[name] = world.doubtful.pop(name) or topic
    return "made"


def alter(world: Topics, name: str, config: int) -> str:
    """Other settings."""
    topic = world.topics.get(name)
    if topic is None:
        raise Skip
    after = CONFIGS[config % len(CONFIGS)]
    topic.doubts.append(after)
    topic.was_compacted |= "compact" in str(after.get("cleanup.policy"))
    world.live.alter_topic(name, {**dict.fromkeys(topic.config), **after})
    topic.config = topic.doubts.pop()
    return "altered"


def widen(world: Topics, name: str, more: int) -> str:
    """More partitions."""
    topic = world.topics.get(name)
    if topic is None or len(topic.parts) + more > 4:
        raise Skip
    topic.total = len(topic.parts) + more
    world.live.add_partitions(name, topic.total)
    world.settle_topics()
    return f"{len(topic.parts)} partitions"


def delete(world: Topics, name: str) -> str:
    """A topic goes."""
    if name not in world.topics:
        raise Skip
    for key in [key for key in world.offsets if key[1] == name]:
        world.tentative.setdefault(key, set()).add(None)
    world.doubtful[name] = world.topics[name]
    world.live.delete_topic(name)
    del world.doubtful[name]
    world.forget_topic(name)
    return "deleted"


def delete_records(world: Topics, name: str, number: int, part_of: int) -> str:
    """The log begins later, by so many percent of what there is."""
    part = world.part(name, number)
    before = part.start + (part.end - part.start) * part_of // 100
    part.starts.add(before)
    found = world.log(part).delete_records(before)
    hold(found == max(before, part.start), part, "begins at", found, "and not", before)
    part.durable = max(part.durable, before)
    world.compare_tail(part)
    hold(part.start == found, part, "begins at", part.start, "and not", found)
    part.starts.clear()
    return f"from {found}"


def flush(world: Topics, name: str, number: int) -> str:
    """One partition is durable."""
    part = world.part(name, number)
    world.log(part).flush()
    part.durable = part.end
    return f"to {part.end}"


def flush_all(world: Topics) -> str:
    """All that was committed is durable."""
    world.live.flush()
    durable(world)
    return "all"


def durable(world: World) -> None:
    for part in world.parts():
        part.durable = part.end
    world.offsets = {key: values[-1:] for key, values in world.offsets.items()}


def sweep(world: Topics) -> str:
    """Retention and compaction of everything."""
    failed = world.failures
    swept = world.live.sweep()
    errors = [each.error for each in swept if each.error is not None]
    hold(not errors or world.tolerated(failed), "a sweep failed:", errors)
    world.compare_all(swept=True)
    return f"{len(swept)} swept, {len(errors)} failed"


def tick(world: Topics, ms: int) -> str:
    """Time passes, and what is due in the background is done."""
    world.hand.seconds += ms / 1000
    jump(world, ms)
    world.may_be_fenced |= set(world.producers)
    ran = world.hand.run_due()
    if not world.files.dead:
        world.compare_all(swept=True)
    return f"{ran} tasks"


def jump(world: Topics, ms: int) -> str:
    """The wall clock is set, to whatever it is set to."""
    world.clock.now = max(world.clock.now + ms, 10_000_000)
    world.now = world.clock.now
    world.largest = max(world.largest, world.now)
    world.back = max(world.back, world.largest - world.now)
    return str(ms)


def close(world: Topics) -> str:
    """A clean shutdown, and the next open."""
    store, world.store = world.live, None
    try:
        world.forget_clients()
        store.close()
        durable(world)
        closed = "closed"
    except StorageError:
        hold(world.failures > 0, "it can't be closed")
        closed = "not closed cleanly"
    if closed == "closed" and not world.files.dead and not world.failures:
        world.check()  # what has failed may leave something to be done by the next open
    store.context.closed = True
    world.files.let_go()
    world.open("" if closed == "closed" else "kill")
    return closed


def kill(world: Topics) -> str:
    """The process dies between two steps."""
    world.files.die("kill")
    return "killed"


def cut(world: Topics, mode: str) -> str:
    """The power fails between two steps."""
    world.files.die(mode)
    return mode


def fault(world: Topics, group: str, nth: int, error: str) -> str:
    """A call that is to come fails."""
    hold(group in GROUPS, group)
    world.files.plan(group, nth, error)
    return "planned"


def death(world: Topics, nth: int, mode: str) -> str:
    """A change that is to come is the last one: mode "kill", or that of a power cut."""
    world.files.plan_death(nth, mode)
    return "planned"


def verify(world: Topics) -> str:
    """Everything is as it must be, for another process too."""
    world.files.forget_plans()
    world.verify("")
    for part in world.parts():
        world.times(part, world.log(part).offset_for_time, world.rng)
    with segstore.open(world.root, "r", files=world.files) as reader:
        for part in world.parts():
            log = reader.partition(*part.key)
            found = log.start_offset, log.end_offset, log.last_stable_offset
            wanted = part.start, part.end, part.stable(world.transactions)
            hold(found == wanted, part, "is", found, "to others and not", wanted)
    return f"{sum(len(p.entries) for p in world.parts())} records"


OPS: dict[str, Any] = {
    f.__name__: f
    for f in (
        *(create, alter, widen, delete, delete_records, flush, flush_all, sweep, tick, jump),
        *(close, kill, cut, fault, death, verify),
    )
}
