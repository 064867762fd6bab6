"""`Assignor` and `MemberSubscription`, the protocol of all assignors, and the two stateless ones: range and
round robin.

Threads: any; nothing here has state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from segstore.coordinator.structs import TopicPartition


@dataclass(frozen=True)
class MemberSubscription:
    """A member's `topics`; the partitions that it `owned`, from `generation` (-1: not known); the
    `user_data` of its assignor; the `group_instance_id` of a static member; the `rack` where it runs.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    user_data: bytes = b""
    generation: int = -1
    group_instance_id: str | None = None
    rack: str | None = None


Assignment = dict[str, list[TopicPartition]]
Members = Mapping[str, MemberSubscription]
Partitions = Mapping[str, Sequence[int]]


class Assignor(Protocol):
    """Hands out the partitions of the topics to which the members of a group subscribe.

    `cooperative`: members keep their partitions while the group rebalances, and give up only those that
    `assign` no longer gives them (KIP-429); otherwise they give up all before.
    """

    name: str
    cooperative: bool

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        """Return every member's partitions, in order; a topic that is not in `partitions` has none."""

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Return what a member that got `owned` in `generation` tells the next leader beside its topics."""


class Stateless:
    """An assignor that has members give up all partitions, and to which a member tells only its topics."""

    cooperative = False

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        return b""


def in_order(members: Members) -> list[str]:
    """Return static members by instance, then the others by id (Kafka:
    AbstractPartitionAssignor.MemberInfo).
    """

    def key(member: str) -> tuple[bool, str, str]:
        instance = members[member].group_instance_id
        return instance is None, instance or "", member

    return sorted(members, key=key)


# --- range -------------------------------------------------------------------------------------

# Range: each member gets neighbouring partitions of each topic.


class RangeAssignor(Stateless):
    """Assigns topic by topic; where the numbers don't come out even, the first members get one partition
    more (Kafka: RangeAssignor).
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

# Round robin: all partitions go in turn to all members.


class RoundRobinAssignor(Stateless):
    """Skips a member that does not subscribe to a partition's topic (Kafka: RoundRobinAssignor)."""

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
