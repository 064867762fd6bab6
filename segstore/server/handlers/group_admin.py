"""ListGroups, DescribeGroups, DeleteGroups: the administration of groups.

Threads: handlers run in the loop's thread and call the coordinator in worker threads, because the
coordinator may read a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from segstore.coordinator.consumer_protocol import PROTOCOL_TYPE
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.classic.member import ClassicGroupState, GroupInfo
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.shared import shared
from segstore.errors import GroupNotFoundError, SegstoreError, UnsupportedVersionError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.storage.store.store import Store

from .coordinating import coordinated, coordinator_code, each_described

_Listed = structs("ListGroupsResponse")
_Described = structs("DescribeGroupsResponse")
_Deleted = structs("DeleteGroupsResponse")

CLASSIC, CONSUMER, SHARE, UNKNOWN = "classic", "consumer", "share", "Unknown"
"""Kafka's names of the group types. UNKNOWN is the type, and the state too, of a group whose protocol is
unsupported.
"""
_TELLS_MISSING = 6


# --- ListGroups ----------------------------------------------------------------------------------


def list_groups(node: Node, request: Request) -> Later:
    """Answer with all groups that match the state filter and the type filter. Case is ignored; an empty
    filter matches all groups.
    """
    states = {each.lower() for each in request.body.states_filter}
    types = {each.lower() for each in request.body.types_filter}

    def run() -> Any:
        return _Listed(
            groups=[
                each
                for each in _listings(node.store)
                if (not states or each.group_state.lower() in states)
                and (not types or each.group_type.lower() in types)
            ]
        )

    return coordinated(node, request, run, lambda code: _Listed(error_code=code))


def _listings(store: Store) -> Iterator[Any]:
    groups = shared(store, GroupCoordinator)
    for group in sorted(groups.ids()):
        try:
            info = groups.describe(group)
        except UnsupportedVersionError:
            yield _Listed.ListedGroup(group_id=group, group_state=UNKNOWN, group_type=UNKNOWN)
            continue
        if info is not None:
            yield _listing(group, info.protocol_type, info.state.value, CLASSIC)
        elif (consumers := groups.describe_consumers(group)) is not None:
            yield _listing(group, PROTOCOL_TYPE, consumers.state.value, CONSUMER)
        elif (share := groups.describe_share(group)) is not None:
            yield _listing(group, SHARE, share.state.value, SHARE)


def _listing(group: str, protocol: str, state: str, kind: str) -> Any:
    return _Listed.ListedGroup(group_id=group, protocol_type=protocol, group_state=state, group_type=kind)


# --- DescribeGroups ------------------------------------------------------------------------------


def describe_groups(node: Node, request: Request) -> Later:
    """Answer with a description or an error for each group in the request. The state of a missing group, and
    of a group that is not classic, is Dead; from version 6 on such a group also gets the error
    GROUP_ID_NOT_FOUND. Groups that are not classic are described by ConsumerGroupDescribe and
    ShareGroupDescribe.
    """

    def describe(group: str) -> Any:
        return _described(shared(node.store, GroupCoordinator), group, request.version)

    return each_described(node, request, request.body.groups, _Described, describe)


def _described(groups: GroupCoordinator, group: str, version: int) -> Any:
    kind = _Described.DescribedGroup
    try:
        info = groups.describe(group)
    except SegstoreError as error:
        return kind(group_id=group, error_code=coordinator_code(error), error_message=str(error))
    if info is not None:
        return _group(group, info)
    if version < _TELLS_MISSING:
        return kind(group_id=group, group_state=ClassicGroupState.DEAD.value)
    why = f"Group {group} not found."
    return kind(
        group_id=group,
        group_state=ClassicGroupState.DEAD.value,
        error_code=Code.GROUP_ID_NOT_FOUND,
        error_message=why,
    )


def _group(group: str, info: GroupInfo) -> Any:
    """Return the struct of a group for the answer. The struct has a protocol and member metadata only if the
    group is stable (Kafka: ClassicGroup).
    """
    stable = info.state is ClassicGroupState.STABLE
    members = [
        _Described.DescribedGroupMember(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            member_metadata=each.subscription if stable else b"",
            member_assignment=each.assignment,
        )
        for each in info.members
    ]
    return _Described.DescribedGroup(
        group_id=group,
        group_state=info.state.value,
        protocol_type=info.protocol_type,
        protocol_data=info.protocol if stable else "",
        members=members,
    )


# --- DeleteGroups --------------------------------------------------------------------------------


def delete_groups(node: Node, request: Request) -> Later:
    """Delete the groups in the request that have no members; answer with an error code for each group. A
    group that is in the request twice is deleted once.

    As in Kafka, the empty group id gets GROUP_ID_NOT_FOUND.
    """
    names = list(dict.fromkeys(request.body.groups_names))
    kind = _Deleted.DeletableGroupResult

    def run() -> Any:
        groups = Groups(node.store)
        return _Deleted(results=[_deleted(groups, name) for name in names])

    def failed(code: Code) -> Any:
        return _Deleted(results=[kind(group_id=name, error_code=code) for name in names])

    return coordinated(node, request, run, failed)


def _deleted(groups: Groups, name: str) -> Any:
    result = _Deleted.DeletableGroupResult(group_id=name)
    try:
        if not name:
            raise GroupNotFoundError("there is no group without a name")
        groups.delete_now(name)
    except SegstoreError as error:
        result.error_code, result.error_message = coordinator_code(error), str(error)
    return result


HANDLERS = {
    Api.LIST_GROUPS: list_groups,
    Api.DESCRIBE_GROUPS: describe_groups,
    Api.DELETE_GROUPS: delete_groups,
}
