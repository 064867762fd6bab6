"""Steps of a group of KIP-848: its members send heartbeats, to whichever process runs, and leave."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from groups import coordinator
from simulation.model import hold

from segstore.coordinator.group.consumers.membership import ConsumerHeartbeat
from segstore.coordinator.java_hash import partition_of
from segstore.errors import FencedMemberEpochError, SegstoreError, UnknownMemberIdError

from .world import CONFIG, Skip, World

GROUP = "beaten"
SESSION_S = 40.0
"""A little less than group.consumer.session.timeout.ms: so long the group knows a silent member."""


@dataclass
class Beating:
    """A member, and what it has, by topic id. `unsure`: how its last heartbeat has ended is not known."""

    name: str
    heard: float
    epoch: int = 0
    given: dict[bytes, frozenset[int]] = field(default_factory=dict)
    unsure: bool = True

    def heartbeat(self, topics: set[str]) -> ConsumerHeartbeat:
        """One that says all, as after an error."""
        return ConsumerHeartbeat(
            member_id=self.name,
            epoch=self.epoch,
            rebalance_timeout_ms=600_000,
            topic_names=topics,
            owned=self.given,
        )

    @property
    def partitions(self) -> set[tuple[bytes, int]]:
        return {(topic, number) for topic, numbers in self.given.items() for number in numbers}

    def fenced(self) -> None:
        """It gives all up, and comes again."""
        self.epoch, self.given = 0, {}


def beat(world: World, name: str) -> str:
    """A member comes, or sends a heartbeat, and does what the group answers. Whoever leads, and after each
    death, the group knows each member with its epoch, and gives nobody what another one has.
    """
    member = world.beating.setdefault(name, Beating(name, world.hand.seconds))
    topics = {topic for topic, _ in world.parts}
    silent, known = world.hand.seconds - member.heard, member.epoch > 0 and not member.unsure
    member.unsure = True
    try:
        beaten = coordinator(world.live).consumer_heartbeat(GROUP, member.heartbeat(topics))
    except (UnknownMemberIdError, FencedMemberEpochError) as error:
        hold(not known or silent > SESSION_S or _is_lost(world), name, "is refused:", repr(error))
        member.fenced()
        return repr(error)
    hold(beaten.epoch >= member.epoch or _is_lost(world), name, "had", member.epoch, "and has", beaten.epoch)
    member.epoch, member.heard, member.unsure = beaten.epoch, world.hand.seconds, False
    if beaten.assignment is not None:
        member.given = dict(beaten.assignment)
    _look(world, member)
    return f"epoch {member.epoch}, {len(member.partitions)} partitions"


def _look(world: World, member: Beating) -> None:
    for other in list(world.beating.values()):
        if other is member or not member.partitions & other.partitions:
            continue
        silent = world.hand.seconds - other.heard
        hold(silent > SESSION_S or _is_lost(world), member, "was given what", other, "has")
        other.fenced()


def quit_(world: World, name: str, told: bool) -> str:
    """A member leaves, or is gone without a word."""
    member = world.beating.pop(name, None)
    if member is None:
        raise Skip
    if told and member.epoch > 0:
        try:
            coordinator(world.live).consumer_heartbeat(GROUP, ConsumerHeartbeat(member_id=name, epoch=-1))
        except SegstoreError as error:
            return repr(error)
    return "left" if told else "gone"


def look(world: World, settled: bool) -> None:
    """Where a rule allows that the group's records were lost, and all replicas are in sync again, the group
    need not know the members that it had.
    """
    if settled and _is_lost(world):
        for member in world.beating.values():
            member.heard = -math.inf


def _is_lost(world: World) -> bool:
    """Whether a rule allows that what the group has written was lost."""
    own = world.own.get(("__consumer_offsets", partition_of(GROUP, CONFIG["offsets.topic.num.partitions"])))
    return own is not None and own.free


OPS: dict[str, Callable[..., Any]] = {"beat": beat, "quit": quit_}
