"""Converts a classic group to a record of `__consumer_offsets`, and the record to a classic group.

Threads: under the group's lock.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.coordinator.group.classic.group import ClassicGroup
from segstore.coordinator.group.classic.member import ClassicGroupMember, ClassicGroupState, Joining
from segstore.coordinator.offsets.group_offsets import GroupRecord, MemberRecord
from segstore.coordinator.structs import CLIENT_HOST


def keep(group: ClassicGroup, assignments: Mapping[str, bytes], now_ms: int) -> GroupRecord:
    """Return the group's record with these assignments. If there are no assignments, the group is empty since
    `now_ms` (ms since the epoch).
    """
    if not assignments:
        group.empty_since_ms = now_ms
    members = tuple(
        MemberRecord(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
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


def restore(group: ClassicGroup, record: GroupRecord, now: float, now_ms: int) -> None:
    """Restore a group from the record that an earlier process wrote. The members' sessions begin at `now`.
    Dynamic members whose consumers were in the earlier process are left out.
    """
    group.generation, group.protocol_type = record.generation, record.protocol_type
    group.empty_since_ms = now_ms if record.members else record.state_timestamp_ms
    kept = [each for each in record.members if each.group_instance_id or each.client_host != CLIENT_HOST]
    if not kept or not record.protocol:
        return
    group.protocol, group.state = record.protocol, ClassicGroupState.STABLE
    for member in kept:
        group.take_up(_member(member, record, now))
    there = group.members
    group.leader = record.leader if record.leader in there else next(iter(there))
    if len(kept) < len(record.members):
        group.rebalance(now)


def _member(kept: MemberRecord, record: GroupRecord, now: float) -> ClassicGroupMember:
    joining = Joining(
        protocols=((record.protocol or "", kept.subscription),),
        group_instance_id=kept.group_instance_id,
        client_id=kept.client_id,
        client_host=kept.client_host,
        session_timeout_ms=kept.session_timeout_ms,
        rebalance_timeout_ms=kept.rebalance_timeout_ms,
        protocol_type=record.protocol_type or "",
    )
    member = ClassicGroupMember(kept.member_id, joining, now)
    member.assignment, member.synced = kept.assignment, True
    return member
