"""By threads, while a directory's disk hangs: appends wait for no disk but the leader's, and those that wait
there go to the next leader.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from handed_over import BULK, KEY, handed_over, leader_of, lent, opened, replicas
from handed_over import three as three
from replicated_stores import Directories, await_in_sync, follower_of, found
from waiting import until

import segstore
from segstore._native import lib
from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey
from segstore.storage.log.append import append_columns, append_one

pytestmark = pytest.mark.kind("replicated stores")


def test_bulk_that_hangs_is_in_the_log_once_the_disk_answers(three: Directories) -> None:
    """The thread writes from memory that nobody else has meanwhile, and that the partition gives up."""
    values = BULK["a call of 1 MB"]
    with opened(three, replica_lag_time_max_ms=400) as store:
        tail, log = lent(store), store.partition("t")
        stuck = next(each for each in replicas(store) if each.partition.tail.native is tail.followers[0])
        three.files.hang(three.paths[stuck.broker])
        offsets = log.append_batch(values, timeout_ms=60_000)
        later = log.append_batch(values[::-1], timeout_ms=60_000)
        assert three.files.waiting
        three.files.mend()
        await_in_sync(store)
        assert list(map(found(log).get, [*offsets, *later])) == values + values[::-1]
        handed_over(store, lambda: log.append_batch(values))


def test_a_disk_that_hangs_is_left_to_its_threads(three: Directories) -> None:
    """The append is acknowledged once the ISR has shrunk; the others go on by one call of C meanwhile; when
    the disk answers, what was handed over is in the log, once.
    """
    with opened(three, replica_lag_time_max_ms=400) as store:
        tail, log = lent(store), store.partition("t")
        stuck = next(each for each in replicas(store) if each.partition.tail.native is tail.followers[0])
        others = [broker for broker in range(3) if broker != stuck.broker]
        store.create_topic("apart", assignments={0: others})
        lent(store, PartitionKey("apart", 0))
        three.files.hang(three.paths[stuck.broker])
        offset = log.append(b"handed over", timeout_ms=60_000)
        assert three.files.waiting
        assert stuck.broker not in store.describe_partition("t").isr
        assert not tail.followers[0].is_open
        apart = PartitionKey("apart", 0)
        handed_over(store, lambda: store.partition("apart").append(b"as fast as ever"), apart)
        stopping = threading.Thread(target=tail.followers[0].pause)
        stopping.start()
        stopping.join(0.2)
        assert stopping.is_alive()  # nobody has the log to change it as long as the write may still come
        three.files.mend()
        stopping.join(60)
        assert not tail.followers[0].c.unsettled
        await_in_sync(store)
        assert found(log)[offset] == b"handed over"
        lent(store)


def test_what_was_not_begun_is_cancelled(three: Directories) -> None:
    """Two partitions have a follower in a directory that hangs: the second's bytes are not written later."""
    with opened(three, replica_lag_time_max_ms=400) as store:
        other = PartitionKey("other", 0)
        store.create_topic("other", assignments={0: list(store.describe_partition("t").replicas)})
        tails = [lent(store, key) for key in (KEY, other)]
        stuck = follower_of(store.describe_partition("t"))
        found = [store.engine.manager.find(stuck, key) for key in (KEY, other)]
        at = [each.partition.tail.native for each in found]
        three.files.hang(three.paths[stuck])
        threads = [
            threading.Thread(target=store.partition(*key).append, args=(b"v",), kwargs={"timeout_ms": 60_000})
            for key in (KEY, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(tail.is_open for tail in (*tails, *at))
        assert sum(tail.c.unsettled for tail in at) < 2
        three.files.mend()
        await_in_sync(store)


def test_a_leader_whose_disk_hangs_holds_up_nobody_else(three: Directories) -> None:
    """It hangs within C's call, with the tail lent: another is elected, and the append is answered."""
    with opened(three, replica_lag_time_max_ms=400, broker_session_timeout_ms=1500) as store:
        lent(store)
        before = leader_of(store).broker
        log, told = store.partition("t"), []
        three.files.hang(three.paths[before])

        def append() -> None:
            try:
                told.append(log.append(b"stuck", timeout_ms=500))
            except segstore.SegstoreError as error:
                told.append(error)

        thread = threading.Thread(target=append)
        thread.start()
        until(lambda: (led := store.engine.manager.leader(KEY)) is not None and led.broker != before)
        until(lambda: log.append(b"later", timeout_ms=60_000) >= 0)
        three.files.mend()
        thread.join(60)
        assert len(told) == 1
        await_in_sync(store)
        if isinstance(told[0], int):
            assert found(log)[told[0]] == b"stuck"


WAITED_FOR = 2
"""The lock of a tail while another thread waits for it (`_native/tail_lock.h`)."""


Told = list[int | segstore.SegstoreError]


def appending(append: Callable[[], int], told: Told) -> threading.Thread:
    """Start a thread that appends, and notes what it was told."""

    def run() -> None:
        try:
            told.append(append())
        except segstore.SegstoreError as error:
            told.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def an_error(store: Any, leader: LocalReplica) -> None:
    """Another call to that disk fails."""
    store.engine.manager.failed(leader.broker, OSError(errno.EIO, "the disk is ill"))


OTHERS: dict[str, Callable[[Any, LocalReplica], None]] = {
    "its session ends": lambda store, leader: None,
    "its disk fails": an_error,
}


CALLS: dict[str, Callable[[Any], int]] = {
    "append": lambda log: log.append(b"waits", timeout_ms=60_000),
    "append_batch": lambda log: log.append_batch([b"waits"], timeout_ms=60_000).start,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("why", OTHERS)
def test_r27_appends_that_wait_for_one_that_hangs_go_to_the_next_leader(
    three: Directories, why: str, call: str
) -> None:
    """One append hangs within its write, with the lock of the tail; the others have written nothing."""
    with opened(three, replica_lag_time_max_ms=400, broker_session_timeout_ms=1500) as store:
        tail, log, leader, told = lent(store), store.partition("t"), leader_of(store), Told()
        three.files.hang(three.paths[leader.broker])
        threads = [appending(lambda: CALLS[call](log), told) for _ in range(3)]
        until(lambda: tail.c.lock == WAITED_FOR or told)
        OTHERS[why](store, leader)
        until(lambda: len(told) == 2)
        assert not all(thread.is_alive() for thread in threads)
        for offset in list(told):
            assert found(log)[offset] == b"waits"
        three.files.mend()
        for thread in threads:
            thread.join(60)
        assert len(told) == 3


def test_r32_a_leader_that_goes_offline_leads_no_more_when_it_turns_appends_away(
    three: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would come again, and wait for its append token, whose holder waits for the disk."""
    with opened(three) as store:
        leader, seen = (lent(store), leader_of(store))[1], list[bool]()
        quit_tail = leader.partition.tail.quit

        def noted() -> None:
            seen.append(store.engine.manager.leader(KEY) is leader)
            quit_tail()

        monkeypatch.setattr(leader.partition.tail, "quit", noted)
        an_error(store, leader)
        assert seen == [False]


def test_r27_no_append_begins_at_a_leader_that_was_fenced(
    three: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata names another leader, which has not heard of it: the append waits for that, and not for
    the disk.
    """
    with opened(three, replica_lag_time_max_ms=400, broker_session_timeout_ms=1500) as store:
        tail, log, before, told = lent(store), store.partition("t"), leader_of(store), Told()
        manager, asked = store.engine.manager, threading.Event()
        await_leaders = manager.await_leaders

        def noted(*arguments: Any) -> bool:
            asked.set()
            return bool(await_leaders(*arguments))

        monkeypatch.setattr(manager, "await_leaders", noted)
        three.files.hang(three.paths[before.broker])
        stuck = appending(lambda: log.append(b"stuck"), Told())
        until(lambda: tail.c.lock)
        with manager.redirecting:
            until(lambda: store.describe_partition("t").leader not in (before.broker, -1))
            appending(lambda: log.append(b"after", timeout_ms=60_000), told)
            until(lambda: asked.is_set() or tail.c.lock == WAITED_FOR)
        until(lambda: told)
        assert found(log)[told[0]] == b"after"
        assert stuck.is_alive()
        three.files.mend()
        stuck.join(60)


AT_THE_LEADER: dict[str, Callable[[Any], Any]] = {
    "a record": lambda partition: append_one(partition, b"v", None, (), None),
    "a list": lambda partition: append_columns(partition, [b"v"], None, None, None, None, 65536),
    "a compressed list": lambda partition: append_columns(partition, [b"v"], None, None, None, "gzip", 65536),
}


@pytest.mark.parametrize("how", AT_THE_LEADER)
def test_r27_whoever_came_by_the_log_before_is_refused(three: Directories, how: str) -> None:
    with opened(three) as store:
        leader = (lent(store), leader_of(store))[1]
        end = leader.replica.log_end_offset
        leader.fence(leader.core.leader.leader_epoch + 1)
        with pytest.raises(segstore.NotLeaderOrFollowerError, match="does not lead the partition any more"):
            AT_THE_LEADER[how](leader.partition)
        assert leader.replica.log_end_offset == end


def test_a_close_waits_for_no_disk_that_hangs(three: Directories) -> None:
    with opened(three) as store:
        lent(store)
        log, stuck = store.partition("t"), follower_of(store.describe_partition("t"))
        held = [each.partition for each in replicas(store)]  # what the thread writes from lives on
        three.files.hang(three.paths[stuck])
        with pytest.raises(segstore.SegstoreError):
            log.append(b"v", timeout_ms=100)
        closing = threading.Thread(target=lambda: suppressed(store.close))
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
        assert three.files._hanging
        three.files.mend()
        until(lambda: not held[stuck].tail.native or lib.seg_tail_quit(held[stuck].tail.native.c))


def suppressed(call: Callable[[], Any]) -> None:
    with suppress(segstore.SegstoreError, OSError):
        call()
