"""`Roster`: who is in a group, in which generation, and what each may do. Nothing on disk.

Threads: under the group's lock.
"""

from __future__ import annotations

from segstore.coordinator.group.member import Member
from segstore.coordinator.group.membership import Joined, JoinedMember, Joining, MemberInfo, State
from segstore.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class Roster:
    """`members` by id, `instances` from group_instance_id to the id that has it now. `changes` counts what
    members may have to know of. `empty_since_ms` is since when it has no members (ms since the epoch, -1: it
    never had some).
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state, self.generation, self.changes = State.EMPTY, 0, 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.empty_since_ms = -1

    def check_protocols(self, joining: Joining) -> None:
        names = frozenset(name for name, _ in joining.protocols)
        if not names:
            raise InconsistentGroupProtocolError(f"a member of {self.group_id!r} must have a protocol")
        others = [
            member
            for member in self.members.values()
            if member.member_id != joining.member_id
            and (joining.group_instance_id is None or member.group_instance_id != joining.group_instance_id)
        ]
        if not others:
            return
        if joining.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocolError(
                f"group {self.group_id!r} is of type {self.protocol_type!r}, not {joining.protocol_type!r}"
            )
        there = frozenset.intersection(*(member.names() for member in others))
        if not names & there:
            raise InconsistentGroupProtocolError(
                f"the members of group {self.group_id!r} have {sorted(there)} in common, "
                f"and of the new one's {sorted(names)} none is among them"
            )

    def vote(self) -> str:
        """The protocol of all members that most like best (ClassicGroup.selectProtocol)."""
        members = list(self.members.values())
        candidates = frozenset.intersection(*(member.names() for member in members))
        votes = [member.vote(candidates) for member in members]
        return max(dict.fromkeys(votes), key=votes.count)

    def check_member(self, member_id: str, instance: str | None) -> Member:
        """The member. UnknownMemberIdError, FencedInstanceIdError."""
        if instance is not None and instance in self.instances and self.instances[instance] != member_id:
            raise self.fenced(instance, member_id)
        member = self.members.get(member_id)
        if member is None or (instance is not None and member.group_instance_id != instance):
            raise UnknownMemberIdError(
                f"group {self.group_id!r} has no member {member_id!r}: it left, was taken for failed, or "
                "never joined"
            )
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGenerationError(
                f"generation {generation} of group {self.group_id!r} is over, it is in {self.generation}"
            )

    def check_commit(
        self, generation: int, member_id: str, instance: str | None, now: float, transactional: bool = False
    ) -> None:
        """Whether offsets may be committed (GroupMetadataManager: validateOffsetCommit). Without a member,
        only while there is none. UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError,
        RebalanceInProgressError.
        """
        if generation < 0 and not member_id and instance is None:
            if self.members and not transactional:
                raise UnknownMemberIdError(
                    f"group {self.group_id!r} has members, and only they commit: {sorted(self.members)}"
                )
            return
        member = self.check_member(member_id, instance)
        self.check_generation(generation)
        member.beat(now)
        if self.state is State.COMPLETING_REBALANCE and not transactional:
            raise self.in_progress()

    def take_up(self, member: Member) -> None:
        """Have a member that was kept."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.instances[member.group_instance_id] = member.member_id

    def drop(self, member: Member) -> None:
        """Have it no more: it is told."""
        del self.members[member.member_id]
        if self.instances.get(member.group_instance_id or "") == member.member_id:
            del self.instances[member.group_instance_id or ""]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        member.fail(UnknownMemberIdError(f"member {member.member_id} is no more in group {self.group_id!r}"))
        self.changes += 1

    def become(self, state: State) -> None:
        """Be in that state: members should look."""
        self.state = state
        self.changes += 1

    def place(self, member: Member, told: bool, skip_assignment: bool = False) -> Joined:
        """The member's place in this generation; `told`: if it leads, it gets to know all members."""
        assert self.protocol is not None
        assert self.leader is not None
        told = told and member.member_id == self.leader
        members = tuple(
            JoinedMember(each.member_id, each.group_instance_id, each.subscription(self.protocol))
            for each in self.members.values()
        )
        return Joined(
            member.member_id,
            self.generation,
            self.protocol,
            self.leader,
            members if told else (),
            skip_assignment and told,
        )

    def rebalance_timeout_ms(self) -> float:
        """The longest of its members'."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def infos(self) -> list[MemberInfo]:
        return [member.info(self.protocol) for member in self.members.values()]

    def fenced(self, instance: str, member_id: str) -> FencedInstanceIdError:
        return FencedInstanceIdError(
            f"group_instance_id {instance!r} of group {self.group_id!r} is another's now, not {member_id!r}"
        )

    def in_progress(self) -> RebalanceInProgressError:
        return RebalanceInProgressError(f"group {self.group_id!r} is handing out its partitions anew")
