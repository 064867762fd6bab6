"""Converts a classic group to a consumer group (KIP-848). Also converts a consumer group to a classic group,
if all its members speak the classic protocol (Kafka: ConsumerGroup.fromClassicGroup,
ClassicGroup.fromConsumerGroup).

On disk: nothing. Threads: under the group's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from segstore.coordinator.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    version_of,
)
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.group.classic.group import ClassicGroup
from segstore.coordinator.group.classic.member import (
    ClassicGroupMember,
    ClassicGroupState,
    Joining,
    Protocols,
)
from segstore.coordinator.group.consumers.classic_members import subscription
from segstore.coordinator.group.consumers.group import ConsumerGroup
from segstore.coordinator.group.consumers.member import ConsumerMember
from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.offsets.consumer_schema import (
    Assignment,
    Change,
    ClassicMember,
    Current,
    GroupEpoch,
    GroupRecordType,
    MemberState,
    RecordKey,
    TargetAssignment,
    TargetEpoch,
)
from segstore.errors import GroupNotFoundError, InvalidArgumentError

# --- to KIP-848 ----------------------------------------------------------------------------------


def upgraded(group: ClassicGroup, topics: AssignableTopics) -> list[Change]:
    """Return the records that turn a classic group into a consumer group. The generation of the classic group
    becomes the group epoch, and each member keeps its last assignment. If a cooperative member still owns
    partitions outside of its last assignment, it must revoke these partitions first. Raises
    GroupNotFoundError if the members are not consumers, or if their subscriptions or assignments can't be
    decoded.
    """
    if group.protocol_type != PROTOCOL_TYPE:
        raise GroupNotFoundError(
            f"group {group.group_id!r} is of type {group.protocol_type!r}, and can't become a consumer group"
        )
    changes: list[Change] = [(RecordKey(GroupRecordType.EPOCH), GroupEpoch(group.generation))]
    try:
        assigned = {
            member.member_id: topics.assignment(decode_assignment(member.assignment))
            for member in group.members.values()
        }
        owned = {pair for each in assigned.values() for pair in _pairs(each)}
        for member in group.members.values():
            changes += _upgraded_member(member, group, topics, assigned[member.member_id], owned)
    except InvalidArgumentError as error:
        raise GroupNotFoundError(f"group {group.group_id!r} can't become a consumer group: {error}") from None
    return [*changes, (RecordKey(GroupRecordType.TARGET_EPOCH), TargetEpoch(group.generation))]


def _upgraded_member(
    member: ClassicGroupMember,
    group: ClassicGroup,
    topics: AssignableTopics,
    assigned: Assignment,
    owned: set[tuple[bytes, int]],
) -> list[Change]:
    """Return a member's records. `owned` has the assigned partitions of all members, and the partitions that
    earlier members must revoke. If this member reports that it owns a partition that is not in `owned`,
    the member must revoke the partition, and the partition is added to `owned`.
    """
    protocol = group.protocol or group.vote()
    # A member that has just joined may not support the protocol that the group chose before.
    encoded = member.subscription(protocol) or member.protocols[0][1]
    decoded = decode_subscription(encoded, member.group_instance_id)
    revoking: dict[bytes, set[int]] = {}
    for topic, number in set(_pairs(topics.assignment(decoded.owned))) - owned:
        revoking.setdefault(topic, set()).add(number)
        owned.add((topic, number))
    state = MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE
    gives_up = {topic: frozenset(numbers) for topic, numbers in revoking.items()}
    epoch, name = group.generation, member.member_id
    since = {
        topic: dict.fromkeys({*assigned.get(topic, ()), *gives_up.get(topic, ())}, epoch)
        for topic in {**assigned, **gives_up}
    }
    return [
        (RecordKey(GroupRecordType.MEMBER, name), subscription(member.as_joining(PROTOCOL_TYPE), decoded)),
        (RecordKey(GroupRecordType.TARGET, name), TargetAssignment(assigned)),
        (RecordKey(GroupRecordType.CURRENT, name), Current(epoch, epoch, state, assigned, gives_up, since)),
    ]


def _pairs(assignment: Assignment) -> Iterator[tuple[bytes, int]]:
    return ((topic, number) for topic, numbers in assignment.items() for number in numbers)


# --- to the classic protocol -----------------------------------------------------------------------


def downgrade(
    group: ConsumerGroup, to: ClassicGroup, members: Iterable[ClassicGroupMember], topics: AssignableTopics
) -> dict[str, bytes]:
    """Turn the classic group `to`, which is empty, into a stable group of these members. The epoch of the
    consumer group becomes the generation of `to`. Return the members' assignments by member id: each is the
    member's target assignment, encoded.
    """
    for member in members:
        to.take_up(member)
        to.leader = to.leader or member.member_id
    to.protocol_type, to.generation, to.state = PROTOCOL_TYPE, group.epoch, ClassicGroupState.STABLE
    to.protocol = to.vote()
    for member_id, member in to.members.items():
        version = version_of(member.subscription(to.protocol))
        member.assignment = _encoded(group.target(member_id), topics, version)
        member.synced = True
    return {member_id: member.assignment for member_id, member in to.members.items()}


def _encoded(assignment: Assignment, topics: AssignableTopics, version: int) -> bytes:
    return encode_assignment(topics.partitions(assignment), None, version)


def classic_member(member: ConsumerMember, classic: ClassicMember, now: float) -> ClassicGroupMember:
    """Return a consumer group's member as a classic group's member; the member's session begins at `now`."""
    value = member.subscription
    joining = Joining(
        protocols=classic.protocols,
        group_instance_id=value.instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        session_timeout_ms=classic.session_timeout_ms,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        protocol_type=PROTOCOL_TYPE,
    )
    return ClassicGroupMember(member.member_id, joining, now)


def stand_in(member: ConsumerMember, topics: frozenset[str], joining: Joining) -> ClassicMember:
    """Return a `ClassicMember` with the protocols of `joining`, each with `topics` as its subscription. A
    KIP-848 member with this `classic` field counts as a member of the classic protocol, so that the static
    member that sent `joining` can replace the KIP-848 member.
    """
    encoded = encode_subscription(MemberSubscription(tuple(sorted(topics))))
    protocols: Protocols = tuple((name, encoded) for name, _ in joining.protocols)
    return ClassicMember(joining.session_timeout_ms, protocols)
