"""DeleteRecords, ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments: the administration of
existing partitions.

Clients see one replica of each partition, so reassignments change nothing. In a replicated store,
ElectLeaders elects one of the store's directories; any other store has no elections. Source:
ReplicaManager.deleteRecords, ReplicationControlManager's electLeaders and alterPartitionReassignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore.errors import ElectionNotNeededError, NoReassignmentInProgressError, copy_of
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.replicated import replicated
from segstore.server.request import Request
from segstore.server.topics import check_replicas, shown
from segstore.storage.meta.topic_info import TopicInfo

from .refusal import REFUSED, Refusal, code_and_message
from .working import in_worker

_Trimmed = structs("DeleteRecordsResponse")
_Elected = structs("ElectLeadersResponse")
_Reassigning = structs("AlterPartitionReassignmentsResponse")
_Reassigned = structs("ListPartitionReassignmentsResponse")
_NO_OFFSET = -1
_ELECTIONS = {0: "preferred", 1: "unclean"}


# --- DeleteRecords --------------------------------------------------------------------------------


def delete_records(node: Node, request: Request) -> Any:
    """Raise log start offsets to the requested offsets. The requested offset -1 stands for the high
    watermark.
    """
    return in_worker(node, request, lambda: _trim_all(node, request.body))


def _trim_all(node: Node, body: Any) -> Any:
    return _Trimmed(
        topics=[
            _Trimmed.DeleteRecordsTopicResult(
                name=topic.name, partitions=[_trimmed(node, topic.name, each) for each in topic.partitions]
            )
            for topic in body.topics
        ]
    )


def _trimmed(node: Node, topic: str, wanted: Any) -> Any:
    result = _Trimmed.DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=_NO_OFFSET
    )
    try:
        result.low_watermark = _trim(node, topic, wanted)
    except REFUSED as error:
        result.error_code, _ = code_and_message(error)
    return result


def _trim(node: Node, topic: str, wanted: Any) -> int:
    """Raise the log start offset of a partition; return the new log start offset."""
    log = node.store.partition(topic, wanted.partition_index)
    if "delete" not in node.store.topics()[topic].settings.cleanup_policy:
        raise Refusal(
            Code.POLICY_VIOLATION, f"the cleanup.policy of topic {topic!r} has no delete: its records stay"
        )
    if wanted.offset < _NO_OFFSET:
        raise Refusal(Code.OFFSET_OUT_OF_RANGE, f"offset {wanted.offset}: must be at least -1")
    return log.delete_records(wanted.offset)


# --- ElectLeaders ---------------------------------------------------------------------------------


def elect_leaders(node: Node, request: Request) -> Any:
    """Elect leaders of the requested partitions, or of all partitions if the request's list is null."""
    return in_worker(node, request, lambda: _elect_all(node, request.body))


def _elect_all(node: Node, body: Any) -> Any:
    election, topics = _ELECTIONS.get(body.election_type), shown(node.store)
    if election is None:
        return _Elected(error_code=Code.INVALID_REQUEST)
    everything = body.topic_partitions is None
    if everything:
        asked = {name: info.partition_ids for name, info in topics.items()}
    else:
        asked = {each.topic: tuple(each.partitions) for each in body.topic_partitions}
    results = []
    for topic, numbers in asked.items():
        found = [_elected(node, topics, topic, number, election) for number in numbers]
        # As in Kafka, an answer for all partitions leaves out those that need no election.
        if everything:
            found = [each for each in found if each.error_code != Code.ELECTION_NOT_NEEDED]
        results.append(_Elected.ReplicaElectionResult(topic=topic, partition_result=found))
    return _Elected(replica_election_results=results)


def _elected(node: Node, topics: Mapping[str, TopicInfo], topic: str, number: int, election: str) -> Any:
    result = _Elected.PartitionResult(partition_id=number, error_message=None)
    try:
        _check_there(topics, topic, number)
        _elect(node, topic, number, election)
    except REFUSED as error:
        result.error_code, result.error_message = code_and_message(error)
    return result


def _check_there(topics: Mapping[str, TopicInfo], topic: str, number: int) -> None:
    if topic not in topics or number not in topics[topic].partition_ids:
        raise Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{number}")


def _elect(node: Node, topic: str, number: int, election: str) -> None:
    """Elect a leader. Raises the errors of `ReplicatedStore.elect_leaders`, and ElectionNotNeededError if the
    store has no replicas.
    """
    store = replicated(node.store)
    if store is None:
        raise ElectionNotNeededError(f"{topic}-{number} has one replica, which leads")
    # As in Kafka, the client need not confirm an unclean election. So this line confirms it.
    key = topic, number
    error = store.elect_leaders(election, [key], confirm=election == "unclean")[key]
    if error is not None:
        raise copy_of(error)


# --- AlterPartitionReassignments, ListPartitionReassignments ---------------------------------------


def alter_partition_reassignments(node: Node, request: Request) -> Any:
    """Answer with an error code for each partition. NONE is answered only if the requested replicas are the
    current replicas (KIP-455).
    """
    body, topics = request.body, shown(node.store)
    return _Reassigning(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=None,
        responses=[
            _Reassigning.ReassignableTopicResponse(
                name=topic.name,
                partitions=[_reassigned(topics, topic.name, each) for each in topic.partitions],
            )
            for topic in body.topics
        ],
    )


def _reassigned(topics: Mapping[str, TopicInfo], topic: str, wanted: Any) -> Any:
    number = wanted.partition_index
    result = _Reassigning.ReassignablePartitionResponse(partition_index=number, error_message=None)
    try:
        _check_there(topics, topic, number)
        if wanted.replicas is None:
            raise NoReassignmentInProgressError(f"no reassignment of {topic}-{number} is under way")
        check_replicas(wanted.replicas)
    except REFUSED as error:
        result.error_code, result.error_message = code_and_message(error)
    return result


def list_partition_reassignments(_node: Node, _request: Request) -> Any:
    """Return an answer without reassignments, because a single node never has a reassignment."""
    return _Reassigned(error_message=None)


HANDLERS = {
    Api.DELETE_RECORDS: delete_records,
    Api.ELECT_LEADERS: elect_leaders,
    Api.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    Api.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}
