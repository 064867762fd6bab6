"""Steps that append: one record, many, a producer's with sequences, staged ones of other processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.producer_ids import ProducerIds
from segstore.errors import InvalidArgumentError, InvalidRecordError, OutOfOrderSequenceError
from segstore.records import Columns, Template
from segstore.storage.context import os_errors
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import write_manifest
from segstore.storage.inbox.staged_file import files_of
from segstore.storage.log.append import append_batches
from segstore.storage.staging import Stager

from .model import Attempt, Content, Part, drawn_records, hold
from .world import Skip, World


class Records(World):
    """What the steps of this module, and others that write, need."""

    def attempt(self, part: Part, tag: str, n: int, keyed: bool, stamps: str, **more: Any) -> Attempt:
        """Somebody is about to write these. A tag is used once."""
        if tag in self.attempts:
            raise Skip
        made = drawn_records(tag, n, self.clock.now, keyed, stamps)
        if part.topic.config.get("message.timestamp.type") == "LogAppendTime":
            made = [(*content[:3], -1) for content in made]
        attempt = self.attempts[tag] = Attempt(tag, part, made, **more)
        part.attempts.append(attempt)
        return attempt

    def written(self, attempt: Attempt, first: int) -> str:
        """It was acknowledged: it is there."""
        part = attempt.part
        self.compare_tail(part)
        n = len(attempt.records)
        hold(
            attempt.seen == n and attempt.at == first, attempt.tag, "was to be at", first, "is at", attempt.at
        )
        attempt.status = "done"
        part.attempts = [each for each in part.attempts if each is not attempt]
        unsynced = int(str(part.topic.config.get("flush.messages", 2**62))) - 1
        part.durable = max(part.durable, part.end - unsynced)
        return f"at {first}"

    def refused(self, attempt: Attempt) -> None:
        """Nothing was written, nor will be."""
        attempt.status = "gone"
        self.compare_tail(attempt.part)
        hold(not attempt.seen, attempt.tag, "was refused, and is there")


def columns(records: Iterable[Content], now: int) -> Columns:
    rows = list(records)
    return Columns(
        [r[1] for r in rows],
        [r[0] for r in rows],
        timestamps=[now if r[3] < 0 else r[3] for r in rows],
        headers=[r[2] for r in rows],
    )


def append(world: Records, name: str, number: int, tag: str, keyed: bool, stamps: str) -> str:
    """One record."""
    part = world.part(name, number)
    attempt = world.attempt(part, tag, 1, keyed, stamps)
    key, value, headers, stamp = attempt.records[0]
    try:
        first = world.log(part).append(value, key, headers, stamp if stamp >= 0 else None)
    except InvalidRecordError:
        hold(part.topic.compacted and not keyed, tag, "was refused")
        world.refused(attempt)
        return "refused"
    return world.written(attempt, first)


def batch(
    world: Records,
    name: str,
    number: int,
    tag: str,
    n: int,
    keyed: bool,
    stamps: str,
    codec: str | None,
    size: int,
) -> str:
    """Many records, in batches of about `size` bytes."""
    part = world.part(name, number)
    attempt = world.attempt(part, tag, n, keyed, stamps)
    rows = attempt.records
    try:
        found = world.log(part).append_batch(
            [r[1] for r in rows],
            [r[0] for r in rows],
            [world.now if r[3] < 0 else r[3] for r in rows],
            [r[2] for r in rows],
            codec,
            size,
        )
    except InvalidRecordError:
        hold(part.topic.compacted and not keyed, tag, "was refused")
        world.refused(attempt)
        return "refused"
    hold(len(found) == n, tag, "is at", found)
    return world.written(attempt, found.start)


def producer_of(world: Records, who: str) -> tuple[int, int]:
    """The id of an idempotent producer, which outlives its process."""
    if who not in world.idempotent:
        world.idempotent[who] = shared(world.live, ProducerIds).next(), 0
    return world.idempotent[who]


def idempotent(world: Records, name: str, number: int, who: str, tag: str, n: int, how: str) -> str:
    """A producer's next batch; "again": its last one once more; "gap": one that does not follow."""
    part = world.part(name, number)
    if part.topic.config.get("message.timestamp.type") == "LogAppendTime" and how == "again":
        raise Skip
    producer = producer_of(world, who)
    rows = part.sequences.get(producer, [])
    log, last = world.log(part), rows[-1] if rows else None
    following = last[0] + last[1] if last else 0
    if how == "again":
        # Where the log's beginning was deleted, or lost, the producer may be unknown there.
        if last is None or last[2] < part.start or world.cut:
            raise Skip
        template = Template(0, *producer, last[0])
        try:
            found = append_batches(log, columns(last[3].records, world.now), template=template)
        except InvalidArgumentError:
            return "the clock was set back: it comes from too far ahead"
        hold(found.duplicate and found.first == last[2], part, who, "repeats", last[:3], "and gets", found)
        world.compare_tail(part)
        return f"again at {found.first}"
    if how == "gap":
        if last is None or last[2] < part.start or world.cut:
            raise Skip
        try:
            append_batches(
                log, columns(last[3].records, world.now), template=Template(0, *producer, following + 3)
            )
        except (OutOfOrderSequenceError, InvalidArgumentError):
            return "out of order"
        hold(False, part, who, "was not refused")
    attempt = world.attempt(part, tag, n, True, "rising", sequence=(*producer, following))
    template = Template(0, *producer, following)
    found = append_batches(log, columns(attempt.records, world.now), template=template)
    hold(not found.duplicate, part, who, "is taken for a repetition:", found)
    return world.written(attempt, found.first)


def stage(world: Records, tag: str, where: tuple[tuple[str, int], ...], n: int) -> str:
    """What another process stages and seals: it waits to be adopted."""
    parts = []
    for name, number in where:
        try:
            parts.append(world.part(name, number))
        except Skip:
            continue
    if not parts or any(f"{tag}{i}" in world.attempts for i in range(len(parts))):
        raise Skip
    with Stager(world.root, clock=world.clock, files=world.files) as stager:
        attempts = []
        for i, part in enumerate(parts):
            attempt = world.attempt(part, f"{tag}{i}", n, True, "rising")
            attempts.append(attempt)
            rows = attempt.records
            stamps = [world.now if r[3] < 0 else r[3] for r in rows]
            stager.append_batch(
                part.topic.name, part.number, [r[1] for r in rows], [r[0] for r in rows], stamps,
                [r[2] for r in rows], batch_bytes=300,
            )  # fmt: skip
        message = stager.finish()
    world.manifests.append(attempts)
    for attempt in attempts:
        attempt.status = "staged"
    with os_errors():
        write_manifest(Folder(world.files, world.root), tag, files_of([message]))
    world.sealed.add(tag)
    return f"{len(parts)} x {n}"


def adopt(world: Records) -> str:
    """The inbox is looked at."""
    failed = world.failures
    with os_errors():
        world.live.engine.inbox.adopt_all()
    world.compare_all()
    done = settle_manifests(world, known=not world.tolerated(failed))
    return f"{done} adopted"


def settle_manifests(world: Records, known: bool) -> int:
    """All of a manifest is there, or nothing. `known`: nothing is in its way but what it says itself."""
    parts, done = set(world.parts()), 0
    for attempts in list(world.manifests):
        here = [a for a in attempts if a.part in parts]
        seen = {a.seen == len(a.records) for a in here}
        hold(len(seen) < 2, "adopted in part:", [(a.tag, a.seen) for a in here])
        if True in seen:
            hold(len(here) == len(attempts) or not known, attempts[0].tag, "was adopted without a topic")
            world.manifests.remove(attempts)
            done += 1
            for attempt in here:
                attempt.status = "done"
                attempt.part.durable = max(attempt.part.durable, attempt.at + len(attempt.records))
        elif known:
            tag = attempts[0].tag[:-1]
            hold(len(here) < len(attempts) or tag not in world.sealed, tag, "is not adopted")
            world.manifests.remove(attempts)
            for attempt in attempts:
                attempt.status = "gone"
    return done


OPS: dict[str, Any] = {f.__name__: f for f in (append, batch, idempotent, stage, adopt)}
