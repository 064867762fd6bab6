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
from segstore.replication.quorum_controller import Decision, QuorumController
from segstore.replication.topic_admin import ReplicatedTopicAdmin
from segstore.storage.staging import Stager, seal

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


# --- topics of the store's own -----------------------------------------------------------------


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


USES = {
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
