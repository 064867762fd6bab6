"""What an assignor is, and what members tell it. Nothing on disk. Threads: any; nothing here has state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from segstore.coordinator.structs import TopicPartition


@dataclass(frozen=True)
class Subscription:
    """What a member wants and has: `topics`; `owned` partitions, handed out in `generation` (-1: not known);
    `user_data` of its assignor; `group_instance_id` of a static member.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    user_data: bytes = b""
    generation: int = -1
    group_instance_id: str | None = None


Assignment = dict[str, list[TopicPartition]]
Members = Mapping[str, Subscription]
Partitions = Mapping[str, Sequence[int]]


class Assignor(Protocol):
    """Hands out the partitions of the topics that the members of a group subscribe to.

    `cooperative`: members keep what they have while the group rebalances, and give up only what `assign` no
    longer gives them (KIP-429); otherwise they give up all before.
    """

    name: str
    cooperative: bool

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        """Every member's partitions, in order; a topic that is not in `partitions` has none."""

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        """What a member that was given `owned` in `generation` tells the next leader beside its topics."""


class Stateless:
    """An assignor that gives up all, and to which a member tells nothing but its topics."""

    cooperative = False

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        return b""


def in_order(members: Members) -> list[str]:
    """Static members by instance, then the others by id (Kafka: AbstractPartitionAssignor.MemberInfo)."""

    def key(member: str) -> tuple[bool, str, str]:
        instance = members[member].group_instance_id
        return instance is None, instance or "", member

    return sorted(members, key=key)


# --- range -------------------------------------------------------------------------------------

# Range: of each topic neighbouring partitions to each member. Nothing on disk. Threads: any.


class RangeAssignor(Stateless):
    """Topic by topic; where they don't come out even, the first members have one more
    (Kafka: RangeAssignor).
    """

    name = "range"

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        given: Assignment = {member: [] for member in members}
        order = in_order(members)
        for topic in sorted({topic for member in members.values() for topic in member.topics}):
            numbers = sorted(partitions.get(topic, ()))
            takers = [member for member in order if topic in members[member].topics]
            share, more = divmod(len(numbers), len(takers))
            at = 0
            for i, member in enumerate(takers):
                end = at + share + (i < more)
                given[member] += [TopicPartition(topic, number) for number in numbers[at:end]]
                at = end
        return given


# --- roundrobin --------------------------------------------------------------------------------

# Round robin: all partitions in turn to all members. Nothing on disk. Threads: any.


class RoundRobinAssignor(Stateless):
    """A member that does not subscribe to a partition's topic is passed over (Kafka: RoundRobinAssignor)."""

    name = "roundrobin"

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        given: Assignment = {member: [] for member in members}
        order, turn = in_order(members), 0
        for topic in sorted({topic for member in members.values() for topic in member.topics}):
            for number in sorted(partitions.get(topic, ())):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                given[order[turn % len(order)]].append(TopicPartition(topic, number))
                turn += 1
        return given
