"""`Assignor`, the protocol that all assignors implement; `MemberSubscription`, their input; and two assignors
without user data, `RangeAssignor` and `RoundRobinAssignor`.

Threads: any; assignors have no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from segstore.coordinator.structs import TopicPartition


@dataclass(frozen=True)
class MemberSubscription:
    """A member's subscription: its `topics`; the partitions that it `owned` in `generation` (-1 if the
    generation is not known); the `user_data` of its assignor; the `group_instance_id` of a static member; its
    `rack`.
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
    """Assigns the partitions of the topics to which the members of a group subscribe.

    If `cooperative` is set, members keep their partitions during a rebalance, and revoke only partitions that
    `assign` takes from them (KIP-429). If `cooperative` is not set, members revoke all partitions before the
    rebalance.
    """

    name: str
    cooperative: bool

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        """Return the partitions of every member, sorted. A topic that is not in `partitions` has no
        partitions.
        """

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Return the user data of a member's next join. The data reports to the leader that the member got
        the partitions `owned` in `generation`.
        """


class Stateless:
    """The base of assignors that send no user data and are not cooperative: members revoke all partitions
    before a rebalance.
    """

    cooperative = False

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        return b""


def in_order(members: Members) -> list[str]:
    """Return the member ids: static members by instance id, then dynamic members by member id (Kafka:
    AbstractPartitionAssignor.MemberInfo.compareTo).
    """

    def key(member: str) -> tuple[bool, str, str]:
        instance = members[member].group_instance_id
        return instance is None, instance or "", member

    return sorted(members, key=key)


# --- range -------------------------------------------------------------------------------------

# Range: each member gets neighbouring partitions of each topic.


class RangeAssignor(Stateless):
    """Assigns a range of each topic's partitions to each subscribed member. If the division leaves a
    remainder, the first members get one partition more (Kafka: RangeAssignor).
    """

    name = "range"

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        assigned: Assignment = {member: [] for member in members}
        order = in_order(members)
        for topic in sorted({topic for member in members.values() for topic in member.topics}):
            numbers = sorted(partitions.get(topic, ()))
            takers = [member for member in order if topic in members[member].topics]
            share, more = divmod(len(numbers), len(takers))
            begin = 0
            for i, member in enumerate(takers):
                end = begin + share + (i < more)
                assigned[member] += [TopicPartition(topic, number) for number in numbers[begin:end]]
                begin = end
        return assigned


# --- roundrobin --------------------------------------------------------------------------------

# Round robin: the members get one partition each, in turn, until all partitions are assigned.


class RoundRobinAssignor(Stateless):
    """Assigns each partition to the next member in turn that subscribes to the partition's topic (Kafka:
    RoundRobinAssignor).
    """

    name = "roundrobin"

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        assigned: Assignment = {member: [] for member in members}
        order, turn = in_order(members), 0
        for topic in sorted({topic for member in members.values() for topic in member.topics}):
            for number in sorted(partitions.get(topic, ())):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                assigned[order[turn % len(order)]].append(TopicPartition(topic, number))
                turn += 1
        return assigned
