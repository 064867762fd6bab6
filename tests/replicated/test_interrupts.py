"""Promise: wherever Ctrl-C comes in a call of a replicated store, the store works on: what was acknowledged
is there, nobody waits for ever, no lock stays taken, and it closes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from damage import flip
from replicated_stores import Directories, await_in_sync, found, retrying
from struck import struck
from waiting import until

import segstore
from segstore.errors import (
    InvalidArgumentError,
    TopicAlreadyExistsError,
)
from segstore.replication.metadata.image import PartitionKey

pytestmark = pytest.mark.kind("replicated stores")

THREADS = ("segstore-fetcher", "segstore-reader", "segstore-controller")
ASSIGNED = {0: [0, 1, 2]}
KEPT = 50
"""Records that `Struck.check` keeps."""


class Struck:
    """A store with a topic "t" whose calls are struck one after the other; `acked` has what was told."""

    def __init__(self, three: Directories) -> None:
        self.directories = three
        self.store = three.open(min_insync_replicas=2, auto_leader_rebalance_enable=False)
        self.store.create_topic("t", assignments=ASSIGNED)
        self.log = self.store.partition("t", 0)
        self.acked: dict[int, bytes] = {}
        self.number = 0

    def value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def reopen(self) -> None:
        self.store = self.directories.open()
        self.log = self.store.partition("t", 0)
        self.check()

    def append(self) -> None:
        value = self.value()
        self.acked[self.log.append(value)] = value

    def append_batch(self) -> None:
        values = [self.value() for _ in range(3)]
        offsets = self.log.append_batch(values, batch_bytes=1)
        self.acked |= dict(zip(offsets, values, strict=True))

    def produce(self) -> None:
        """By a producer of its own, whose close is struck too."""
        with segstore.Producer(self.store, acks="all") as producer:
            value = self.value()
            future = producer.send("t", value)
            producer.flush()
            self.acked[future.get(0).offset] = value

    def create(self) -> None:
        self.store.create_topic(f"made-{self.number // 2}", replication_factor=3)
        self.number += 1

    def reassign(self) -> None:
        self.number += 1
        self.store.reassign({("t", 0): ([0, 1, 2], [0, 1], [1, 2])[self.number % 3]})

    def elect(self) -> None:
        self.store.elect_leaders("preferred")

    def describe(self) -> None:
        assert self.store.describe_partition("t", 0).replicas == (0, 1, 2)
        self.store.replication_metrics()

    def heal(self) -> None:
        self.store.heal(("t", 0))

    def check(self) -> None:
        """The store works: it takes appends, and has all that was acknowledged, and nothing twice."""
        retrying(
            self.append
        )  # another value each time: of one that was refused nobody knows whether it is there
        offset = max(self.acked)
        here = found(self.log)
        assert {at: here.get(at) for at in self.acked} == self.acked
        assert len({*here.values()}) == len(here)
        self.log.delete_records(max(self.log.start_offset, offset - KEPT))
        self.acked = {at: value for at, value in self.acked.items() if at >= self.log.start_offset}


def allowing(call: Callable[[], object], *errors: type[Exception]) -> Callable[[], None]:
    """A call that may be refused, since it was done although it was struck before."""

    def run() -> None:
        with suppress(*errors):
            call()

    return run


CALLS: dict[str, tuple[Callable[[Struck], Callable[[], None]], int, int]] = {
    "append": (lambda it: it.append, 5, 30),
    "append_batch": (lambda it: it.append_batch, 7, 30),
    "produce": (lambda it: it.produce, 25, 100),
    "create_topic": (lambda it: allowing(it.create, TopicAlreadyExistsError), 9, 30),
    "reassign": (lambda it: it.reassign, 3, 10),
    "elect_leaders": (lambda it: it.elect, 3, 10),
    "describe_partition": (lambda it: it.describe, 9, 30),
}
"""Each call, how far apart the places are at most, and how many there are at least."""


def test_a_follower_is_asked_wherever_ctrl_c_comes(three: Directories) -> None:
    """It counted as asked though its thread had not been told: nobody asked it again, and it left the ISR."""
    it = Struck(three)
    manager = it.store.engine.manager
    replica, directory = manager.find(1, PartitionKey("t", 0)), manager.directories[1]
    for place in range(1, 7):
        until(lambda: not directory._thread._once_more)  # in which it is asked anyhow
        struck(partial(directory.ask, replica), place)
        until(lambda: not replica.asked)
    it.check()
    it.store.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_at_each_place(three: Directories, rng: random.Random, name: str) -> None:
    it = Struck(three)
    call, apart, least = CALLS[name]
    place = raised = 1
    while raised:
        raised = struck(call(it), place)
        it.check()
        place += rng.randint(1, apart)
    assert place > least
    if name == "create_topic":
        it.create()
    until(lambda: not it.store.reassignments())
    await_in_sync(it.store)
    it.store.close()


def test_a_healing(three: Directories, rng: random.Random) -> None:
    """Either way the replica is not in sync before it is whole, and a second call finishes the rest.

    It ends before records are deleted: a replica that begins anew lacks those, so it differs from others.
    """
    it = Struck(three)
    place = raised = 1
    while raised and it.number < KEPT - 5:
        it.check()
        await_in_sync(it.store)
        number = rng.randrange(3)
        flip(min((three.paths[number] / "t-0").glob("*.log")), 65)
        raised = struck(it.heal, place)
        place += rng.randint(200, 900)
        until(lambda: it.store.heal() == [])
    await_in_sync(it.store)


def test_a_replaced_directory(three: Directories, rng: random.Random) -> None:
    """It is replaced, or it can be replaced again."""
    it = Struck(three)
    place = raised = 1
    while raised:
        it.check()
        three.files.fail(three.paths[1])
        until(lambda: 1 in it.store.describe_partition("t", 0).offline)
        three.files.mend()
        raised = struck(partial(it.store.replace_directory, 1, three.paths[1]), place)
        it.check()
        allowing(partial(it.store.replace_directory, 1, three.paths[1]), InvalidArgumentError)()
        await_in_sync(it.store)
        place += rng.randint(1, 9)
    assert place > 20


def test_a_close(three: Directories, rng: random.Random) -> None:
    """The directories are let go, no thread of the store is left, and the next open finds everything."""
    before = {*threading.enumerate()}  # those of other tests' mirrors have such names, too
    it = Struck(three)
    place = raised = 1
    while raised:
        it.append()
        raised = struck(it.store.close, place)
        it.store.close()
        until(lambda: not any(t.name.startswith(THREADS) for t in {*threading.enumerate()} - before))
        it.reopen()
        place += rng.randint(1, 700)
    assert place > 1000


def test_a_close_ends_its_threads_before_it_lets_go(three: Directories) -> None:
    """Ctrl-C as the controller is to end: else the threads write on, without a lock."""
    before = {*threading.enumerate()}
    it = Struck(three)
    side = it.store.replicated
    stop = side.controller.stop

    def strike(seconds: float) -> bool:
        side.controller.stop = stop
        raise KeyboardInterrupt

    side.controller.stop = strike
    with pytest.raises(KeyboardInterrupt):
        it.store.close()
    assert side.closed
    assert all(directory._thread.ended for directory in side.manager.directories.values())
    assert not [
        each for each in {*threading.enumerate()} - before if "metadata" in each.name and each.is_alive()
    ]
