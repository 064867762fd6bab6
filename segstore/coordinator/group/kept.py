"""A group as it is kept in `__consumer_offsets`, and how it is taken up again. Nothing on disk of its own.

Threads: under the group's lock; functions without state.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.coordinator.group.group import Group
from segstore.coordinator.group.member import Member
from segstore.coordinator.group.membership import Joining, State
from segstore.coordinator.offsets.group_offsets import GroupRecord, MemberRecord

CLIENT_HOST = "localhost"


def keep(group: Group, assignments: Mapping[str, bytes], now_ms: int) -> GroupRecord:
    """The group with these assignments, at `now_ms` since the epoch."""
    if not assignments:
        group.empty_since_ms = now_ms
    members = tuple(
        MemberRecord(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            CLIENT_HOST,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.subscription(group.protocol),
            assignments[member.member_id],
        )
        for member in group.members.values()
    )
    return GroupRecord(
        group.group_id,
        group.protocol_type,
        group.generation,
        group.protocol,
        group.leader,
        now_ms,
        members,
    )


def restore(group: Group, record: GroupRecord, now: float, now_ms: int) -> None:
    """Take up where the last process ended. Its dynamic members ended with it; static ones have a session
    timeout from now on to come back to what they had.
    """
    group.generation, group.protocol_type = record.generation, record.protocol_type
    group.empty_since_ms = now_ms if record.members else record.state_timestamp_ms
    static = [member for member in record.members if member.group_instance_id is not None]
    if not static or not record.protocol:
        return
    group.protocol, group.state = record.protocol, State.STABLE
    for kept in static:
        group.take_up(_member(kept, record, now))
    there = group.members
    group.leader = record.leader if record.leader in there else next(iter(there))
    if len(static) < len(record.members):
        group.rebalance(now)


def _member(kept: MemberRecord, record: GroupRecord, now: float) -> Member:
    joining = Joining(
        protocols=((record.protocol or "", kept.subscription),),
        group_instance_id=kept.group_instance_id,
        client_id=kept.client_id,
        session_timeout_ms=kept.session_timeout_ms,
        rebalance_timeout_ms=kept.rebalance_timeout_ms,
        protocol_type=record.protocol_type or "",
    )
    member = Member(kept.member_id, joining, now)
    member.assignment, member.synced = kept.assignment, True
    return member
