"""CreateTopics, DeleteTopics, CreatePartitions.

Clients see one replica of each topic, on this node. In a replicated store, new topics have replicas in
default.replication.factor directories. Source: Kafka's ControllerApis and ReplicationControlManager.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from segstore import names
from segstore.config import TopicConfig
from segstore.coordinator import config_entries
from segstore.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
)
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.logs import NO_ID
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.server.topics import check_replicas, id_of, shown, with_id
from segstore.storage.meta.topic_info import MOST_PARTITIONS, TopicInfo, check_not_internal

from .refusal import REFUSED, Refusal, code_and_message
from .working import in_worker

_Created = structs("CreateTopicsResponse")
_Deleted = structs("DeleteTopicsResponse")
_Grown = structs("CreatePartitionsResponse")
_ASSIGNED = "a manual partition assignment was specified, but {} was not set to -1"


# --- CreateTopics ---------------------------------------------------------------------------------


def create_topics(node: Node, request: Request) -> Any:
    """Create topics; answer with the new topic's settings or an error for each topic."""
    return in_worker(node, request, lambda: _create_all(node, request.body))


def _create_all(node: Node, body: Any) -> Any:
    twice = {name for name, count in Counter(each.name for each in body.topics).items() if count > 1}
    results = []
    for each in {each.name: each for each in body.topics}.values():
        try:
            if each.name in twice:
                raise Refusal(Code.INVALID_REQUEST, f"topic {each.name!r} is in the request twice")
            results.append(_create(node, each, validate_only=body.validate_only))
        except REFUSED as error:
            code, message = code_and_message(error)
            results.append(
                _Created.CreatableTopicResult(name=each.name, error_code=code, error_message=message)
            )
    return _Created(topics=results)


def _create(node: Node, wanted: Any, *, validate_only: bool) -> Any:
    """Create one topic. The checks have the same order as those of Kafka's controller, so that a request with
    several faults gets the same error as from Kafka.
    """
    names.check_topic(wanted.name)
    check_not_internal(wanted.name, "groups and transactions make it when they need it")
    if wanted.name in shown(node.store):
        raise TopicAlreadyExistsError(f"topic {wanted.name!r} is there already")
    config = _config(wanted)
    count = _assigned(wanted) if wanted.assignments else _counted(node, wanted)
    if validate_only:
        return _creatable(node, wanted.name, count, NO_ID, config)
    info = node.store.create_topic(wanted.name, count, config.to_mapping())
    return _creatable(node, wanted.name, count, id_of(info), info.settings)


def _config(wanted: Any) -> TopicConfig:
    null = [each.name for each in wanted.configs if each.value is None]
    if null:
        raise Refusal(Code.INVALID_CONFIG, f"null is no value of {', '.join(null)}")
    return TopicConfig.parse({each.name: each.value for each in wanted.configs})


def _counted(node: Node, wanted: Any) -> int:
    """Return the number of partitions of a new topic, for a request that does not assign replicas. Raises
    InvalidReplicationFactorError, Refusal.
    """
    if wanted.replication_factor not in (-1, 1):
        raise InvalidReplicationFactorError(
            f"replication factor {wanted.replication_factor}: there is one node, so it must be 1, or -1"
        )
    count = node.config.num_partitions if wanted.num_partitions == -1 else wanted.num_partitions
    if not 1 <= count <= MOST_PARTITIONS:
        raise Refusal(
            Code.INVALID_PARTITIONS,
            f"{wanted.num_partitions} partitions: must be 1 to {MOST_PARTITIONS}, or -1 for num.partitions",
        )
    return count


def _assigned(wanted: Any) -> int:
    """Return the number of partitions of a new topic, for a request that assigns replicas. Raises
    InvalidReplicaAssignmentError, Refusal.
    """
    if wanted.replication_factor != -1:
        raise Refusal(Code.INVALID_REQUEST, _ASSIGNED.format("replication factor"))
    if wanted.num_partitions != -1:
        raise Refusal(Code.INVALID_REQUEST, _ASSIGNED.format("the number of partitions"))
    for each in wanted.assignments:
        check_replicas(each.broker_ids)
    numbers = sorted(each.partition_index for each in wanted.assignments)
    if numbers != list(range(len(numbers))):
        raise InvalidReplicaAssignmentError(f"partitions {numbers}: must be 0, 1, 2 and so on")
    return len(numbers)


def _creatable(node: Node, name: str, count: int, topic_id: bytes, config: TopicConfig) -> Any:
    return _Created.CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=count,
        replication_factor=1,
        configs=[
            _Created.CreatableTopicConfigs(name=each.name, value=each.value, config_source=each.source)
            for each in config_entries.of_topic(config, config_entries.settings_of(node.store))
        ],
    )


# --- DeleteTopics ---------------------------------------------------------------------------------


def delete_topics(node: Node, request: Request) -> Any:
    """Delete topics by name, or from version 6 on also by id."""
    body = request.body
    asked = [(each.name, each.topic_id) for each in body.topics]
    asked += [(name, NO_ID) for name in body.topic_names]
    return in_worker(node, request, lambda: _delete_all(node, asked))


def _delete_all(node: Node, asked: list[tuple[str | None, bytes]]) -> Any:
    times, results = Counter(asked), []
    for name, topic_id in times:
        result = _Deleted.DeletableTopicResult(name=name, topic_id=topic_id)
        try:
            if times[name, topic_id] > 1:
                raise Refusal(Code.INVALID_REQUEST, "the topic is in the request twice")
            found = _to_delete(node, name, topic_id)
            result.name, result.topic_id = found.name, id_of(found)
            node.store.delete_topic(found.name)
        except REFUSED as error:
            result.error_code, result.error_message = code_and_message(error)
        results.append(result)
    return _Deleted(responses=results)


def _to_delete(node: Node, name: str | None, topic_id: bytes) -> TopicInfo:
    if (name is None) == (topic_id == NO_ID):
        raise Refusal(Code.INVALID_REQUEST, "a topic must be named by its name or by its id, not by both")
    topics = shown(node.store)
    found = with_id(topics, topic_id) if name is None else topics.get(name)
    if found is None:
        unknown = Code.UNKNOWN_TOPIC_ID if name is None else Code.UNKNOWN_TOPIC_OR_PARTITION
        raise Refusal(unknown, "there is no such topic")
    return found


# --- CreatePartitions -----------------------------------------------------------------------------


def create_partitions(node: Node, request: Request) -> Any:
    """Add partitions to topics; answer with success or an error for each topic."""
    return in_worker(node, request, lambda: _grow_all(node, request.body))


def _grow_all(node: Node, body: Any) -> Any:
    times = Counter(each.name for each in body.topics)
    results = []
    for each in {each.name: each for each in body.topics}.values():
        result = _Grown.CreatePartitionsTopicResult(name=each.name)
        try:
            if times[each.name] > 1:
                raise Refusal(Code.INVALID_REQUEST, f"topic {each.name!r} is in the request twice")
            _grow(node, each, validate_only=body.validate_only)
        except REFUSED as error:
            result.error_code, result.error_message = code_and_message(error)
        results.append(result)
    return _Grown(results=results)


def _grow(node: Node, wanted: Any, *, validate_only: bool) -> None:
    info = shown(node.store).get(wanted.name)
    if info is None:
        raise Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name!r}")
    check_not_internal(wanted.name, "its keys lie in partitions by the number that it was made with")
    if not info.partitions < wanted.count <= MOST_PARTITIONS:
        raise Refusal(
            Code.INVALID_PARTITIONS,
            f"{wanted.count} partitions: topic {wanted.name!r} has {info.partitions}, and they can only "
            f"become more, up to {MOST_PARTITIONS}",
        )
    if wanted.assignments is not None:
        _check_new(wanted, wanted.count - info.partitions)
    if not validate_only:
        node.store.add_partitions(wanted.name, wanted.count)


def _check_new(wanted: Any, more: int) -> None:
    if len(wanted.assignments) != more:
        raise InvalidReplicaAssignmentError(
            f"{len(wanted.assignments)} assignments for {more} more partitions: there must be as many"
        )
    for each in wanted.assignments:
        check_replicas(each.broker_ids)


HANDLERS = {
    Api.CREATE_TOPICS: create_topics,
    Api.DELETE_TOPICS: delete_topics,
    Api.CREATE_PARTITIONS: create_partitions,
}
