"""Authorization of the APIs of groups and their committed offsets."""

from __future__ import annotations

import copy
from typing import Any

from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorized import NOT_ASKED, AclOperation
from segstore.server.request import Request
from segstore.server.security.allow_list import ResourceType

from .judge import (
    DENIED,
    Caller,
    Judge,
    Verdict,
    both,
    by_id,
    by_id_since,
    copied,
    denial,
    itself,
    named,
    of,
    part,
    parts,
    whole,
)

_O, _GROUP, _TOPIC = AclOperation, ResourceType.GROUP, ResourceType.TOPIC
_member = whole(_O.READ, _GROUP, of("group_id"))
_MANY_GROUPS, _FETCHES_BY_ID = 8, 10
_KEYS = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
"""Key type of FindCoordinator -> resource type of the keys."""
_SHARE = 2
"""The key type of share partitions, which only brokers look up."""
_BATCHED = 4
_TOPICS_DENIED = "The group has described topic(s) that the client is not authorized to describe."


def _find_coordinator(caller: Caller, request: Request) -> Verdict:
    body, resource = request.body, _KEYS.get(request.body.key_type)
    if body.key_type == _SHARE:
        return whole(_O.CLUSTER_ACTION, ResourceType.CLUSTER)(caller, request)
    if resource is None:  # the handler refuses an unknown key type
        return None
    if request.version < _BATCHED:
        return whole(_O.DESCRIBE, resource, of("key"))(caller, request)
    return parts(_O.DESCRIBE, resource, "coordinator_keys", "coordinators", itself)(caller, request)


def _describe_groups(caller: Caller, request: Request) -> Verdict:
    verdict = parts(_O.DESCRIBE, _GROUP, "groups", "groups", itself)(caller, request)
    asked = request.body.include_authorized_operations

    def mend(answer: Any) -> Any:
        if verdict is not None:
            answer = verdict(answer)
        for each in answer.groups:
            if asked and not each.error_code:
                each.authorized_operations = caller.operations(_GROUP, each.group_id)
        return answer

    return mend


def _list_groups(caller: Caller, _request: Request) -> Verdict:
    """If the caller may not describe the cluster, leave out the groups that the caller may not describe."""
    if caller.may(_O.DESCRIBE, ResourceType.CLUSTER):
        return None

    def mend(answer: Any) -> Any:
        answer.groups = [each for each in answer.groups if caller.may(_O.DESCRIBE, _GROUP, each.group_id)]
        return answer

    return mend


# --- OffsetFetch -------------------------------------------------------------------------------


def _offset_fetch(caller: Caller, request: Request) -> Verdict:
    if request.version < _MANY_GROUPS:
        return both(whole(_O.DESCRIBE, _GROUP, of("group_id")), _offsets_of_one)(caller, request)
    groups = part(
        request,
        "groups",
        "groups",
        lambda each: not caller.may(_O.DESCRIBE, _GROUP, each.group_id),
        DENIED[_GROUP],
    )
    refused: dict[str, list[Any]] = {}
    request.body = copy.copy(request.body)
    request.body.groups = [_stripped(caller, request, each, refused) for each in request.body.groups]

    def mend(answer: Any) -> Any:
        for each in answer.groups:
            each.topics = _describable(caller, each.topics)
            if not each.error_code:
                each.topics += refused.get(each.group_id, [])
        return answer if groups is None else groups(answer)

    return mend


def _stripped(caller: Caller, request: Request, group: Any, refused: dict[str, list[Any]]) -> Any:
    """Return a group of the request without the topics that the caller may not describe; add a struct with an
    error for each of these topics to the group's list in `refused`, whose keys are group ids.
    """
    topics = group.topics or []
    name = by_id if request.version >= _FETCHES_BY_ID else named("name")
    allowed = [_may_describe(caller, name(caller, each)) for each in topics]
    if all(allowed):
        return group
    theirs, others = copy.copy(group), copy.copy(group)
    theirs.topics = [each for each, may in zip(topics, allowed, strict=True) if not may]
    others.topics = [each for each, may in zip(topics, allowed, strict=True) if may]
    body = copy.copy(request.body)
    body.groups = [theirs]
    answer: Any = denial(copied(request, body), DENIED[_TOPIC])
    (denied,) = answer.groups
    refused.setdefault(group.group_id, []).extend(_without_offsets(denied.topics))
    return others


def _may_describe(caller: Caller, topic: str | None) -> bool:
    return topic is None or caller.may(_O.DESCRIBE, _TOPIC, topic)


def _offsets_of_one(caller: Caller, request: Request) -> Verdict:
    strip = parts(_O.DESCRIBE, _TOPIC, "topics", "topics", named("name"))(caller, request)

    def mend(answer: Any) -> Any:
        answer.topics = _describable(caller, answer.topics)
        if strip is not None and not answer.error_code:
            answer = strip(answer)
            for each in answer.topics:
                _without_offsets([each])
        return answer

    return mend


def _describable(caller: Caller, topics: list[Any]) -> list[Any]:
    """Return the topics that the caller may describe. Topics with an unknown id have no name, and are
    returned too.
    """
    return [each for each in topics if not each.name or caller.may(_O.DESCRIBE, _TOPIC, each.name)]


def _without_offsets(topics: list[Any]) -> list[Any]:
    for topic in topics:
        for each in topic.partitions:
            if each.error_code:
                each.committed_offset, each.metadata = -1, ""
    return topics


# --- groups of KIP-848, and share groups -------------------------------------------------------


def _heartbeat(caller: Caller, request: Request) -> Verdict:
    verdict = _member(caller, request)
    if verdict is not None:
        return verdict
    names = request.body.subscribed_topic_names or ()
    if all(caller.may(_O.DESCRIBE, _TOPIC, name) for name in names):
        return None
    return denial(request, DENIED[_TOPIC])


def _describe_modern(caller: Caller, request: Request) -> Verdict:
    """Describe a group only if the caller may describe all topics of its assignments."""
    verdict = parts(_O.DESCRIBE, _GROUP, "group_ids", "groups", itself)(caller, request)
    asked = request.body.include_authorized_operations

    def mend(answer: Any) -> Any:
        answer.groups = [_visible(caller, each) for each in answer.groups]
        if verdict is not None:
            answer = verdict(answer)
        for each in answer.groups:
            known = asked and not each.error_code
            each.authorized_operations = caller.operations(_GROUP, each.group_id) if known else NOT_ASKED
        return answer

    return mend


def _visible(caller: Caller, group: Any) -> Any:
    names = {
        each.topic_name
        for member in group.members
        for assignment in (member.assignment, getattr(member, "target_assignment", None))
        if assignment is not None
        for each in assignment.topic_partitions
    }
    if all(caller.may(_O.DESCRIBE, _TOPIC, name) for name in names):
        return group
    return type(group)(
        group_id=group.group_id, error_code=Code.TOPIC_AUTHORIZATION_FAILED, error_message=_TOPICS_DENIED
    )


JUDGES: dict[Api, Judge] = {
    Api.FIND_COORDINATOR: _find_coordinator,
    Api.JOIN_GROUP: _member,
    Api.SYNC_GROUP: _member,
    Api.HEARTBEAT: _member,
    Api.LEAVE_GROUP: _member,
    Api.LIST_GROUPS: _list_groups,
    Api.DESCRIBE_GROUPS: _describe_groups,
    Api.DELETE_GROUPS: parts(_O.DELETE, _GROUP, "groups_names", "results", itself),
    Api.OFFSET_COMMIT: by_id_since(
        10, lambda name: both(_member, parts(_O.READ, _TOPIC, "topics", "topics", name))
    ),
    Api.OFFSET_FETCH: _offset_fetch,
    Api.OFFSET_DELETE: both(
        whole(_O.DELETE, _GROUP, of("group_id")), parts(_O.READ, _TOPIC, "topics", "topics", named("name"))
    ),
    Api.CONSUMER_GROUP_HEARTBEAT: _heartbeat,
    Api.CONSUMER_GROUP_DESCRIBE: _describe_modern,
    Api.SHARE_GROUP_HEARTBEAT: _heartbeat,
    Api.SHARE_GROUP_DESCRIBE: _describe_modern,
}
