"""Promise: Ctrl-C, one or two, anywhere within a call of a group's member keeps nobody waiting.

The clock of the groups stands still: nothing here is mended by a timeout.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from groups import KINDS, Monotonic, Unsynced, coordinator, is_empty, member, member_ids, owned, settled
from struck import struck

import segstore
from segstore.client.consumer import Consumer

# What is raised within a destructor, or a generator that is dropped, is told and passed over.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.kind("interrupts"),
]
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG, files=Unsynced()) as store:
        coordinator(store, Monotonic())
        store.create_topic("t", partitions=2)
        for partition in range(2):
            store.partition("t", partition).append_batch([b"v"] * 3)
        yield store


class Struck:
    """A member `one` of a group which `other` is in too, and what is done with it."""

    def __init__(self, store: segstore.Store, number: int, settings: dict[str, object]) -> None:
        self.store, self.group, self.settings = store, f"g{number}", settings
        self.other = self.member()
        settled(store, [self.other], self.group)
        self.one = self.member()
        self.third: Consumer | None = None

    def member(self) -> Consumer:
        return member(self.store, "t", group=self.group, **self.settings)

    def join(self) -> None:
        settled(self.store, [self.one, self.other], self.group)

    def rejoin(self) -> None:
        """Because another one comes."""
        self.third = self.member()
        settled(self.store, [self.one, self.other, self.third], self.group)
        self.third.close()

    def commit(self) -> None:
        for tp in self.one.assignment():
            self.one.seek(tp, 2)
        self.one.commit()

    def close(self) -> None:
        self.one.close()

    def unsubscribe(self) -> None:
        self.one.unsubscribe()
        self.one.subscribe(["t"])


OPERATIONS: dict[str, tuple[Callable[[Struck], None], bool, int]] = {
    "joins": (Struck.join, False, 150),
    "joins again": (Struck.rejoin, True, 300),
    "commits": (Struck.commit, True, 12),
    "leaves": (Struck.close, True, 12),
    "unsubscribes": (Struck.unsubscribe, True, 12),
}
"""What is done, whether it is a member before, and how far apart places are at most: some are drawn."""


def goes_on(it: Struck, rng: random.Random) -> None:
    """The member, or where it is closed the other one alone, and then who comes."""
    if not it.one._guard.closed and it.one.subscription() is None:
        it.one.subscribe(["t"])
    if rng.random() < 0.5 and it.third is None and not it.one._guard.closed:
        settled(it.store, [it.other, it.one], it.group)
    it.one.close()
    if it.third is not None:
        it.third.close()
    settled(it.store, [it.other], it.group)
    assert owned(it.other) == {0, 1}
    assert len(member_ids(it.store, it.group)) == 1
    with it.member() as third:
        settled(it.store, [it.other, third], it.group)
        assert not owned(it.other) & owned(third)
        assert owned(it.other) | owned(third) == {0, 1}
    it.other.close()
    assert is_empty(it.store, it.group)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_others_go_on(store: segstore.Store, rng: random.Random, operation: str, kind: str) -> None:
    run, joined, step = OPERATIONS[operation]
    place, raised = 0, 1
    while raised:
        place += rng.randint(1, step)
        places = [place, rng.randint(1, 60)][: rng.randint(1, 2)]
        it = Struck(store, place, KINDS[kind])
        if joined:
            it.join()
        raised = struck(partial(run, it), *places)
        try:
            goes_on(it, rng)
        except BaseException as error:
            raise AssertionError(f"{operation}, interrupted at {places}") from error
