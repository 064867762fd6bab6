"""Changes of topics that several threads ask for at once are decided one after the other, though they become
durable together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from replicated_stores import Directories, await_in_sync

from segstore import errors

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
