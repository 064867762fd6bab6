"""R16, R23: fewer in-sync replicas than min.insync.replicas: what is refused, what waits, what is shown."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from replicated_stores import Directories, await_in_sync, follower_of, found
from waiting import until

import segstore
from segstore.errors import NotEnoughReplicasError, RequestTimedOutError
from segstore.replication.metadata.image import PartitionKey

pytestmark = pytest.mark.kind("replicated stores")


def await_alone(store: Any, topic: str) -> None:
    """Wait until 0 alone is in sync, and until it has heard of what the controller has decided."""
    until(lambda: store.describe_partition(topic, 0).isr == (0,))
    leader = store.replicated.manager.leader(PartitionKey(topic, 0))
    until(lambda: leader.core.leader.isr.isr == {0})


def one_lost(three: Directories, **config: Any) -> tuple[Any, Any]:
    """A topic on directories 0 and 1 that needs both, and 1 is lost."""
    store = three.open(**config)
    store.create_topic("t", assignments={0: [0, 1]}, config={"min.insync.replicas": 2})
    log = store.partition("t", 0)
    log.append(b"acknowledged")
    three.lose(1)
    await_alone(store, "t")
    return store, log


def test_r23_too_few_replicas_nothing_is_written(three: Directories) -> None:
    _, log = one_lost(three)
    end = log.log_end_offset
    for _ in range(3):
        with pytest.raises(NotEnoughReplicasError, match=r"min\.insync\.replicas is 2"):
            log.append(b"refused", acks="all")
        with pytest.raises(NotEnoughReplicasError):
            log.append_batch([b"refused"] * 100, acks="all")
    assert log.log_end_offset == end


def test_r23_acks_all_is_the_default(three: Directories) -> None:
    _, log = one_lost(three)
    with pytest.raises(NotEnoughReplicasError):
        log.append(b"refused")


def test_r16_acks_1_is_written_and_not_shown(three: Directories) -> None:
    store, log = one_lost(three)
    assert log.append(b"acks=1", acks=1) == 1
    assert log.append_batch([b"x", b"y"], acks=1) == range(2, 4)
    assert (log.log_end_offset, log.high_watermark, log.end_offset) == (4, 1, 1)
    assert found(log) == {0: b"acknowledged"}
    assert len(log.read(0)) == 1
    with segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in next(iter(until(lambda: consumer.poll(200)).values()))] == [
            b"acknowledged"
        ]
        assert not consumer.poll(300)


def test_r16_who_was_not_shown_is_shown_when_the_replica_is_back(three: Directories) -> None:
    store, log = one_lost(three)
    log.append(b"acks=1", acks=1)
    store.close()
    three.bring_back()
    with three.open() as again:
        await_in_sync(again)
        until(lambda: again.partition("t", 0).high_watermark == 2)
        assert found(again.partition("t", 0)) == {0: b"acknowledged", 1: b"acks=1"}
        assert again.partition("t", 0).append(b"and on", acks="all") == 2


@pytest.mark.hangs
def test_r23_a_follower_that_hangs_lets_an_append_time_out_and_its_outcome_is_not_known(
    three: Directories,
) -> None:
    store = three.open()
    store.create_topic("t", assignments={0: [0, 1]}, config={"min.insync.replicas": 2})
    log = store.partition("t", 0)
    log.append(b"acknowledged")
    three.files.hang(three.paths[1])
    began = time.monotonic()
    with pytest.raises(RequestTimedOutError):
        log.append(b"unknown", acks="all", timeout_ms=250)
    assert time.monotonic() - began < 30
    assert (log.log_end_offset, log.end_offset) == (2, 1)
    await_alone(store, "t")
    with pytest.raises(NotEnoughReplicasError):
        log.append(b"refused", acks="all")
    assert (log.log_end_offset, log.end_offset) == (2, 1), "R16: it is not shown by a smaller ISR"
    three.files.mend()
    await_in_sync(store)
    until(lambda: log.end_offset == 2)
    assert found(log) == {0: b"acknowledged", 1: b"unknown"}
    assert log.append(b"and on", acks="all") == 2


@pytest.mark.hangs
def test_r19_with_enough_others_an_append_waits_for_the_eviction_and_succeeds(three: Directories) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    log.append(b"first")
    stuck = follower_of(store.describe_partition("t", 0))
    three.files.hang(three.paths[stuck])
    assert log.append(b"second", acks="all", timeout_ms=60_000) == 1
    assert stuck not in store.describe_partition("t", 0).isr
    assert log.end_offset == 2


def test_several_appends_wait_at_once_and_each_gets_its_own_answer(three: Directories) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    told: dict[int, int] = {}

    def append(number: int) -> None:
        told[number] = log.append(b"%d" % number, acks="all", timeout_ms=60_000)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(40)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert sorted(told.values()) == list(range(40))
    assert found(log) == {offset: b"%d" % number for number, offset in told.items()}


def test_min_insync_replicas_is_changed_while_the_store_is_open(three: Directories) -> None:
    store, log = one_lost(three)
    with pytest.raises(NotEnoughReplicasError):
        log.append(b"refused", acks="all")
    store.alter_topic("t", {"min.insync.replicas": 1})
    until(lambda: _appended(log, b"one is enough"))
    store.alter_topic("t", {"min.insync.replicas": None})
    assert store.topics()["t"].config == {}
    assert log.append(b"by the store's setting", acks="all") == 2


def _appended(log: Any, value: bytes) -> bool:
    try:
        log.append(value, acks="all")
    except NotEnoughReplicasError:  # the directories hear of the change a moment later
        return False
    return True


def test_the_store_s_setting_holds_for_topics_without_one(three: Directories) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", assignments={0: [0, 1]})
    store.create_topic("own", assignments={0: [0, 1]}, config={"min.insync.replicas": 1})
    three.lose(1)
    for topic in ("t", "own"):
        await_alone(store, topic)
    with pytest.raises(NotEnoughReplicasError):
        store.partition("t", 0).append(b"refused", acks="all")
    assert store.partition("own", 0).append(b"taken", acks="all") == 0


def test_one_replica_needs_no_second_one(three: Directories) -> None:
    """R16: min.insync.replicas counts at most the number of replicas."""
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=1)
    assert store.partition("t", 0).append(b"x", acks="all") == 0
    assert found(store.partition("t", 0)) == {0: b"x"}
