"""Steps of applications: they append, with sequences or without, read, and delete old records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

from simulation.model import hold

from segstore.errors import OutOfOrderSequenceError
from segstore.records import Columns, Template
from segstore.storage.log.acks import Acks
from segstore.storage.log.append import Appended, append_batches

from .judge import Part, Sequenced, key_of
from .world import TIMEOUT, Skip, World

ALL = Acks(-1, TIMEOUT)


def values_of(part: Part, tag: int, count: int) -> list[bytes]:
    """New values, which somebody is about to write."""
    values = [b"%d.%d|" % (tag, n) + b"v" * (tag * 7 % 90) for n in range(count)]
    part.sent.update(values)
    return values


def keys_of(part: Part, values: list[bytes]) -> list[bytes] | None:
    return [key_of(value) for value in values] if part.compacted else None


def append(world: World, topic: str, number: int, tag: int, count: int, acks: Any) -> str:
    part = world.part(topic, number)
    values = values_of(part, tag, count)
    made = world.live.partition(topic, number).append_batch(
        values, keys_of(part, values), batch_bytes=200, acks=acks, timeout_ms=TIMEOUT
    )
    if acks == "all":
        part.acked.update(zip(made, values, strict=True))
    return str(made)


def burst(world: World, topic: str, number: int, tag: int, count: int) -> str:
    return append(world, topic, number, tag, count, "all")


def look(world: World, topic: str, number: int) -> None:
    world.seen(world.part(topic, number))


def produce(world: World, topic: str, number: int, who: str, tag: int, count: int, again: int) -> str:
    """An idempotent producer sends its next batch, or the one again whose outcome it was not told. With
    `again` it repeats one of the last batches that were acknowledged: the leader knows where that lies.
    """
    part = world.part(topic, number)
    it = _producer(world, part, who)
    if again and it.pending is None:
        return _repeat(world, part, it, again)
    sequence, values = it.next_batch(lambda: values_of(part, tag, count))
    try:
        made = _send(world, part, it, sequence, values)
    except OutOfOrderSequenceError as error:
        hold(part.free, part, who, "is refused though nothing was lost:", repr(error))
        del part.producers[who]
        return "its records were lost"
    it.done(made.first)
    part.acked.update(enumerate(values, made.first))
    return f"{sequence} at {made.first}{' again' * made.duplicate}"


def unanswered(world: World, part: Part, who: str, tag: int) -> str:
    """An idempotent producer sends its next batch with acks=1, and does not hear the answer."""
    it = _producer(world, part, who)
    sequence, values = it.next_batch(lambda: values_of(part, tag, 2))
    return str(_send(world, part, it, sequence, values, Acks(1, TIMEOUT)))


def _producer(world: World, part: Part, who: str) -> Sequenced:
    if who not in part.producers:
        part.producers[who] = Sequenced(world.next_producer_id())
    return part.producers[who]


def _repeat(world: World, part: Part, it: Sequenced, again: int) -> str:
    """Compaction leaves only the last batch of a producer, and deleted records are forgotten."""
    told = it.told[-1:] if part.compacted else it.told
    start = world.live.partition(part.topic, part.number).start_offset
    told = [each for each in told if each[2] >= start]
    if not told or part.free:
        raise Skip
    sequence, values, first = told[-1 - again % len(told)]
    part.sent.update(values)
    made = _send(world, part, it, sequence, values)
    hold(made.duplicate and made.first == first, part, "repeats what is at", first, "and gets", made)
    return f"{sequence} is at {first}"


def _send(
    world: World, part: Part, it: Sequenced, sequence: int, values: list[bytes], acks: Acks = ALL
) -> Appended:
    columns = Columns(values, keys_of(part, values), timestamp=world.clock.now)
    template = Template(0, it.producer_id, 0, sequence)
    log = world.live.partition(part.topic, part.number)
    with mock.patch.object(log, "partition_for_write", partial(log._leading, acks)):  # waits as long
        return append_batches(log, columns, template=template, acks=acks)


def trim(world: World, topic: str, number: int, share: int) -> None:
    """Old records are deleted."""
    part = world.part(topic, number)
    log = world.live.partition(topic, number)
    offset = log.start_offset + (log.end_offset - log.start_offset) * share // 100
    part.trimmed = max(part.trimmed, offset)
    log.delete_records(offset)


def sweep(world: World) -> str:
    """Retention and compaction, in all directories."""
    return f"{len(world.live.sweep())} partitions"


OPS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (append, burst, look, produce, trim, sweep)}
