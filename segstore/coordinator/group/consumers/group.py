"""`ConsumerGroup`: the state of a consumer group (KIP-848), built from its records in `__consumer_offsets`
(Kafka: ConsumerGroup, ModernGroup).

A change is a list of records. They are written first, and then applied by `replay`, which also applies the
stored records after a restart. Threads: under the group's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from segstore.coordinator.group.consumers.member import ConsumerMember
from segstore.coordinator.offsets.consumer_schema import (
    NOTHING,
    Assignment,
    Change,
    ConsumerMemberValue,
    Current,
    GroupEpoch,
    GroupRecordType,
    RecordKey,
    Resolved,
    TargetAssignment,
    TargetEpoch,
    Value,
)
from segstore.errors import (
    IllegalGenerationError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)

_Partition = tuple[bytes, int]


class ConsumerState(Enum):
    """The state of a group (Kafka: ConsumerGroupState); each value is Kafka's name of the state."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True)
class ConsumerGroupInfo:
    """A consumer group in a description; `targets` has the target assignments by member id."""

    state: ConsumerState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMember, ...]
    targets: Mapping[str, Assignment]


class ConsumerGroup:
    """The state of a consumer group. `epoch` grows whenever the group has to be assigned anew; `target_epoch`
    is the epoch of `targets`, the target assignments by member id. `instances` maps the instance id of a
    static member to the member's id; `regexes` maps a regular expression to the topics that match it.
    """

    def __init__(self, group_id: str, records: Mapping[RecordKey, Value]) -> None:
        self.group_id = group_id
        self.epoch = self.metadata_hash = self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.instances: dict[str, str] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, Resolved] = {}
        self.has_partition_metadata = False
        self._owners: dict[_Partition, str] = {}
        # The records are sorted by type, so that a member's subscription is applied before its current
        # assignment.
        self.replay(sorted(records.items(), key=lambda each: each[0].kind))

    # --- records -----------------------------------------------------------------------------

    def replay(self, changes: Iterable[Change]) -> None:
        """Apply records that were written to the log."""
        for key, value in changes:
            self._apply(key, value)

    def _apply(self, key: RecordKey, value: Value | None) -> None:
        name = key.name
        if isinstance(value, GroupEpoch):
            self.epoch, self.metadata_hash = value
        elif isinstance(value, TargetEpoch):
            self.target_epoch = value.epoch
        elif isinstance(value, ConsumerMemberValue):
            self._put(replace(self.members.get(name) or ConsumerMember(name), subscription=value))
        elif isinstance(value, Current):
            self._put(replace(self.members.get(name) or ConsumerMember(name), current=value))
        elif isinstance(value, TargetAssignment):
            self.targets[name] = value.partitions
        elif isinstance(value, Resolved):
            self.regexes[name] = value
        elif key.kind is GroupRecordType.PARTITION_METADATA:
            self.has_partition_metadata = value is not None
        else:
            self._delete(key)

    def _delete(self, key: RecordKey) -> None:
        if key.kind is GroupRecordType.MEMBER:
            self._drop(key.name)
        elif key.kind is GroupRecordType.CURRENT and key.name in self.members:
            self._put(replace(self.members[key.name], current=Current()))
        elif key.kind is GroupRecordType.TARGET:
            self.targets.pop(key.name, None)
        elif key.kind is GroupRecordType.REGEX:
            self.regexes.pop(key.name, None)

    def _put(self, member: ConsumerMember) -> None:
        self._release(member.member_id)
        self.members[member.member_id] = member
        for assignment in (member.current.assigned, member.current.revoking):
            for topic, numbers in assignment.items():
                for number in numbers:
                    self._owners[topic, number] = member.member_id
        if member.subscription.instance_id is not None:
            self.instances[member.subscription.instance_id] = member.member_id

    def _drop(self, member_id: str) -> None:
        self._release(member_id)
        member = self.members.pop(member_id, None)
        if member is not None and self.instances.get(member.subscription.instance_id or "") == member_id:
            del self.instances[member.subscription.instance_id or ""]

    def _release(self, member_id: str) -> None:
        """Record that the member owns no partition any more. Partitions that another member owns by now stay
        with that member.
        """
        member = self.members.get(member_id)
        if member is None:
            return
        for assignment in (member.current.assigned, member.current.revoking):
            for topic, numbers in assignment.items():
                for number in numbers:
                    if self._owners.get((topic, number)) == member_id:
                        del self._owners[topic, number]

    # --- queries ---------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def is_owned(self, topic: bytes, number: int) -> bool:
        """Return whether any member owns the partition. A member owns a partition until it has revoked the
        partition.
        """
        return (topic, number) in self._owners

    def member(self, member_id: str) -> ConsumerMember:
        """Return the member with this id. Raises UnknownMemberIdError."""
        if member_id not in self.members:
            raise UnknownMemberIdError(
                f"group {self.group_id!r} has no member {member_id!r}: it left, was taken for failed, or "
                "never joined"
            )
        return self.members[member_id]

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with this instance id, or None."""
        return self.members.get(self.instances.get(instance_id, ""))

    def target(self, member_id: str) -> Assignment:
        """Return the target assignment of a member."""
        return self.targets.get(member_id, NOTHING)

    def subscribed(self) -> set[str]:
        """Return the topics that any member subscribes to (ModernGroup: isSubscribedToTopic)."""
        found: set[str] = set()
        for member in self.members.values():
            found |= self.topics_of(member.subscription)
        return found

    def classic_protocols(self) -> frozenset[str] | None:
        """Return the protocols that all classic members have in common; None if the group has no classic
        member.
        """
        classics = [member.subscription.classic for member in self.members.values()]
        names = [frozenset(name for name, _ in each.protocols) for each in classics if each is not None]
        return frozenset.intersection(*names) if names else None

    def is_waiting(self, member: ConsumerMember) -> bool:
        """Return whether another member still owns partitions of the member's target (ConsumerGroup:
        waitingOnUnreleasedPartition).
        """
        return any(
            self._owners.get((topic, number), member.member_id) != member.member_id
            for topic, numbers in self.target(member.member_id).items()
            for number in numbers
        )

    def topics_of(self, subscription: ConsumerMemberValue) -> frozenset[str]:
        """Return the topics of a subscription: those listed by name, and those that match its regular
        expression.
        """
        resolved = self.regexes.get(subscription.topic_regex or "")
        return subscription.topic_names if resolved is None else subscription.topic_names | resolved.topics

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        is_named: bool,
        knows_epochs: bool,
        partitions: Callable[[], Assignment],
    ) -> None:
        """Raise an error unless a member may commit offsets of these partitions now (ConsumerGroup:
        validateOffsetCommit). A commit without an epoch is accepted if the group has no members. It is also
        accepted if a transaction commits for the group and names no member (`is_named` False). A commit with
        an earlier epoch is accepted if the member has owned all these partitions since that epoch (KIP-1251).

        Raises UnknownMemberIdError; StaleMemberEpochError for a KIP-848 member, IllegalGenerationError for a
        classic member. Raises UnsupportedVersionError if a KIP-848 member commits by a request version
        without member epochs (`knows_epochs` False).
        """
        if epoch < 0 and not (self.members and is_named):
            return
        if not (knows_epochs or self.member(member_id).is_classic):
            raise UnsupportedVersionError(
                f"group {self.group_id!r} is a consumer group: its members commit by OffsetCommit 9 or newer"
            )
        member = self.member(member_id)
        if not (epoch < member.epoch and member.has_had(partitions(), epoch)):
            self._check_current(member_id, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise an error unless a member may fetch offsets now; a request that names no member is always
        accepted (ConsumerGroup: validateOffsetFetch). Raises UnknownMemberIdError; StaleMemberEpochError for
        a KIP-848 member, IllegalGenerationError for a classic member.
        """
        if member_id is not None or epoch >= 0:
            self._check_current(member_id or "", epoch)

    def _check_current(self, member_id: str, epoch: int) -> None:
        member = self.member(member_id)
        if member.epoch != epoch:
            kind = IllegalGenerationError if member.is_classic else StaleMemberEpochError
            raise kind(
                f"member {member_id!r} of group {self.group_id!r} comes with epoch {epoch}, and has "
                f"{member.epoch}"
            )

    def info(self, default: str) -> ConsumerGroupInfo:
        """Return the group's description; `default` is the group's assignor if no member asks for an
        assignor.
        """
        return ConsumerGroupInfo(
            self.state,
            self.epoch,
            self.target_epoch,
            self.assignor(default),
            tuple(self.members.values()),
            dict(self.targets),
        )

    def assignor(self, default: str, members: Iterable[ConsumerMember] | None = None) -> str:
        """Return the assignor that most members ask for, or `default` if no member asks for an assignor
        (ConsumerGroup: computePreferredServerAssignor).
        """
        there = self.members.values() if members is None else members
        votes = [each.subscription.server_assignor for each in there]
        named = [vote for vote in votes if vote]
        return max(dict.fromkeys(named), key=named.count) if named else default
