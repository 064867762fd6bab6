"""By threads: while all replicas are in sync an append is one call of C, which hands the bytes over to a
native thread of each follower's directory, and waits for no disk that hangs.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from handed_over import BULK, KEY, handed_over, is_joined, leader_of, lent, opened, replicas
from handed_over import three as three
from paused_tails import let_tails_open, paused_tails
from producers import Senders, told
from replicated_stores import Directories, await_in_sync, found, lack, log_bytes
from waiting import until

import segstore
from segstore._native import ffi, lib
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.replica_fetch import ReplicaFetch
from segstore.replication.tail_openings import TailOpenings
from segstore.storage.segment.disk_thread import DiskThread

pytestmark = pytest.mark.kind("replicated stores")


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
