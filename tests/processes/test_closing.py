"""Closing a store and its clients: any order works, also in the child of a fork, after Ctrl-C, or if nobody
closes anything.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from closing import SMALL, Reader, committed, committed_of
from closing import store as store
from consumers import append, earliest, fill, tp
from interrupts import interrupted
from stores import in_child, values
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.consumer import Consumer, base
from segstore.client.consumer import ending as consumer_ending
from segstore.client.producer import Producer
from segstore.client.producer import ending as producer_ending
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.quotas import quotas
from segstore.coordinator.shared import shared
from segstore.filetree.tree import file_tree
from segstore.spark.checkpointing import Checkpoints
from segstore.storage.store import clients as clients_module
from segstore.storage.store import store as store_module
from segstore.storage.store.clients import Clients

pytestmark = pytest.mark.kind("interrupts")

# --- any order of ends ----------------------------------------------------------------------------

CLIENTS = ("producer", "transactional", "consumer", "member")


class Application:
    """A store, two producers and two consumers; each round sends four records that count, and one that is
    in a transaction which nobody commits.
    """

    def __init__(self, path: Path) -> None:
        self.store = store = segstore.open(path, config=SMALL)
        if "t" not in store.topics():
            store.create_topic("t")
        self.before = len(committed(store))
        append(store, 1)
        self.all: dict[str, Any] = {"store": store}
        self.all["consumer"] = consumer = earliest(store, "t")
        self.all["member"] = member = earliest(store, "t", group_id="g", enable_auto_commit=True)
        until(consumer.poll)
        until(member.poll)
        self.read = member.position(tp())
        self.all["producer"] = producer = Producer(store, linger_ms=60_000)
        self.sent = [producer.send("t", b"%d" % i) for i in range(2)]
        self.all["transactional"] = transactional = Producer(store, transactional_id="id", linger_ms=60_000)
        transactional.init_transactions()
        for commit in (True, False):
            transactional.begin_transaction()
            transactional.send("t", b"in a transaction: %d" % commit)
            if commit:
                transactional.commit_transaction()

    def judge(self, path: Path) -> None:
        assert [future.succeeded() for future in self.sent] == [True, True]
        with segstore.open(path, config=SMALL) as store:
            assert len(committed(store)) == self.before + 4
            log = store.partition("t")
            assert log.last_stable_offset == log.end_offset
            with Consumer(store, group_id="g") as look:
                assert look.committed(tp()) == self.read


@pytest.mark.parametrize("first", ["store", *CLIENTS])
def test_any_order_of_closing(store_dir: Path, first: str) -> None:
    """All orders of the five; each is closed twice."""
    rest = [name for name in ("store", *CLIENTS) if name != first]
    for order in itertools.permutations(rest):
        application = Application(store_dir)
        for name in (first, *order):
            application.all[name].close()
            application.all[name].close()
        application.judge(store_dir)


@pytest.mark.parametrize("of_member", ["before", "after", "never", "dropped"])
def test_before_after_or_never(store_dir: Path, of_member: str) -> None:
    """Each client is closed before the store, after it, or never; those that are dropped are gone before."""
    for when in itertools.product(["before", "after", "never"], repeat=3):
        application = Application(store_dir)
        closed = dict(zip(CLIENTS, (*when, of_member), strict=True))
        for name in CLIENTS:
            if closed[name] == "before":
                application.all[name].close()
        if of_member == "dropped":
            del application.all["member"]
            application.read = application.store and committed_of(application.store)
        with application.store:
            pass
        for name in CLIENTS:
            if closed[name] == "after":
                application.all[name].close()
        application.judge(store_dir)


@pytest.mark.parametrize("order", [*itertools.permutations(("store", "one", "other"))], ids="-".join)
def test_readers_of_a_store_that_is_opened_to_read(store_dir: Path, order: tuple[str, ...]) -> None:
    with segstore.open(store_dir) as store:
        fill(store)
    store = segstore.open(store_dir, mode="r")
    parts: dict[str, Any] = {"store": store, "one": earliest(store, "t"), "other": Consumer(store)}
    assert until(parts["one"].poll)
    for name in order:
        parts[name].close()
        parts[name].close()
    for name in ("one", "other"):
        with pytest.raises((errors.StoreClosedError, errors.ClientClosedError)):
            parts[name].poll()


def test_a_static_member_keeps_its_place(store: segstore.Store, store_dir: Path) -> None:
    fill(store, "u", partitions=2)
    member = earliest(store, "u", group_id="g", group_instance_id="i")
    until(member.poll)
    store.close()
    member.close()
    with segstore.open(store_dir, config=SMALL) as again:
        members = shared(again, GroupCoordinator).members("g")
        assert [each.group_instance_id for each in members] == ["i"]


# --- forks, and what nobody has any more ----------------------------------------------------------


def test_in_a_forked_child_all_ends_are_harmless(store: segstore.Store) -> None:
    fill(store, "u")
    producer = Producer(store, linger_ms=60_000)
    consumer, member = earliest(store, "u"), earliest(store, "u", group_id="g")
    until(member.poll)
    until(consumer.poll)
    future = producer.send("t", b"the parent's")

    def child(tell: Callable[[str], None]) -> None:
        for each in (member, store, consumer, producer, store, member):
            each.close()
        with pytest.raises(errors.StoreClosedError):
            store.topics()
        tell("closed")

    assert in_child(child) == (0, ["closed"])
    assert member.poll(0) == {}
    producer.flush()
    assert future.get(0).offset == 0


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_child_may_close_what_another_thread_of_its_parent_was_in(store_dir: Path, mode: str) -> None:
    writer = segstore.open(store_dir, config=SMALL)
    fill(writer)
    store = writer if mode == "rw" else segstore.open(store_dir, mode="r")
    reader = Reader(earliest(store, "t", **({"group_id": "g"} if mode == "rw" else {})), "poll")
    reader.start()
    assert reader.began.wait(PATIENCE)

    def child(tell: Callable[[str], None]) -> None:
        store.close()
        if mode == "rw":
            reader.consumer.close()
        tell("closed")

    assert in_child(child) == (0, ["closed"])
    store.close()
    reader.join(PATIENCE)
    writer.close()


def test_all_of_it_is_garbage(store_dir: Path) -> None:
    """The producer's records are written, and the directory is let go, though nobody has closed anything."""
    for cyclic in (False, True):
        store = segstore.open(store_dir, config=SMALL)
        if "t" not in store.topics():
            store.create_topic("t")
        producer, consumer = Producer(store, linger_ms=60_000), earliest(store, "t", group_id="g")
        future, sender = producer.send("t", b"x"), producer._sender
        consumer.poll()
        if cyclic:
            ring: list[Any] = [store, producer, consumer]
            ring.append(ring)
            del ring
        gone = [weakref.ref(store), weakref.ref(store.engine)]
        del store, producer, consumer
        gc.collect()
        sender.join(PATIENCE)
        assert not sender.is_alive()
        del sender
        until(lambda gone=gone: gc.collect() >= 0 and not any(ref() for ref in gone))
        assert future.get(0).offset == int(cyclic)
    with segstore.open(store_dir, config=SMALL) as store:
        assert store.partition("t").end_offset == 2


def test_the_registry_knows_the_protocol_only() -> None:
    clients = Clients("somewhere")
    assert clients.once(lambda: (clients.once(lambda: 1), 2)) == (None, 2)
    clients.close(0, True)
    assert clients.unwritten() is None


# --- Ctrl-C, and parts of other kinds -------------------------------------------------------------


def test_ctrl_c_anywhere_in_a_close_lets_go_of_the_directory(store_dir: Path) -> None:
    """What was acknowledged is there, and all can be closed again."""
    modules = (store_module, clients_module, producer_ending, consumer_ending, base)
    nth, more, expected = 0, True, list[bytes]()
    while more:
        nth += 1
        store = segstore.open(store_dir, config=SMALL)
        if "t" not in store.topics():
            store.create_topic("t")
        producer, consumer = Producer(store), earliest(store, "t", group_id="g")
        expected.append(b"%d" % nth)
        producer.send("t", expected[-1]).get(PATIENCE)
        until(lambda consumer=consumer: consumer.poll(100))
        more = interrupted(nth, modules, store.close)
        for each in (store, producer, consumer):
            each.close()
        segstore.open(store_dir, config=SMALL).close()
    with segstore.open(store_dir, config=SMALL) as store:
        assert values(store.partition("t")) == expected
    assert nth > 40


@pytest.mark.parametrize("first", ["store", "part"])
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_other_parts_are_closed_in_any_order(store_dir: Path, mode: str, first: str) -> None:
    with segstore.open(store_dir, config=SMALL) as store:
        fill(store)
        file_tree(store, "files")
    store = segstore.open(store_dir, mode, config=SMALL if mode == "rw" else None)
    parts: list[Any] = [Groups(store), quotas(store)]
    parts += [Checkpoints(store, "files")] if mode == "rw" else []
    for each in [store, *parts] if first == "store" else [*parts, store]:
        each.close()
        each.close()
