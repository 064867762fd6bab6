"""Promise: no partition has two owners, whatever members a group has: consumers in the process and clients on
the wire, by either protocol, that come, go, vanish and are late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from consumers import fill
from group_members import Classic, Member
from groups import CONSUMER, COOPERATIVE, Monotonic, Unsynced, coordinator, member, member_ids, owned
from waiting import until

import segstore
from segstore.client.consumer import Consumer
from segstore.coordinator.group.classic.member import ClassicGroupState
from segstore.errors import UnknownMemberIdError

CONFIG = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path, clock: Monotonic) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG, files=Unsynced()) as store:
        coordinator(store, clock)
        yield store


class Crowd:
    """Members of one group that come, go, vanish, are late and change at random: consumers in the process by
    both protocols, and requests as of clients on the wire by both. No partition ever has two owners.

    Members of KIP-848 come to a classic group only while it rests: within a rebalance the group has, as in
    Kafka, the last assignment for what its members have.
    """

    def __init__(self, store: segstore.Store, clock: Monotonic, rng: random.Random) -> None:
        self.store, self.clock, self.rng = store, clock, rng
        self.members: list[Any] = []
        self.born = 0

    def come(self) -> None:
        self.born += 1
        if self.rng.random() < 0.5:
            classic: list[Callable[[], Any]] = [
                lambda: member(self.store, "t", **COOPERATIVE),
                lambda: member(
                    self.store, "t", partition_assignment_strategy=["range", "cooperative-sticky"]
                ),
                lambda: Classic(self.store, f"classic-{self.born}", "cooperative-sticky").join(),
            ]
            self.members.append(self.rng.choice(classic)())
            return
        if self.members and coordinator(self.store).describe("g") is not None:
            self.rest()
        if self.rng.random() < 0.5:
            settings = {**CONSUMER, "enable_auto_commit": self.rng.random() < 0.5}
            self.members.append(member(self.store, "t", **settings))
            self.members[-1].poll()
        else:
            self.members.append(Member(self.store, f"wire-{self.born}", client_host="/127.0.0.1").join())

    def go(self) -> None:
        if self.members:
            gone = self.members.pop(self.rng.randrange(len(self.members)))
            if self.rng.random() < 0.3:
                return  # without a word
            if isinstance(gone, Consumer):
                gone.close()
            elif isinstance(gone, Member):
                with suppress(UnknownMemberIdError):
                    gone.leave()
            elif gone.member_id:
                with suppress(UnknownMemberIdError):
                    coordinator(self.store).leave("g", gone.member_id)

    def pass_time(self) -> None:
        self.clock.now += self.rng.choice((1_000, 9_000, 31_000))
        coordinator(self.store).run_due()

    def is_too_early(self, each: Any) -> bool:
        """Return whether a member of KIP-848 would come to a classic group within a rebalance."""
        found = coordinator(self.store).describe("g")
        is_classic = each.config.group_protocol == "classic" if isinstance(each, Consumer) else False
        if isinstance(each, Classic) or is_classic or found is None or not found.members:
            return False
        rest = (self.is_at_rest(other) for other in self.members if self.is_member(other))
        return found.state is not ClassicGroupState.STABLE or not all(rest)

    def turn(self, each: Any) -> None:
        if self.is_too_early(each):
            return
        if isinstance(each, Consumer):
            each.poll()
        elif isinstance(each, Classic):
            if each.member_id and not self.is_member(each):  # as a client knows whose session has ended
                each.member_id, each.generation, each.has = "", -1, set()
                each.joining = each.syncing = None
            each.turn()
        else:
            try:
                each.beat()
            except Exception:  # fenced: as a client it gives up all, and joins anew
                each.join()

    def has(self, each: Any) -> set[int]:
        return owned(each) if isinstance(each, Consumer) else set(each.has)

    def is_member(self, each: Any) -> bool:
        """Return whether the group has the member now: the others do not know yet that they are out."""
        who = each.group_metadata().member_id if isinstance(each, Consumer) else each.member_id
        return who in member_ids(self.store)

    def check(self) -> None:
        held = [number for each in self.members if self.is_member(each) for number in self.has(each)]
        assert len(held) == len(set(held)), [(each, self.has(each)) for each in self.members]

    def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.06 and len(self.members) < 6:
            self.come()
        elif draw < 0.1:
            self.go()
        elif draw < 0.12:
            self.pass_time()
        elif self.members:
            self.turn(self.rng.choice(self.members))
        self.check()

    def is_at_rest(self, each: Any) -> bool:
        """Return whether the member has been told all, and has done it."""
        if isinstance(each, Consumer):
            return each.group_metadata().state == "<stable>"
        return not isinstance(each, Classic) or (each.joining is None and each.syncing is None)

    def rest(self) -> None:
        """Have all members do their turns, until they share all partitions."""

        def shared() -> bool:
            for each in self.members:
                self.turn(each)
                self.check()
            self.clock.now += 200
            return all(map(self.is_at_rest, self.members)) and sorted(
                n for each in self.members for n in self.has(each)
            ) == list(range(6))

        until(shared)


def test_no_partition_has_two_owners_among_all_kinds_of_members(
    store: segstore.Store, clock: Monotonic, rng: random.Random
) -> None:
    fill(store, partitions=6, records=4)
    crowd = Crowd(store, clock, rng)
    for _ in range(4):
        for _ in range(150):
            crowd.step()
        if not crowd.members:
            crowd.come()
        crowd.rest()
    with ExitStack() as stack:
        for each in crowd.members:
            if isinstance(each, Consumer):
                stack.callback(each.close)
