"""Changes of topics that several threads ask for at once are decided one after the other, though they become
durable together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import pytest
from replicated_stores import Directories, await_in_sync

import segstore
from segstore import errors
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.filetree.topic import make_topic
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.quorum_controller import Decision, QuorumController
from segstore.replication.topic_admin import ReplicatedTopicAdmin
from segstore.storage.staging import Stager, seal

pytestmark = pytest.mark.kind("replicated stores")

THREADS = 8


def at_once(*calls: Callable[[], object]) -> list[Exception | None]:
    """Make calls in threads that begin together; return what each raised."""
    begin, told = threading.Barrier(len(calls)), dict[int, Exception | None]()

    def run(number: int) -> None:
        begin.wait()
        try:
            calls[number]()
            told[number] = None
        except errors.SegstoreError as error:
            told[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return [told[number] for number in range(len(calls))]


def decided_together(store: Any, *calls: Callable[[], object]) -> list[Exception | None]:
    """Make calls that the controller decides in this order, of which it publishes none before all are
    decided; return what each raised.
    """
    controller, go, asked = store.replicated.controller, threading.Event(), threading.Semaphore(0)
    told, threads = dict[int, Exception | None](), list[threading.Thread]()

    def run(number: int) -> None:
        try:
            calls[number]()
            told[number] = None
        except Exception as error:
            told[number] = error

    def hold(core: object, now: int) -> Decision:
        go.wait()
        return Decision()

    def post(event: Any, answer: Any = None) -> None:
        QuorumController.post(controller, event, answer)
        if threading.current_thread() in threads:
            asked.release()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "post", post)
        controller.post(hold)
        for number in range(len(calls)):
            threads.append(threading.Thread(target=run, args=(number,)))
            threads[-1].start()
            assert asked.acquire(timeout=60)
        go.set()
        [thread.join() for thread in threads]
    return [told[number] for number in range(len(calls))]


def test_one_of_many_creates_the_topic(three: Directories) -> None:
    store = three.open()
    for name in ("a", "b", "c"):
        told = at_once(*[lambda name=name: store.create_topic(name, 2, replication_factor=3)] * THREADS)
        assert sorted(map(type, told), key=str) == sorted(
            [type(None), *[errors.TopicAlreadyExistsError] * (THREADS - 1)], key=str
        )
        assert store.partition(name, 1).append(b"first") == 0
    await_in_sync(store)


def test_partitions_are_added_once(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    assert store.partition("t", 0).append(b"kept") == 0
    told = at_once(*[lambda: store.add_partitions("t", 3)] * THREADS)
    assert told.count(None) == 1
    states = [store.describe_partition("t", number) for number in range(3)]
    assert [state.partition_epoch for state in states] == [0, 0, 0]
    for number in (1, 2):
        assert store.partition("t", number).append(b"first") == 0
    assert store.partition("t", 0).append(b"second") == 1


def test_a_topic_is_deleted_once_and_does_not_grow_any_more(three: Directories) -> None:
    """The controller stopped where partitions were added to a topic whose deletion it had just decided."""
    store = three.open()
    store.create_topic("t", replication_factor=3)
    delete, grow = partial(store.delete_topic, "t"), partial(store.add_partitions, "t", 3)
    alter = partial(store.alter_topic, "t", {"retention.ms": 1_000})
    told = decided_together(store, delete, grow, alter, delete)
    assert list(map(type, told)) == [type(None), *[errors.UnknownTopicOrPartitionError] * 3]
    assert store.create_topic("t", 2, replication_factor=3).partitions == 2
    await_in_sync(store)


def test_a_topic_that_is_created_again_is_altered_and_grows(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", 3, {"retention.ms": 1_000}, replication_factor=3)
    told = decided_together(
        store,
        partial(store.delete_topic, "t"),
        partial(store.create_topic, "t", replication_factor=2),
        partial(store.alter_topic, "t", {"segment.bytes": 100_000}),
        partial(store.add_partitions, "t", 2),
    )
    assert told == [None] * 4
    assert store.topics()["t"].config == {"segment.bytes": 100_000}
    assert [len(store.describe_partition("t", number).replicas) for number in range(2)] == [2, 2]
    await_in_sync(store)


def test_settings_that_are_changed_together_count_all(three: Directories) -> None:
    """The controller went by those alone that were changed last."""
    store = three.open()
    store.create_topic("t", replication_factor=3)
    changed = {"min.insync.replicas": 2, "unclean.leader.election.enable": True, "segment.bytes": 100_000}
    told = decided_together(
        store, *[partial(store.alter_topic, "t", {name: value}) for name, value in changed.items()]
    )
    assert told == [None] * 3
    assert store.topics()["t"].config == changed
    settings = store.replicated.controller._core.settings[PartitionKey("t", 0)]
    assert (settings.min_insync_replicas, settings.unclean_leader_election) == (2, True)


def test_a_name_is_used_again_and_again(three: Directories) -> None:
    store = three.open()
    for turn in range(5):
        store.create_topic("t", 5 - turn, replication_factor=3)
        log = store.partition("t", 0)
        assert log.append(b"%d" % turn) == 0
        if turn < 4:
            store.delete_topic("t")
    assert store.topics()["t"].partitions == 1
    assert log.read(0)[0].value == b"4"
    await_in_sync(store)


# --- topics that are made when they are needed -------------------------------------------------


def commit(three: Directories, store: Any) -> None:
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(0)}
    with pytest.raises(errors.RequestTimedOutError):
        shared(store, GroupOffsets).commit("g", offsets)
    shared(store, GroupOffsets).commit("g", offsets)


def transact(three: Directories, store: Any) -> None:
    """A producer tries again by itself."""
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()


def stage(three: Directories, store: Any) -> None:
    with Stager(three.paths[0]) as stager:
        stager.append_batch("t", 0, [b"staged"])
        message = stager.finish()
    with pytest.raises(errors.RequestTimedOutError):
        seal(three.paths[0], "id", [message], timeout=60)
    assert seal(three.paths[0], "id", [], timeout=60).records == 1  # what was sealed before is adopted


def keep_files(three: Directories, store: Any) -> None:
    with pytest.raises(errors.RequestTimedOutError):
        make_topic(store, "files", {})
    make_topic(store, "files", {})
    assert store.partition("files").append(b"value", key=b"key") == 0


USES = {
    "a tree of files": (keep_files, "files"),
    "a commit": (commit, "__consumer_offsets"),
    "a transaction": (transact, "__transaction_state"),
    "an adoption, in a transaction": (stage, "__transaction_state"),
    "an adoption, with its id": (stage, "__segstore_adopted"),
}


class DecidesLate:
    """A controller that decides the first creation of a topic after its caller was told of a timeout: when it
    is to be created again.
    """

    def __init__(self, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._topic, self._monkeypatch, self._again = topic, monkeypatch, threading.Event()
        self._create, self.tries = ReplicatedTopicAdmin.create_with, 0
        monkeypatch.setattr(ReplicatedTopicAdmin, "create_with", lambda *given: self._create_with(*given))

    def _create_with(self, admin: ReplicatedTopicAdmin, name: str, *given: Any) -> Any:
        make = partial(self._create, admin, name, *given)
        if name != self._topic:
            return make()
        self.tries += 1
        if self.tries > 1:
            self._again.set()
            return make()
        admin._controller.post(self._hold)
        with self._monkeypatch.context() as short:
            short.setattr(QuorumController, "call", partialmethod(QuorumController.call, timeout_ms=1))
            return make()

    def _hold(self, core: object, now: int) -> Decision:
        self._again.wait()
        return Decision()


@pytest.mark.parametrize("name", USES)
def test_a_topic_whose_creation_was_decided_after_its_time_is_found(
    name: str, three: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sealed was refused for ever, and a producer failed: the topic was there already."""
    use, topic = USES[name]
    store = three.open()
    store.create_topic("t", replication_factor=3)
    late = DecidesLate(topic, monkeypatch)
    use(three, store)
    assert late.tries == 2
    monkeypatch.undo()
    await_in_sync(store)
