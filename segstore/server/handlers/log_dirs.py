"""DescribeLogDirs, AlterReplicaLogDirs: the directories of the logs, and the logs' sizes (KIP-113, KIP-827).
A replicated store has a log directory for each of its replica directories. The directory of any other store
is the only log directory. Clients can't move a replica between directories. Source: ReplicaManager's
describeLogDirs and alterReplicaLogDirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from segstore.errors import SegstoreError, StorageError
from segstore.files import Files
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.replicated import replicated
from segstore.server.request import Request
from segstore.server.topics import shown
from segstore.storage.context import os_errors

from .working import in_worker

if TYPE_CHECKING:
    from segstore.replication.data_directory import DataDirectory

_Response = structs("DescribeLogDirsResponse")
_Placed = structs("AlterReplicaLogDirsResponse")
_Wanted = Mapping[str, Iterable[int]]


def describe_log_dirs(node: Node, request: Request) -> Any:
    """Answer with each log directory, with the sizes of the requested partitions whose logs are in it."""
    return in_worker(node, request, lambda: _described(node, request.body))


def _described(node: Node, body: Any) -> Any:
    store = node.store
    if body.topics is None:
        wanted: _Wanted = {name: info.partition_ids for name, info in shown(store).items()}
    else:
        wanted = {each.topic: each.partitions for each in body.topics}
    if (of_many := replicated(store)) is not None:
        directories = of_many.replicated.manager.directories
        return _Response(results=[_of_replicas(directories[each], wanted) for each in sorted(directories)])
    sizes = {topic: _of_logs(node, topic, numbers) for topic, numbers in wanted.items()}
    return _Response(results=[_result(store.context.files, store.path, sizes)])


def _of_logs(node: Node, topic: str, numbers: Iterable[int]) -> list[Any]:
    """Return a topic's partitions with their sizes. As in Kafka, leave out missing logs and logs that can't
    be opened.
    """
    found = []
    for number in numbers:
        try:
            size = node.store.partition(topic, number).size
        except SegstoreError:
            continue
        found.append(_Response.DescribeLogDirsPartition(partition_index=number, partition_size=size))
    return found


def _of_replicas(directory: DataDirectory, wanted: _Wanted) -> Any:
    if directory.error is not None:
        return _Response.DescribeLogDirsResult(error_code=Code.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    sizes: dict[str, list[Any]] = {}
    for key, replica in sorted(directory.replicas.copy().items()):
        if key.partition in wanted.get(key.topic, ()):
            log, view = replica.replica, replica.replica.written
            sizes.setdefault(key.topic, []).append(
                _Response.DescribeLogDirsPartition(
                    partition_index=key.partition,
                    partition_size=sum(map(view.end_of, range(len(view.segments)))),
                    offset_lag=max(log.log_end_offset - log.high_watermark, 0),
                )
            )
    return _result(directory.writer.context.files, directory.path, sizes)


def _result(files: Files, path: str, sizes: Mapping[str, list[Any]]) -> Any:
    """Return the struct of one directory, with the sizes of its logs, and the total and free bytes of its
    file system.
    """
    try:
        with os_errors():
            space = files.space(path)
    except StorageError:
        return _Response.DescribeLogDirsResult(error_code=Code.KAFKA_STORAGE_ERROR, log_dir=path)
    kind = _Response.DescribeLogDirsTopic
    return _Response.DescribeLogDirsResult(
        log_dir=path,
        topics=[kind(name=topic, partitions=found) for topic, found in sizes.items() if found],
        total_bytes=space.total,
        usable_bytes=space.usable,
    )


def alter_replica_log_dirs(node: Node, request: Request) -> Any:
    """Answer with NONE for each partition whose log is already in the requested directory, and with an error
    code for any other partition.
    """
    return in_worker(node, request, lambda: _placed(node, request.body))


def _placed(node: Node, body: Any) -> Any:
    kind, codes = _Placed.AlterReplicaLogDirPartitionResult, dict[str, list[Any]]()
    for directory in body.dirs:
        for topic in directory.topics:
            codes.setdefault(topic.name, []).extend(
                kind(partition_index=number, error_code=_place(node, directory.path, topic.name, number))
                for number in topic.partitions
            )
    return _Placed(
        results=[
            _Placed.AlterReplicaLogDirTopicResult(topic_name=topic, partitions=parts)
            for topic, parts in codes.items()
        ]
    )


def _place(node: Node, path: str, topic: str, number: int) -> Code:
    """Return NONE if a partition's log is in the directory `path`, else the error code of the refusal to move
    it.
    """
    store, info = node.store, shown(node.store).get(topic)
    here: dict[str, DataDirectory | None] = {store.path: None}
    if (of_many := replicated(store)) is not None:
        here = {each.path: each for each in of_many.replicated.manager.directories.values()}
    if path not in here:
        return Code.LOG_DIR_NOT_FOUND
    if info is None or number not in info.partition_ids:
        return Code.REPLICA_NOT_AVAILABLE
    directory = here[path]
    if directory is None or any((k.topic, k.partition) == (topic, number) for k in directory.replicas.copy()):
        return Code.NONE
    return Code.INVALID_REQUEST


HANDLERS = {
    Api.DESCRIBE_LOG_DIRS: describe_log_dirs,
    Api.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
}
