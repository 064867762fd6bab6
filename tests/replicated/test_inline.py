"""Inline: while all replicas are in sync an append writes all of them by one call of C, and falls back to the
followers' threads where anything is as it seldom is.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from producers import Senders, told
from replicated_stores import Directories, await_in_sync, follower_of, found, lack, log_bytes
from sent import batch
from waiting import PATIENCE, until

import segstore
from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey

pytestmark = pytest.mark.kind("replicated stores")

KEY = PartitionKey("t", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with opened(Directories(tmp_path, 3, inline=True)) as made:
        yield made


@contextmanager
def opened(directories: Directories) -> Iterator[Any]:
    """A store with one topic of three replicas, which must be sound and equal at the end."""
    try:
        made = directories.open(
            min_insync_replicas=2, replica_lag_time_max_ms=60_000, broker_session_timeout_ms=60_000
        )
        made.create_topic("t", replication_factor=3)
        made.kept_in = directories
        yield made
    finally:
        directories.close()
    directories.judge()


def leader_of(store: Any) -> LocalReplica:
    found = store.engine.manager.leader(KEY)
    assert isinstance(found, LocalReplica)
    return found


def lent(store: Any) -> LocalReplica:
    """Append until the next append is made inline; return the leader."""
    log, leader = store.partition("t"), leader_of(store)

    def is_open() -> bool:
        log.append(b"before")
        tail = leader.partition.tail.native
        return tail is not None and tail.is_open and len(tail.followers) == 2 and all_lent(tail)

    until(is_open)
    return leader


def all_lent(tail: Any) -> bool:
    return all(follower.is_open for follower in tail.followers)


def inline(store: Any, append: Callable[[], Any]) -> Any:
    """Append until that was done inline, and nobody has taken the tails back; return the last answer."""
    made: list[Any] = []

    def is_inline() -> bool:
        tail = lent(store).partition.tail.native
        before = 0 if tail is None else tail.c.appends
        made.append(append())
        return tail is not None and leader_of(store).partition.tail.native is tail and tail.c.appends > before

    until(is_inline)
    return made[-1]


def ends(store: Any) -> list[tuple[int, int]]:
    """Log end and high watermark of each replica, as the engine has them."""
    replicas = [store.engine.manager.find(broker, KEY).replica for broker in range(3)]
    return [(replica.log_end_offset, replica.high_watermark) for replica in replicas]


def test_r1_r15_all_replicas_have_the_bytes_and_show_them_when_the_append_returns(store: Any) -> None:
    log, directories = store.partition("t"), [path / "t-0" for path in store.kept_in.paths]
    first = inline(store, lambda: log.append(b"value", b"key"))
    assert ends(store) == [(first + 1, first + 1)] * 3
    made = inline(store, lambda: log.append_batch([b"%d" % n for n in range(1000)]))
    assert ends(store) == [(made.stop, made.stop)] * 3
    assert len({log_bytes(directory) for directory in directories}) == 1
    for path in store.kept_in.paths:  # as other processes see it
        with segstore.open(path, "r") as reader:
            assert reader.partition("t").read_one(first).value == b"value"
            assert reader.partition("t").end_offset == made.stop
    state = store.describe_partition("t")
    assert {each.log_end_offset for each in state.replica_states} == {made.stop}
    assert {each.lag for each in state.replica_states} == {0}


def test_r15_r17_the_core_hears_of_appends_inline_when_it_is_asked(store: Any) -> None:
    log = store.partition("t")
    for append in (
        lambda: log.append(b"v"),
        lambda: log.append(b"v", headers=[("h", b"v")]),
        lambda: log.append_batch([b"v"] * 10, compression="zstd"),
    ):
        inline(store, append)
    leader = leader_of(store)
    leader.settle()
    end = log.end_offset
    assert leader.core.log.high_watermark == leader.core.log.end_offset == end
    assert {remote.end_offset for remote in leader.core.leader.remotes.values()} == {end}


def test_followers_get_the_stamp_of_the_log(store: Any) -> None:
    store.alter_topic("t", {"message.timestamp.type": "LogAppendTime"})
    until(lambda: leader_of(store).partition.config.message_timestamp_type == "LogAppendTime")
    log = store.partition("t")
    for append in (
        lambda: log.append(b"v", timestamp=5),
        lambda: log.append_batch([b"v"] * 10, timestamps=5)[0],
        lambda: log.append_as_leader(batch(), acks=-1)[0],
    ):
        record = log.read_one(inline(store, append))
        assert abs(record.timestamp - time.time() * 1000) < 1000 * PATIENCE
    assert ends(store) == [(log.end_offset,) * 2] * 3
    for path in store.kept_in.paths:
        with segstore.open(path, "r") as reader:
            assert reader.partition("t").read_one(log.end_offset - 1).timestamp == record.timestamp


def test_a_reader_of_this_process_is_woken(store: Any) -> None:
    lent(store)
    log = store.partition("t")
    with segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer:
        values: list[Any] = []

        def polled(value: bytes) -> bool:
            for records in consumer.poll(60_000).values():
                values.extend(record.value for record in records)
            return value in values

        until(lambda: polled(b"before"))
        timer = threading.Timer(0.05, log.append, [b"seen"])
        timer.start()
        until(lambda: polled(b"seen"))
        timer.join()


@pytest.mark.parametrize("values", [[b"lacks"], [b"lacks", b"lacks too"]], ids=len)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_a_follower_lacks_is_not_shown_and_not_acknowledged(
    tmp_path: Path, code: int, values: list[bytes]
) -> None:
    directories = Directories(tmp_path, 3, inline=True)
    with opened(directories) as store:
        store.alter_topic("t", {"min.insync.replicas": 3})
        lack(directories, store, lent(store), code, values)
        if code == errno.ENOSPC:
            lent(store)


def test_r23_acks_1_returns_where_a_follower_lacks_it(tmp_path: Path) -> None:
    directories = Directories(tmp_path, 3, inline=True)
    with opened(directories) as store:
        lent(store)
        log, broken = store.partition("t"), follower_of(store.describe_partition("t"))
        before = log.end_offset
        directories.files.fail(directories.paths[broken] / "t-0", errno.ENOSPC, {"pwrite", "pwritev"})
        offset = log.append(b"led", acks=1)
        assert offset >= before
        assert leader_of(store).replica.log_end_offset == offset + 1
        directories.files.mend()
        await_in_sync(store)
        assert found(log)[offset] == b"led"


def test_who_waits_is_told_though_tails_were_lent_meanwhile(store: Any) -> None:
    """An append by the threads was committed, and the tails were lent, before its thread came to wait: then
    no follower had anything to fetch, and the append failed after timeout.ms.
    """
    for _ in range(20):
        leader = lent(store)
        leader.wait(leader.replica.log_end_offset, -1, PATIENCE * 1000)


def test_r25_after_an_election_the_next_leader_has_all_of_it(store: Any) -> None:
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
    assert lent(store).broker == order[0]


def test_segments_roll_at_each_replica(tmp_path: Path) -> None:
    directories = Directories(tmp_path, 3, inline=True)
    with opened(directories) as store:
        store.alter_topic("t", {"segment.bytes": 2000})
        log = store.partition("t")
        values = [b"%d" % n * 50 for n in range(300)]
        assert [log.append(value) for value in values] == list(range(300))
        assert list(found(log).values()) == values
        for path in directories.paths:
            assert len(list((path / "t-0").glob("*.log"))) > 5


def test_r35_what_idempotent_producers_append_is_written_inline(store: Any) -> None:
    """The first batch of each by the threads; what is known of producers is the same at each replica."""
    log = store.partition("t")
    senders = Senders(log)
    senders.turn()
    for _ in range(3):
        inline(store, senders.turn)
    last = inline(store, lambda: senders.send(1).first)
    assert (senders.send(1, back=1).first, senders.send(1, back=1).duplicate) == (last, True)
    await_in_sync(store)
    judge_producers(store)


def test_r35_a_follower_that_does_not_know_a_producer_has_its_batch_all_the_same(store: Any) -> None:
    log = store.partition("t")
    senders = Senders(log)
    senders.turn()
    inline(store, senders.turn)
    other = store.engine.manager.find(follower_of(store.describe_partition("t")), KEY)
    lent(store)
    with other.partition.token:
        assert other.partition.producers.expire(0) == 3
    for _ in range(5):
        made = senders.turn()
        assert [found(log)[offset] for offset in made] == [
            b"%d/%d" % (n, senders._next[n] - 1) for n in range(3)
        ]
    inline(store, senders.turn)
    await_in_sync(store)


def judge_producers(store: Any) -> None:
    """Each replica's table holds what its log says."""
    for broker in range(3):
        replica = store.engine.manager.find(broker, KEY)
        with replica.partition.token:
            expected, table = told(Path(replica.partition.directory)).state, replica.partition.producers.state
            assert len(table.producers) == 3
            assert table.producers == expected.producers
            assert min(entry.appended_ms for entry in table.producers.values()) > 0


def test_an_idempotent_producer_and_appends_beside_it(store: Any) -> None:
    lent(store)
    with segstore.Producer(store, acks="all", enable_idempotence=True) as producer:
        sent = [producer.send("t", b"%d" % n) for n in range(50)]
        producer.flush()
    offsets = [each.get(10).offset for each in sent]
    here = found(store.partition("t"))
    assert [here[offset] for offset in offsets] == [b"%d" % n for n in range(50)]
    await_in_sync(store)


def test_with_flush_messages_the_replicas_sync_at_the_same_time(tmp_path: Path) -> None:
    """Then followers fetch, each in its own thread."""
    directories = Directories(tmp_path, 3, inline=True)
    with opened(directories) as store:
        store.alter_topic("t", {"flush.messages": 1})
        for _ in range(5):
            store.partition("t").append(b"durable")
        assert not leader_of(store).partition.tail.may_be_open


def test_only_one_replica(tmp_path: Path) -> None:
    directories = Directories(tmp_path, 3, inline=True)
    with opened(directories) as store:
        store.create_topic("alone", replication_factor=1)
        log = store.partition("alone")
        assert [log.append(b"v") for _ in range(100)] == list(range(100))
        leader = store.engine.manager.leader(PartitionKey("alone", 0))
        until(lambda: log.append(b"v") and leader.partition.tail.may_be_open)
        directories.files.fail(directories.paths[leader.broker])
        until(lambda: 0 in store.describe_partition("alone").offline or leader.core.role is None)
        with pytest.raises(segstore.SegstoreError):
            log.append(b"lost", timeout_ms=100)


def test_a_tail_that_is_opened_while_its_replica_goes_offline(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that comes behind the pause finds that the replica has lost its role."""
    leader = lent(store)
    tail, pause = leader.partition.tail, leader.partition.tail.pause
    turns: list[bool] = []

    def opened_again() -> None:
        pause()
        with tail.token:
            """Whoever would open the tail takes it back first."""
        leader.open_tail()
        turns.append(tail.native.is_open)

    monkeypatch.setattr(tail, "pause", opened_again)
    leader.go_offline()
    assert turns == [False]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(segstore.SegstoreError, match="inline"):
        segstore.open_replicated([tmp_path / "d"], inline="yes")  # type: ignore[arg-type]
    assert not (tmp_path / "d").exists()


def test_a_disk_that_hangs_holds_up_an_append_until_it_answers(tmp_path: Path) -> None:
    directories = Directories(tmp_path, 3, inline=True)
    with opened(directories) as store:
        lent(store)
        log, made = store.partition("t"), []
        directories.files.hang(directories.paths[follower_of(store.describe_partition("t"))])
        thread = threading.Thread(target=lambda: made.append(log.append(b"held up")))
        thread.start()
        until(lambda: directories.files.waiting)
        assert not made
        assert b"held up" not in found(log).values()
        directories.files.mend()
        thread.join(120)
        assert found(log)[made[0]] == b"held up"
        await_in_sync(store)
