"""Topics and partitions of a store as clients see them: names, ids, leaders.

A server is one node, even for a replicated store: clients see one replica of each partition, on this node.
The replicas of a replicated store are directories. Clients don't see these replicas, only whether the
partition has a leader. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from segstore import names
from segstore.errors import InvalidReplicaAssignmentError, SegstoreError
from segstore.protocol.error_codes import Code
from segstore.server.logs import NO_ID
from segstore.server.node import NODE_ID
from segstore.server.replicated import replicated
from segstore.storage.meta.topic_info import CLUSTER_METADATA, TopicInfo
from segstore.storage.store.store import Store
from segstore.storage.store.writer import StoreWriter

_UNKNOWN_EPOCH = -1
_EPOCHS_AT_HAND = 1024
_Key = tuple[str, int]


class PartitionLeader(NamedTuple):
    """The leader of a partition. If there is no leader, `leader_id` is -1, and `error` is the reason.
    `leader_epoch` is -1 if it is unknown.
    """

    leader_id: int
    leader_epoch: int
    error: Code = Code.NONE


NOBODY = PartitionLeader(-1, _UNKNOWN_EPOCH, Code.LEADER_NOT_AVAILABLE)


def shown(store: Store) -> dict[str, TopicInfo]:
    """Return the topics that clients see, by name. Raises StoreClosedError."""
    return {name: info for name, info in store.topics().items() if name != CLUSTER_METADATA}


def check_replicas(nodes: Sequence[int]) -> None:
    """Raise InvalidReplicaAssignmentError if the assigned replicas are not exactly [this node]."""
    if list(nodes) != [NODE_ID]:
        raise InvalidReplicaAssignmentError(
            f"replicas on nodes {list(nodes)}: there is one node, so it must be [{NODE_ID}]"
        )


def id_of(info: TopicInfo) -> bytes:
    """Return a topic's id as 16 bytes. Return the zero id if the topic was created before there were topic
    ids.
    """
    return names.topic_id_bytes(info.topic_id) if info.topic_id else NO_ID


def with_id(topics: Mapping[str, TopicInfo], topic_id: bytes) -> TopicInfo | None:
    """Return the topic with this id, None if there is no such topic."""
    text = names.topic_id_of(topic_id)
    return next((info for info in topics.values() if text and info.topic_id == text), None)


class Leaders:
    """The leaders of a store's partitions, for one answer. No log is opened to find its leader epoch. If a
    log is closed, the epoch is that of its last opening. The epoch is unknown (-1, which Kafka's clients
    accept) if a broker has written the log and this store has never opened it, or if the store is open for
    reading. `failed` are partitions whose logs could not be opened: these partitions have no leader. `of`
    reuses the epochs that `closed` has read, so each answer needs a `Leaders` of its own.
    """

    def __init__(self, store: Store, failed: Iterable[_Key] = ()) -> None:
        self._failed, side = frozenset(failed), store.engine
        self._replicated = replicated(store)
        self._writer = side if isinstance(side, StoreWriter) else None
        self._open: dict[str, tuple[Sequence[int], list[int]]] = {}
        """Topic -> (partitions, their leader epochs), for topics of which `closed` knew all epochs."""

    def closed(self, topics: Iterable[TopicInfo]) -> list[_Key]:
        """Return the partitions whose logs must be opened before their leader epochs are known. Return no
        partitions if the store is replicated, because a replicated store knows the epochs of closed logs, or
        if the store is open for reading, because opening a log would not make its epoch known.
        """
        found = list[_Key]()
        if self._writer is None:
            return found
        for info in topics:
            epochs = self._writer.partitions.epochs(info.name, info.partition_ids)
            if -1 in epochs:
                pairs = zip(info.partition_ids, epochs, strict=True)
                found += [(info.name, number) for number, epoch in pairs if epoch < 0]
            else:
                self._open[info.name] = info.partition_ids, epochs
        return found

    def of(self, topic: str, numbers: Sequence[int]) -> list[PartitionLeader]:
        """Return the leader of each partition, `NOBODY` if the topic was deleted."""
        try:
            led = self._of(topic, numbers)
        except SegstoreError:
            return [NOBODY] * len(numbers)
        if self._failed:
            pairs = zip(numbers, led, strict=True)
            return [NOBODY if (topic, number) in self._failed else each for number, each in pairs]
        return led

    def _of(self, topic: str, numbers: Sequence[int]) -> list[PartitionLeader]:
        if self._replicated is not None:
            found = self._replicated.leaders(topic, numbers)
            return [_led(epoch) if leader >= 0 else NOBODY for leader, epoch in found]
        if self._writer is None:
            return [_led(_UNKNOWN_EPOCH)] * len(numbers)
        known, epochs = self._open.get(topic, (None, []))
        if known is not numbers:
            epochs = self._writer.leader_epochs(topic, numbers)
        first = epochs[0] if epochs else _UNKNOWN_EPOCH
        # In most topics all partitions have the same epoch.
        if epochs.count(first) == len(epochs):
            return [_led(first)] * len(epochs)
        return list(map(_led, epochs))


@lru_cache(_EPOCHS_AT_HAND)
def _led(epoch: int) -> PartitionLeader:
    return PartitionLeader(NODE_ID, epoch)


def open_logs(store: Store, keys: Iterable[_Key]) -> set[_Key]:
    """Open the logs of these partitions, which may take long. Return the partitions whose logs can't be
    opened.
    """
    failed = set()
    for topic, partition in keys:
        try:
            store.partition(topic, partition)
        except SegstoreError:
            failed.add((topic, partition))
    return failed
