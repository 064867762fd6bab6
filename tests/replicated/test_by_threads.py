"""By threads: while all replicas are in sync an append is one call of C, which hands the bytes over to a
native thread of each follower's directory, and waits for no disk that hangs.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from paused_tails import let_tails_open, paused_tails
from producers import Senders, told
from replicated_stores import Directories, await_in_sync, follower_of, found, lack, log_bytes
from waiting import until

import segstore
from segstore._native import ffi, lib
from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.replica_fetch import ReplicaFetch
from segstore.replication.tail_openings import TailOpenings
from segstore.storage.log.append import append_columns, append_one
from segstore.storage.segment.disk_thread import DiskThread

pytestmark = pytest.mark.kind("replicated stores")

KEY = PartitionKey("t", 0)


@contextmanager
def opened(directories: Directories, **config: Any) -> Iterator[Any]:
    """A store with one topic of three replicas, which must be sound and equal at the end."""
    settings = {"replica_lag_time_max_ms": 60_000, "broker_session_timeout_ms": 60_000, **config}
    try:
        made = directories.open(min_insync_replicas=2, **settings)
        made.create_topic("t", replication_factor=len(directories.paths))
        yield made
    finally:
        directories.close()
    directories.judge()


@pytest.fixture
def three(tmp_path: Path) -> Directories:
    return Directories(tmp_path, 3)


def replicas(store: Any, key: PartitionKey = KEY) -> list[LocalReplica]:
    return [store.engine.manager.find(broker, key) for broker in range(3)]


def leader_of(store: Any, key: PartitionKey = KEY) -> LocalReplica:
    found = store.engine.manager.leader(key)
    assert isinstance(found, LocalReplica)
    return found


def is_joined(tail: Any) -> bool:
    return tail is not None and tail.is_open and all(each.is_open for each in tail.followers)


def lent(store: Any, key: PartitionKey = KEY) -> Any:
    """Append until the next append is handed over; return the leader's tail."""
    log, leader = store.partition(*key), leader_of(store, key)

    def look() -> bool:
        log.append(b"before")
        return is_joined(leader.partition.tail.native)

    until(look)
    return leader.partition.tail.native


def handed_over(store: Any, append: Callable[[], Any], key: PartitionKey = KEY) -> Any:
    """Append until that was done by one call of C, which all replicas took: on a busy machine their threads
    may be late. Return the last answer.
    """
    made: list[Any] = []

    def look() -> bool:
        tail = lent(store, key)
        before = tail.c.appends
        made.append(append())
        return tail.c.appends > before and is_joined(tail)

    until(look)
    return made[-1]


def test_r1_r15_all_replicas_have_the_bytes_and_show_them_when_the_append_returns(three: Directories) -> None:
    with opened(three) as store:
        log = store.partition("t")
        first = handed_over(store, lambda: log.append(b"value", b"key", [("h", b"v")]))
        tail = leader_of(store).partition.tail.native
        assert tail.c.hands_over
        assert all(follower.by_thread for follower in tail.followers)
        ends = {(each.replica.log_end_offset, each.replica.high_watermark) for each in replicas(store)}
        assert ends == {(first + 1, first + 1)}
        assert len({log_bytes(path / "t-0") for path in three.paths}) == 1
        for path in three.paths:  # as other processes see it
            with segstore.open(path, "r") as reader:
                assert reader.partition("t").read_one(first).value == b"value"
                assert reader.partition("t").end_offset == first + 1
        assert {each.lag for each in store.describe_partition("t").replica_states} == {0}


def test_r35_what_idempotent_producers_append_is_handed_over(three: Directories) -> None:
    """The first batch of each is fetched; what is known of producers is the same at each replica."""
    with opened(three) as store:
        senders = Senders(store.partition("t"))
        senders.turn()
        for _ in range(3):
            handed_over(store, senders.turn)
        last = handed_over(store, lambda: senders.send(1).first)
        assert (senders.send(1, back=1).first, senders.send(1, back=1).duplicate) == (last, True)
        await_in_sync(store)
        for each in replicas(store):
            with each.partition.token:
                expected, table = told(Path(each.partition.directory)).state, each.partition.producers.state
                assert len(table.producers) == 3
                assert table.producers == expected.producers


def test_no_python_of_followers_runs(three: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: the only write of each replica is that of C's thread."""
    with opened(three) as store:
        log = store.partition("t")
        fetches: list[ReplicaFetch] = []
        fetch = ReplicaFetch.once
        monkeypatch.setattr(ReplicaFetch, "once", lambda it, *more: fetches.append(it) or fetch(it, *more))

        def look() -> bool:
            tail = lent(store)
            fetches.clear()
            before = [each.c.appends for each in (tail, *tail.followers)]
            for _ in range(50):
                log.append(b"v")
            after = [each.c.appends for each in (tail, *tail.followers)]
            return after == [n + 50 for n in before] and not fetches

        until(look)


def test_the_bytes_are_those_of_the_long_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of many shapes, segments that roll, index entries: files of all replicas, by both ways."""
    trees = []
    for way in ("short", "long"):
        base = tmp_path / way
        base.mkdir()
        let_tails_open(monkeypatch, way == "short")
        directories, in_c = Directories(base, 3), 0
        with opened(directories) as store:
            store.alter_topic("t", {"segment.bytes": 40_000, "index.interval.bytes": 1000})
            log, leader = store.partition("t"), leader_of(store)
            for n in range(400):
                value = b"%d" % n * (n % 50)
                log.append(
                    value or None, b"k" * (n % 3) or None, [("h", b"v")] * (n % 3), 1_700_000_000_000 + n
                )
                in_c += is_joined(leader.partition.tail.native)
                if n % 100 == 99:
                    log.append_batch([b"x" * 2000] * 20, timestamps=[1_700_000_000_000 + n] * 20)
        assert (in_c > 50) == (way == "short")
        folders = [path / "t-0" for path in directories.paths]
        kinds = "*.log", "*.index", "*.timeindex"
        trees += [
            {file.name: file.read_bytes() for kind in kinds for file in sorted(folder.glob(kind))}
            for folder in folders
        ]
        assert len(trees[0]) >= 6
    assert all(tree == trees[0] for tree in trees)


BULK = {
    "a batch with no room in a job": [b"v" * 20_000],
    "more batches than a job has room for": [b"v" * 9_000] * 10,
    "a call of 1 MB": [b"%04d" % n * 100 for n in range(2_500)],
}


@pytest.mark.parametrize("what", BULK)
def test_r1_appends_in_bulk_are_handed_over(three: Directories, what: str) -> None:
    """By C's thread, of which the memory serves one append after the other, also of other partitions."""
    values = BULK[what]
    with opened(three) as store:
        other = PartitionKey("other", 0)
        store.create_topic("other", assignments={0: list(store.describe_partition("t").replicas)})
        for key in (KEY, other, KEY):
            log = store.partition(*key)
            offsets = handed_over(store, lambda log=log: log.append_batch(values), key)  # type: ignore[misc]
            assert list(map(found(log).get, offsets)) == values
        assert len({log_bytes(path / "t-0") for path in three.paths}) == 1
        assert len({log_bytes(path / "other-0") for path in three.paths}) == 1


def test_more_than_a_job_may_be_is_fetched(three: Directories) -> None:
    with opened(three) as store:
        log = store.partition("t")
        for values, size in (([b"v"] * (lib.SEG_HANDED + 1), 1), ([b"v" * 1_000] * 3_000, 16_384)):
            tail = lent(store)
            before = tail.c.appends
            offsets = log.append_batch(values, batch_bytes=size)
            assert tail.c.appends <= before  # 0 once the tail is opened again
            assert list(map(found(log).get, offsets)) == values


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


def test_the_core_hears_of_it_when_it_is_asked(three: Directories) -> None:
    with opened(three) as store:
        log = store.partition("t")
        handed_over(store, lambda: log.append(b"v"))
        leader = leader_of(store)
        leader.settle()
        assert leader.core.log.high_watermark == leader.core.log.end_offset == log.end_offset
        assert {remote.end_offset for remote in leader.core.leader.remotes.values()} == {log.end_offset}
        assert is_joined(leader.partition.tail.native)  # to ask takes nothing back


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("values", [[b"lacks"], BULK["a call of 1 MB"]], ids=["one", "bulk"])
def test_what_a_follower_lacks_is_not_shown_and_not_acknowledged(
    three: Directories, code: int, values: list[bytes]
) -> None:
    with opened(three) as store:
        store.alter_topic("t", {"min.insync.replicas": 3})
        lent(store)
        lack(three, store, leader_of(store), code, values)
        if code == errno.ENOSPC:
            lent(store)


def taken_over(store: Any, native: Any) -> list[tuple[int, bool, int]]:
    """Of each time that a tail is paused from now on: errno, what is hidden, and the end that was shown."""
    partition = next(each.partition for each in replicas(store) if each.partition.tail.native is native)
    token, seen = partition.tail.token, list[tuple[int, bool, int]]()
    on_taken = token.on_taken

    def note() -> None:
        if partition.tail.may_be_open:
            native.pause()
            seen.append((native.c.torn, bool(native.c.hidden), native.c.shown_offset))
        on_taken()

    token.on_taken = note
    return seen


def test_a_disk_without_room_as_the_kernel_tells_it(three: Directories) -> None:
    """The thread's own write, by no hook: /dev/full takes the place of the follower's file."""
    full = os.open("/dev/full", os.O_WRONLY)
    with opened(three) as store:
        tail, log = lent(store), store.partition("t")
        broken = tail.followers[0]
        seen = {each: taken_over(store, each) for each in (broken, tail)}
        broken.c.write, broken.c.fd = ffi.NULL, full
        offset = log.append(b"comes by the follower's own thread")
        until(lambda: seen[broken] and seen[tail])
        assert seen[broken][0] == (errno.ENOSPC, False, offset)
        assert seen[tail][0] == (0, True, offset)
        await_in_sync(store)
        assert found(log)[offset] == b"comes by the follower's own thread"
        lent(store)
    os.close(full)


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


def test_a_child_that_was_forked_appends_nothing(three: Directories) -> None:
    with opened(three) as store:
        tail, log = lent(store), store.partition("t")
        before, child = log.end_offset, os.fork()
        if not child:
            code = 1
            try:
                log.append(b"of the child", timeout_ms=1000)
            except segstore.ForkedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tail.is_open
        assert log.append(b"of the parent") == before


def test_whoever_takes_the_token_of_a_follower_takes_its_tail(three: Directories) -> None:
    """Retention, a roll, a flush of one replica: the next append finds its follower apart, waits for it as
    ever, and later ones are handed over again.
    """
    with opened(three) as store:
        tail, log = lent(store), store.partition("t")
        apart = next(each for each in replicas(store) if each.partition.tail.native is tail.followers[0])
        with paused_tails():
            apart.partition.roll()
            offset = log.append(b"behind")
            assert not is_joined(tail)
        assert found(log)[offset] == b"behind"
        lent(store)


def test_r25_after_an_election_the_next_leader_has_all_of_it(three: Directories) -> None:
    with opened(three) as store:
        lent(store)
        log = store.partition("t")
        values = {log.append(b"%d" % n): b"%d" % n for n in range(20)}
        before = leader_of(store).broker
        order = [broker for broker in (0, 1, 2) if broker != before] + [before]
        store.reassign({("t", 0): order})
        until(lambda: not store.reassignments())
        store.elect_leaders("preferred")
        until(lambda: leader_of(store).broker == order[0])
        values |= {log.append(b"later"): b"later"}
        assert values.items() <= found(log).items()
        lent(store)


def test_large_appends_and_many_writers(three: Directories) -> None:
    """What is larger than a job may be goes the long way; threads append at once, to two partitions."""
    with opened(three) as store:
        store.create_topic("u", replication_factor=3)
        lent(store)
        told: dict[tuple[str, int], bytes] = {}

        def append(topic: str, number: int) -> None:
            log = store.partition(topic)
            for n in range(60):
                value = b"%d-%d " % (number, n) * (4_000 if n % 20 == 19 else 3)
                told[topic, log.append(value)] = value

        threads = [threading.Thread(target=append, args=("tu"[n % 2], n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(told) == 240
        here = {topic: found(store.partition(topic)) for topic in "tu"}
        assert all(here[topic][offset] == value for (topic, offset), value in told.items())


@pytest.mark.parametrize("opening", ["open_leader", "open_follower"])
def test_a_tail_that_is_opened_while_its_replica_goes_offline(
    three: Directories, monkeypatch: pytest.MonkeyPatch, opening: str
) -> None:
    """The directory's thread has looked at the role before; then C appends no more."""
    with opened(three) as store:
        lent(store)
        leader = leader_of(store)
        others = [each for each in replicas(store) if each is not leader]
        replica = leader if opening == "open_leader" else others[0]
        open_tail, was_open = getattr(replica.partition.tail, opening), list[bool]()

        def open_late(*arguments: Any) -> Any:
            replica.go_offline()
            answer = open_tail(*arguments)
            was_open.append(replica.partition.tail.native.is_open)
            return answer

        monkeypatch.setattr(replica.partition.tail, opening, open_late)
        with replica.partition.token:
            """Its tail is paused."""
        log = store.partition("t")
        with suppress(segstore.SegstoreError):
            until(lambda: log.append(b"after", timeout_ms=100) and was_open)
        until(lambda: was_open)
        assert was_open[0]
        until(lambda: not replica.partition.tail.native.is_open)


def test_a_tail_opened_in_vain_is_not_opened_again_at_once() -> None:
    class Tail:
        is_open = moved = False

    openings, tail = TailOpenings(), Tail()
    chances = []
    for _ in range(4):
        openings.began(tail)  # type: ignore[arg-type]
        chances.append(next(n for n in range(100) if openings.are_due()))
    assert chances == [0, 2, 6, 14]
    tail.moved = True
    openings.began(tail)  # type: ignore[arg-type]
    assert openings.are_due()


def test_a_thread_that_has_ended_takes_no_job() -> None:
    thread = DiskThread()
    job = thread.job()
    assert job is not None
    assert thread.end(10)
    assert thread.end(0)
    assert DiskThread().end(0)  # which has never begun
    late = DiskThread()
    assert late.end(0)
    assert late.job() is None
