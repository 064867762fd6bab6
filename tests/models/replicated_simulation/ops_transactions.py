"""Steps of transactional producers, and of readers of what is committed (P10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

from simulation.model import hold

from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.errors import OutOfOrderSequenceError
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.log.append import append_batches

from .judge import Part, Transaction
from .ops_records import ALL, values_of
from .world import Skip, World

TIMEOUT_MS = 60_000


@dataclass
class Transactional:
    """A producer with a transactional id: its producer id and epoch, its open transaction, and the next
    sequence in each partition.
    """

    identity: tuple[int, int]
    transaction: Transaction = field(default_factory=Transaction)
    following: dict[str, int] = field(default_factory=dict)

    def begin(self, identity: tuple[int, int]) -> None:
        self.identity, self.transaction, self.following = identity, Transaction(), {}


def transact(
    world: World, who: str, tag: int, places: tuple[tuple[str, int], ...], commit: bool | None
) -> str:
    """Write in several partitions, and commit or abort; with None the transaction is left open. After an
    error another producer takes the transactional id over.
    """
    parts = [world.parts[place] for place in places if place in world.parts]
    parts = [part for part in parts if not part.compacted]
    if not parts or world.store is None:
        raise Skip
    coordinator = shared(world.live, TransactionCoordinator)
    it = world.transactional.pop(who, None)
    if it is None:
        it = Transactional(coordinator.init_producer_id(who, TIMEOUT_MS))
    for number, part in enumerate(parts):
        _write(world, coordinator, who, it, part, tag + 1000 * number + 1000)
    if commit is not None:
        it.transaction.ends(commit)
        identity = coordinator.end(who, it.identity, commit)
        it.transaction.ended(commit)
        it.begin(identity)
    world.transactional[who] = it
    return f"{len(parts)} parts"


def _write(
    world: World, coordinator: TransactionCoordinator, who: str, it: Transactional, part: Part, tag: int
) -> None:
    values = values_of(part, tag, 2)
    part.transactions.update(dict.fromkeys(values, it.transaction))
    sequence = it.following.get(part.topic_id + str(part), 0)
    template = Template(TRANSACTIONAL_FLAG, *it.identity, sequence)
    log = world.live.partition(part.topic, part.number)
    columns = Columns(values, timestamp=world.clock.now)
    with (
        coordinator.appending(who, it.identity, [TopicPartition(part.topic, part.number)]),
        mock.patch.object(log, "partition_for_write", partial(log._leading, ALL)),
    ):
        try:
            made = append_batches(log, columns, template=template, acks=ALL)
        except OutOfOrderSequenceError as error:
            hold(part.free, part, who, "is refused though nothing was lost:", repr(error))
            raise
    hold(not made.duplicate, part, who, "is taken for a repetition:", made)
    it.following[part.topic_id + str(part)] = sequence + len(values)
    part.acked.update(enumerate(values, made.first))


def committed(world: World, topic: str, number: int) -> str:
    """A consumer with isolation.level=read_committed."""
    part = world.part(topic, number)
    start, end, found = world.read(part, "read_committed")
    part.show_committed(start, end, found)
    return f"up to {end}"


OPS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (transact, committed)}
