"""What a group is by the other protocol: a classic group as a consumer group (KIP-848), and a consumer group
whose members speak the classic protocol as a classic group (Kafka: ConsumerGroup.fromClassicGroup,
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
from segstore.coordinator.group.assignors.base import MemberSubscription as Told
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
    """Return the records of a classic group as a consumer group: its generation is the epoch, and all members
    have what they were assigned last. Cooperative members may still have partitions that they had when they
    joined: they have to give those up first. Raises GroupNotFoundError where its members are no consumers, or
    what they say can't be read.
    """
    if group.protocol_type != PROTOCOL_TYPE:
        raise GroupNotFoundError(
            f"group {group.group_id!r} is of type {group.protocol_type!r}, and can't become a consumer group"
        )
    changes: list[Change] = [(RecordKey(GroupRecordType.EPOCH), GroupEpoch(group.generation))]
    try:
        given = {
            member.member_id: topics.assignment(decode_assignment(member.assignment))
            for member in group.members.values()
        }
        held = {pair for each in given.values() for pair in _pairs(each)}
        for member in group.members.values():
            changes += _upgraded_member(member, group, topics, given[member.member_id], held)
    except InvalidArgumentError as error:
        raise GroupNotFoundError(f"group {group.group_id!r} can't become a consumer group: {error}") from None
    return [*changes, (RecordKey(GroupRecordType.TARGET_EPOCH), TargetEpoch(group.generation))]


def _upgraded_member(
    member: ClassicGroupMember,
    group: ClassicGroup,
    topics: AssignableTopics,
    given: Assignment,
    held: set[tuple[bytes, int]],
) -> list[Change]:
    """Return the records of a member; `held`, the partitions that members have, gets those of this one."""
    protocol = group.protocol or group.vote()
    # A member that has just come may not have the protocol that was chosen before.
    said = member.subscription(protocol) or member.protocols[0][1]
    told = decode_subscription(said, member.group_instance_id)
    revoking: dict[bytes, set[int]] = {}
    for topic, number in set(_pairs(topics.assignment(told.owned))) - held:
        revoking.setdefault(topic, set()).add(number)
        held.add((topic, number))
    state = MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE
    gives_up = {topic: frozenset(numbers) for topic, numbers in revoking.items()}
    epoch, name = group.generation, member.member_id
    since = {
        topic: dict.fromkeys({*given.get(topic, ()), *gives_up.get(topic, ())}, epoch)
        for topic in {**given, **gives_up}
    }
    return [
        (RecordKey(GroupRecordType.MEMBER, name), subscription(member.as_joining(PROTOCOL_TYPE), told)),
        (RecordKey(GroupRecordType.TARGET, name), TargetAssignment(given)),
        (RecordKey(GroupRecordType.CURRENT, name), Current(epoch, epoch, state, given, gives_up, since)),
    ]


def _pairs(assignment: Assignment) -> Iterator[tuple[bytes, int]]:
    return ((topic, number) for topic, numbers in assignment.items() for number in numbers)


# --- to the classic protocol -----------------------------------------------------------------------


def downgrade(
    group: ConsumerGroup, to: ClassicGroup, members: Iterable[ClassicGroupMember], topics: AssignableTopics
) -> dict[str, bytes]:
    """Make `to`, an empty classic group, a stable one of these members, with the consumer group's epoch as
    its generation; return their assignments, which are their targets.
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
    """Return a member of a consumer group as one of a classic group; its session begins now."""
    told = member.subscription
    joining = Joining(
        protocols=classic.protocols,
        group_instance_id=told.instance_id,
        client_id=told.client_id,
        client_host=told.client_host,
        session_timeout_ms=classic.session_timeout_ms,
        rebalance_timeout_ms=told.rebalance_timeout_ms,
        protocol_type=PROTOCOL_TYPE,
    )
    return ClassicGroupMember(member.member_id, joining, now)


def stand_in(member: ConsumerMember, topics: frozenset[str], joining: Joining) -> ClassicMember:
    """Return what a member of KIP-848 would say in the classic protocol, whose place a static member takes
    that is joining.
    """
    told = encode_subscription(Told(tuple(sorted(topics))))
    protocols: Protocols = tuple((name, told) for name, _ in joining.protocols)
    return ClassicMember(joining.session_timeout_ms, protocols)
