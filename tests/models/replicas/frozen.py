"""States as tuples: those of one replica, and of all. Replicas have equal parts, so states that differ in
their names only are one; partition epochs are compared only, so states that differ in their size only are
one.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any, NamedTuple

from segstore.replication.core.isr import Committed, PendingExpand
from segstore.replication.core.leader import Leader
from segstore.replication.core.messages import AlterPartition
from segstore.replication.core.partition import PartitionReplica
from segstore.replication.core.registration import PartitionRegistration

NOTHING = AlterPartition(-1, -1, -1, ())


class LeaderKey(NamedTuple):
    kind: str
    epoch: int
    partition_epoch: int
    epoch_start: int
    isr: tuple[int, ...]
    pending: str
    joining: int
    sent: AlterPartition
    remotes: tuple[tuple[int, int, int], ...]
    reached: int


class FollowerKey(NamedTuple):
    kind: str
    epoch: int
    partition_epoch: int
    leader: int
    asks: bool


class ReplicaKey(NamedTuple):
    """One replica: its records are pairs of number and leader epoch."""

    records: tuple[tuple[int, int], ...]
    high_watermark: int
    epochs: tuple[tuple[int, int], ...]
    role: LeaderKey | FollowerKey
    waiting: tuple[int, ...]


class State(NamedTuple):
    """All that there is. `history` has the states of the partition in the metadata that somebody may not have
    heard of yet, the last one is the controller's. `brokers` has broker epoch and whether it is fenced.
    `promised` are the records that somebody was told are committed. `late` has answers on their way.
    """

    replicas: tuple[ReplicaKey, ...]
    history: tuple[PartitionRegistration, ...]
    brokers: tuple[tuple[int, bool], ...]
    promised: tuple[tuple[int, int], ...] = ()
    written: int = 0
    restarts: int = 0
    late: tuple[Any, ...] = ()


def freeze(partition: PartitionReplica, records: tuple[tuple[int, int], ...]) -> ReplicaKey:
    role, log = partition.role, partition.log
    key: LeaderKey | FollowerKey
    if isinstance(role, Leader):
        key = _leader(role)
    else:
        assert role is not None
        asks = getattr(role, "asks", False)
        key = FollowerKey("follower", role.leader_epoch, role.partition_epoch, role.leader, asks)
    waiting = tuple(request.required_offset for request in partition.acks.waiting)
    return ReplicaKey(records, log.high_watermark, log.epochs.entries, key, waiting)


def _leader(role: Leader) -> LeaderKey:
    isr = role.isr
    committed, expands = isinstance(isr, Committed), isinstance(isr, PendingExpand)
    remotes = tuple(
        (replica, remote.end_offset, -2 if remote.broker_epoch is None else remote.broker_epoch)
        for replica, remote in sorted(role.remotes.items())
    )
    return LeaderKey(
        "leader",
        role.leader_epoch,
        role.partition_epoch,
        role.epoch_start_offset,
        tuple(sorted(isr.isr)),
        "" if committed else "expand" if expands else "shrink",
        isr.replica if isinstance(isr, PendingExpand) else -1,
        NOTHING if isinstance(isr, Committed) else isr.sent,
        remotes,
        role._reached,
    )


# --- states that are one -------------------------------------------------------------------------


@cache
def orders(count: int) -> tuple[tuple[int, ...], ...]:
    """`order[old name]` is the new one; the last entry lets -1 stay."""
    return tuple((*order, -1) for order in permutations(range(count)))


@cache
def _sent(sent: AlterPartition, order: tuple[int, ...], epochs: tuple[int, ...]) -> AlterPartition:
    if sent is NOTHING or sent == NOTHING:
        return sent
    isr = tuple(sorted((order[replica], epoch) for replica, epoch in sent.isr))
    return sent._replace(
        leader=order[sent.leader], partition_epoch=epochs.index(sent.partition_epoch), isr=isr
    )


@cache
def _replica(key: ReplicaKey, order: tuple[int, ...], epochs: tuple[int, ...]) -> ReplicaKey:
    role = key.role
    number = epochs.index(role.partition_epoch)
    if isinstance(role, FollowerKey):
        return key._replace(role=role._replace(partition_epoch=number, leader=order[role.leader]))
    renamed = role._replace(
        partition_epoch=number,
        isr=_names(role.isr, order),
        joining=order[role.joining],
        sent=_sent(role.sent, order, epochs),
        remotes=tuple(sorted((order[replica], end, epoch) for replica, end, epoch in role.remotes)),
    )
    return key._replace(role=renamed)


def _names(replicas: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(order[replica] for replica in replicas))


@cache
def _registration(
    state: PartitionRegistration, order: tuple[int, ...], epochs: tuple[int, ...]
) -> PartitionRegistration:
    return state._replace(
        isr=_names(state.isr, order),
        leader=order[state.leader],
        partition_epoch=epochs.index(state.partition_epoch),
        elr=_names(state.elr, order),
        last_known_elr=_names(state.last_known_elr, order),
    )


def _late(answer: Any, order: tuple[int, ...]) -> Any:
    request, *rest = answer
    return request._replace(replica=order[request.replica]), *rest


def canonical(state: State) -> tuple[Any, ...]:
    """One of the states that are equal to this one but for names and the size of partition epochs."""
    numbers = {each.role.partition_epoch for each in state.replicas}
    numbers.update(each.partition_epoch for each in state.history)
    numbers.update(each.role.sent.partition_epoch for each in state.replicas if each.role.kind == "leader")
    epochs = tuple(sorted(numbers))
    named = [(_replicas(state, order, epochs), order) for order in orders(len(state.replicas))]
    least = min(replicas for replicas, _ in named)
    return least, min(_others(state, order, epochs) for replicas, order in named if replicas == least)


def _replicas(state: State, order: tuple[int, ...], epochs: tuple[int, ...]) -> tuple[ReplicaKey, ...]:
    found = list(state.replicas)
    for key, new in zip(state.replicas, order, strict=False):
        found[new] = _replica(key, order, epochs)
    return tuple(found)


def _others(state: State, order: tuple[int, ...], epochs: tuple[int, ...]) -> tuple[Any, ...]:
    brokers = list(state.brokers)
    for broker, new in zip(state.brokers, order, strict=False):
        brokers[new] = broker
    return (
        tuple([_registration(each, order, epochs) for each in state.history]),
        tuple(brokers),
        state.promised,
        state.written,
        state.restarts,
        tuple(sorted(_late(answer, order) for answer in state.late)) if state.late else (),
    )
