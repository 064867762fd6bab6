"""Helpers of the handlers of groups and transactions, which call coordinators in worker threads, find error
codes, and make answers by topic.

Coordinator calls run in worker threads, because each may write to an internal topic and wait for the disk.
Threads: each function names the thread that it runs in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from segstore import errors
from segstore.coordinator.structs import TopicPartition
from segstore.logger import Logger
from segstore.protocol.error_codes import Code, code_of
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.storage.meta.topic_info import CONSUMER_OFFSETS, TRANSACTION_STATE

from .working import in_worker

log = Logger("segstore")

INTERNAL = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
NO_OPERATIONS = -(1 << 31)
"""The value of `authorized_operations` in an answer if the request did not ask for authorized operations."""
GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, as bits (AclEntry.supportedOperations)."""

_CODES: dict[type[BaseException], Code] = {
    errors.ReplicaOfflineError: Code.NOT_COORDINATOR,
    errors.RecordTooLargeError: Code.UNKNOWN_SERVER_ERROR,
    errors.NotEnoughReplicasAfterAppendError: Code.COORDINATOR_NOT_AVAILABLE,
    errors.NotEnoughReplicasError: Code.COORDINATOR_NOT_AVAILABLE,
    errors.NotLeaderOrFollowerError: Code.NOT_COORDINATOR,
    errors.OffsetNotAvailableError: Code.COORDINATOR_LOAD_IN_PROGRESS,
    errors.RequestTimedOutError: Code.COORDINATOR_NOT_AVAILABLE,
    errors.StorageError: Code.COORDINATOR_NOT_AVAILABLE,
    errors.StoreClosedError: Code.NOT_COORDINATOR,
    errors.UnknownTopicOrPartitionError: Code.COORDINATOR_NOT_AVAILABLE,
}
"""Error of an append to an internal topic, or of a read of the topic -> code. Most of these codes make
clients look up the coordinator again, and retry (Kafka: CoordinatorOperationExceptionHelper).
"""


def coordinator_code(error: BaseException) -> Code:
    """Return the error code of a coordinator's exception. If the code is UNKNOWN_SERVER_ERROR, log the
    exception.
    """
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    code = code_of(error)
    if code is Code.UNKNOWN_SERVER_ERROR:
        log.error("a coordinator failed: %s: %s", type(error).__name__, error)
    return code


def coordinated(node: Node, request: Request, run: Callable[[], Any], failed: Callable[[Code], Any]) -> Later:
    """Run `run` in a worker thread, and send what `run` returns as the answer. Called in the loop's thread.

    If `run` raises an error, the loop's thread calls `failed(error code)`, and sends what `failed` returns.
    """
    return in_worker(node, request, run, lambda error: failed(coordinator_code(error)), waits=True)


def each_described(
    node: Node, request: Request, groups: Iterable[str], response: Any, describe: Callable[[str], Any]
) -> Later:
    """Answer a request with the struct that `describe(group)` returns for each group. Called in the loop's
    thread; `describe` runs in a worker thread. `response` is the type of the answer's body.
    """

    def run() -> Any:
        found = [describe(group) for group in groups]
        for each in found:
            wanted = request.body.include_authorized_operations and not each.error_code
            each.authorized_operations = GROUP_OPERATIONS if wanted else NO_OPERATIONS
        return response(groups=found)

    def failed(code: Code) -> Any:
        kind = response.DescribedGroup
        return response(groups=[kind(group_id=group, error_code=code) for group in groups])

    return coordinated(node, request, run, failed)


def heartbeat_answer(kind: Any, beaten: Any) -> Any:
    """Return an answer of the type `kind`. `beaten` is a coordinator's heartbeat result: a `Beaten` or a
    `ShareBeaten`.
    """
    given = None
    if beaten.assignment is not None:
        topics = [
            kind.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in beaten.assignment.items()
        ]
        given = kind.Assignment(topic_partitions=topics)
    return kind(
        member_id=beaten.member_id,
        member_epoch=beaten.epoch,
        heartbeat_interval_ms=beaten.heartbeat_interval_ms,
        assignment=given,
    )


def partitions_of(topics: Iterable[Any]) -> list[TopicPartition]:
    """Return the partitions of `topics`: structs with a topic's `name`, and `partitions`, a list of partition
    numbers.
    """
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def by_topic(codes: dict[TopicPartition, Code], topic_kind: Any, partition_kind: Any) -> list[Any]:
    """Return topic structs for an answer, with the error code of each partition. Topics and partitions are in
    the order of `codes`.
    """
    topics: dict[str, Any] = {}
    for (topic, number), code in codes.items():
        held = topics.get(topic) or topics.setdefault(topic, topic_kind(name=topic))
        held.partitions.append(partition_kind(partition_index=number, error_code=code))
    return list(topics.values())
