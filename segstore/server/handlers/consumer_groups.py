"""ConsumerGroupHeartbeat, ConsumerGroupDescribe: the APIs of consumer groups (KIP-848).

Threads: handlers run in the loop's thread and call the group coordinator in worker threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from segstore.coordinator.group.consumers.group import ConsumerGroupInfo
from segstore.coordinator.group.consumers.member import JOIN_EPOCH, ConsumerMember
from segstore.coordinator.group.consumers.membership import ConsumerHeartbeat
from segstore.coordinator.group.consumers.topics import AssignableTopics, MayDescribe
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.consumer_schema import Assignment
from segstore.coordinator.shared import shared
from segstore.errors import InvalidGroupIdError, InvalidRequestError, SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.server.security.allow_list import ResourceType
from segstore.server.topics import shown
from segstore.storage.store.store import Store

from .coordinating import coordinated, coordinator_code, each_described, heartbeat_answer

_Beaten = structs("ConsumerGroupHeartbeatResponse")
_Described = structs("ConsumerGroupDescribeResponse")
_NAMES_ITSELF = 1
"""The first request version in which a member makes its own member id (KIP-1082)."""
_CLASSIC, _CONSUMER = 0, 1
"""The values of the field `member_type`: a classic member, and a member by KIP-848."""


# --- ConsumerGroupHeartbeat ------------------------------------------------------------------------


def consumer_group_heartbeat(node: Node, request: Request) -> Later:
    """Handle a member's heartbeat. The answer has the member's epoch, and the member's assignment if the
    assignment has changed.
    """
    body, asked = request.body, _asked(node, request)

    def run() -> Any:
        try:
            if not body.group_id.strip():
                raise InvalidRequestError("group_id must not be empty")
            if asked.epoch == JOIN_EPOCH and request.version >= _NAMES_ITSELF and not asked.member_id.strip():
                raise InvalidRequestError("member_id must not be empty")
            beaten = shared(node.store, GroupCoordinator).consumer_heartbeat(body.group_id, asked)
            return heartbeat_answer(_Beaten, beaten)
        except SegstoreError as error:
            return _Beaten(error_code=coordinator_code(error), error_message=str(error))

    return coordinated(node, request, run, lambda code: _Beaten(error_code=code))


def _asked(node: Node, request: Request) -> ConsumerHeartbeat:
    body, names = request.body, request.body.subscribed_topic_names
    return ConsumerHeartbeat(
        member_id=body.member_id,
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        topic_names=None if names is None else tuple(names),
        topic_regex=body.subscribed_topic_regex,
        server_assignor=body.server_assignor,
        owned=_owned(body.topic_partitions),
        client_id=request.client_id or "",
        client_host=f"/{request.channel.peer}",
        may_describe=_may_describe(node, request),
    )


def _may_describe(node: Node, request: Request) -> MayDescribe | None:
    """Return a function that returns whether the client may describe a topic; return None if the server has
    no authorizer.
    """
    if node.authorizer is None:
        return None
    principal = request.channel.principal
    return lambda topic: node.allows(principal, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


def _owned(topics: Iterable[Any] | None) -> Assignment | None:
    if topics is None:
        return None
    found: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        held = found.get(topic.topic_id, frozenset())
        found[topic.topic_id] = held.union(topic.partitions)
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


# --- ConsumerGroupDescribe -------------------------------------------------------------------------


def consumer_group_describe(node: Node, request: Request) -> Later:
    """Answer with a description or an error for each group. The error of a classic group is
    GROUP_ID_NOT_FOUND.
    """
    describe = partial(_described, node.store)
    return each_described(node, request, request.body.group_ids, _Described, describe)


def _described(store: Store, group: str) -> Any:
    kind = _Described.DescribedGroup
    try:
        if not group:
            raise InvalidGroupIdError("a group id must not be empty")
        info = shared(store, GroupCoordinator).describe_consumers(group)
    except SegstoreError as error:
        return kind(group_id=group, error_code=coordinator_code(error), error_message=str(error))
    if info is None:
        why = f"There is no consumer group {group!r}."
        return kind(group_id=group, error_code=Code.GROUP_ID_NOT_FOUND, error_message=why)
    return _group(group, info, AssignableTopics(shown(store)))


def _group(group: str, info: ConsumerGroupInfo, topics: AssignableTopics) -> Any:
    return _Described.DescribedGroup(
        group_id=group,
        group_state=info.state.value,
        group_epoch=info.epoch,
        assignment_epoch=info.target_epoch,
        assignor_name=info.assignor,
        members=[_member(each, info.targets.get(each.member_id, {}), topics) for each in info.members],
    )


def _member(member: ConsumerMember, target: Assignment, topics: AssignableTopics) -> Any:
    subscription = member.subscription
    return _Described.Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topic_names),
        subscribed_topic_regex=subscription.topic_regex,
        assignment=_assignment(member.current.assigned, topics),
        target_assignment=_assignment(target, topics),
        member_type=_CONSUMER if subscription.classic is None else _CLASSIC,
    )


def _assignment(assignment: Assignment, topics: AssignableTopics) -> Any:
    return _Described.Assignment(
        topic_partitions=[
            _Described.TopicPartitions(
                topic_id=topic_id, topic_name=topics.names[topic_id], partitions=sorted(numbers)
            )
            for topic_id, numbers in assignment.items()
            if topic_id in topics.names
        ]
    )


HANDLERS = {
    Api.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    Api.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
}
