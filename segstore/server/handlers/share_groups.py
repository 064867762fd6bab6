"""ShareGroupHeartbeat, ShareGroupDescribe: the APIs of share groups (KIP-932; Kafka:
GroupCoordinatorService).

Threads: handlers run in the loop's thread and call the group coordinator in worker threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group.share.group import ShareGroupInfo
from segstore.coordinator.group.share.member import ShareHeartbeat, ShareMember
from segstore.coordinator.offsets.consumer_schema import Assignment
from segstore.coordinator.shared import shared
from segstore.errors import SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.server.topics import shown
from segstore.storage.store.store import Store

from .coordinating import coordinated, coordinator_code, each_described, heartbeat_answer
from .share_requests import has_share_groups

_Beaten = structs("ShareGroupHeartbeatResponse")
_Described = structs("ShareGroupDescribeResponse")


# --- ShareGroupHeartbeat ---------------------------------------------------------------------------


def share_group_heartbeat(node: Node, request: Request) -> Any:
    """Handle a member's heartbeat. The answer has the member's epoch, and the member's assignment if the
    assignment has changed.
    """
    if not has_share_groups(node):
        return _Beaten(error_code=Code.UNSUPPORTED_VERSION)
    body, asked = request.body, _asked(request)

    def run() -> Any:
        try:
            beaten = shared(node.store, GroupCoordinator).share_heartbeat(body.group_id, asked)
            return heartbeat_answer(_Beaten, beaten)
        except SegstoreError as error:
            return _Beaten(error_code=coordinator_code(error), error_message=str(error))

    return coordinated(node, request, run, lambda code: _Beaten(error_code=code))


def _asked(request: Request) -> ShareHeartbeat:
    body, names = request.body, request.body.subscribed_topic_names
    return ShareHeartbeat(
        member_id=body.member_id,
        epoch=body.member_epoch,
        rack_id=body.rack_id,
        topic_names=None if names is None else tuple(names),
        client_id=request.client_id or "",
        client_host=f"/{request.channel.peer}",
    )


# --- ShareGroupDescribe ----------------------------------------------------------------------------


def share_group_describe(node: Node, request: Request) -> Any:
    """Answer with a description or an error for each group. The error of a group that is no share group is
    GROUP_ID_NOT_FOUND.
    """
    if not has_share_groups(node):
        return _Described(groups=[_failed(each, Code.UNSUPPORTED_VERSION) for each in request.body.group_ids])
    describe = partial(_described, node.store)
    return each_described(node, request, request.body.group_ids, _Described, describe)


def _failed(group: str, code: Code, why: str | None = None) -> Any:
    return _Described.DescribedGroup(group_id=group, error_code=code, error_message=why)


def _described(store: Store, group: str) -> Any:
    try:
        info = shared(store, GroupCoordinator).describe_share(group)
    except SegstoreError as error:
        return _failed(group, coordinator_code(error), str(error))
    if info is None:
        return _failed(group, Code.GROUP_ID_NOT_FOUND, f"Group {group} not found.")
    return _group(group, info, AssignableTopics(shown(store)))


def _group(group: str, info: ShareGroupInfo, topics: AssignableTopics) -> Any:
    return _Described.DescribedGroup(
        group_id=group,
        group_state=info.state.value,
        group_epoch=info.epoch,
        assignment_epoch=info.target_epoch,
        assignor_name=info.assignor,
        members=[_member(each, topics) for each in info.members],
    )


def _member(member: ShareMember, topics: AssignableTopics) -> Any:
    subscription = member.subscription
    return _Described.Member(
        member_id=member.member_id,
        rack_id=subscription.rack_id,
        member_epoch=member.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topic_names),
        assignment=_assignment(member.current.assigned, topics),
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
    Api.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    Api.SHARE_GROUP_DESCRIBE: share_group_describe,
}
