"""Fetch: what each version answers, limits, errors, isolation, quotas, and which calls it takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import versions
from faults import CountingFiles
from fetches import IDS_SINCE, Fetch, fetches, id_of, serving
from producers import send
from stores import killed

import segstore
from segstore.coordinator.quotas import Entity, quotas
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.records import scan
from segstore.server.apis import Api
from segstore.server.fetching import reading
from segstore.server.node import Node
from segstore.storage.log.transaction_markers import end_transaction

_Request = structs("FetchRequest")
T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    store.create_topic("t", partitions=3)
    node = serving(store)
    yield node
    node.close()


def fill(node: Node, batches: dict[int, int], size: int = 1000) -> None:
    """Append so many batches of about `size` bytes to partitions of topic t."""
    for partition, count in batches.items():
        for _ in range(count):
            node.store.partition("t", partition).append(b"x" * size)


def bases(part: Any) -> list[int]:
    """The base offsets of the batches in an answer."""
    return scan(bytes(part.records))[0]["base_offset"].tolist()


def test_each_version_answers_the_stored_bytes(node: Node) -> None:
    fill(node, {0: 3})
    with open(os.path.join(node.store.path, "t-0", "0" * 20 + ".log"), "rb") as file:
        stored = file.read()
    for version in versions(Api.FETCH):
        got = Fetch(node, {T0: 1, T1: 0}, version)
        name = id_of(node, "t") if version >= IDS_SINCE else "t"
        assert list(got.parts) == [(name, 0), (name, 1)], version
        first, second = got.parts.values()
        assert bytes(first.records) == stored[len(stored) // 3 :]
        assert bytes(second.records) == b""
        assert (first.error_code, first.high_watermark, first.last_stable_offset) == (0, 3, 3)
        assert (second.error_code, second.high_watermark, second.last_stable_offset) == (0, 0, 0)
        assert first.log_start_offset == (0 if version >= 5 else -1)
        assert (first.preferred_read_replica, first.diverging_epoch.epoch) == (-1, -1)
        answer = got.answer
        assert (answer.throttle_time_ms, answer.error_code, answer.session_id) == (0, 0, 0)


# --- limits ------------------------------------------------------------------------------------


def sizes(got: Fetch) -> list[int]:
    return [len(bases(each)) for each in got.parts.values()]


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes", "expected"),
    [
        pytest.param(1 << 20, 1 << 20, [4, 4], id="all of it"),
        pytest.param(1 << 20, 2500, [2, 2], id="a limit for each partition"),
        pytest.param(1 << 20, 10, [1, 0], id="one batch is larger than its partition's limit"),
        pytest.param(5500, 1 << 20, [4, 1], id="the first partition leaves something to the second"),
        pytest.param(2500, 1 << 20, [2, 0], id="the first partition leaves too little to the second"),
        pytest.param(10, 1 << 20, [1, 0], id="one batch is larger than the limit of all"),
        pytest.param(0, 0, [1, 0], id="nothing is allowed"),
        pytest.param(-1, -1, [1, 0], id="limits below zero"),
    ],
)
def test_limits(node: Node, max_bytes: int, partition_max_bytes: int, expected: list[int]) -> None:
    """Whole batches are answered, and at least one where there is any, however small the limits are."""
    fill(node, {0: 4, 1: 4})
    wanted = {key: {"fetch_offset": 0, "partition_max_bytes": partition_max_bytes} for key in (T0, T1)}
    assert sizes(Fetch(node, wanted, max_bytes=max_bytes)) == expected


def test_the_first_partition_that_has_data_gives_a_batch(node: Node) -> None:
    fill(node, {1: 2, 2: 2})
    assert sizes(Fetch(node, {T0: 0, T2: 0, T1: 0}, max_bytes=10)) == [0, 1, 0]


def test_the_order_of_partitions_is_their_priority(node: Node) -> None:
    fill(node, {0: 2, 1: 2})
    got = Fetch(node, {T1: 0, T0: 0}, max_bytes=10)
    assert (got.numbers, sizes(got)) == ([1, 0], [1, 0])


def test_the_server_s_limit_counts(store: segstore.Store) -> None:
    store.create_topic("t")
    node = serving(store, fetch_max_bytes=2500)
    fill(node, {0: 5})
    assert sizes(Fetch(node, {T0: 0})) == [2]
    node.close()


# --- errors ------------------------------------------------------------------------------------


def test_unknown_topics_and_partitions(node: Node) -> None:
    part = _Request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10)
    named = [_Request.FetchTopic(topic=name, partitions=[part]) for name in ("t", "u", "__cluster_metadata")]
    assert Fetch(node, {}, 12, topics=named).codes == [0, 3, 3]
    assert Fetch(node, {T0: 0, ("t", 3): 0, ("t", -1): 0}).codes == [0, 3, 3]
    with_ids = [
        _Request.FetchTopic(topic_id=each, partitions=[part])
        for each in (id_of(node, "t"), b"\x07" * 16, bytes(16))
    ]
    got = Fetch(node, {}, 13, topics=with_ids)
    assert got.codes == [0, Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_ID]
    assert [each.topic_id for each in got.answer.responses] == [each.topic_id for each in with_ids]


def test_an_error_s_part_has_no_offsets(node: Node) -> None:
    part = Fetch(node, {("t", 7): 0}).part
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (-1, -1, -1)
    assert bytes(part.records) == b""


def test_offset_out_of_range(node: Node) -> None:
    fill(node, {0: 3})
    for offset in (-1, 4, 1 << 62):
        assert Fetch(node, {T0: offset}).codes == [Code.OFFSET_OUT_OF_RANGE], offset


def test_offset_below_the_log_start(node: Node) -> None:
    fill(node, {0: 3})
    node.store.partition("t", 0).delete_records(2)
    assert Fetch(node, {T0: 1}).codes == [Code.OFFSET_OUT_OF_RANGE]
    assert Fetch(node, {T0: 2}).part.log_start_offset == 2


def test_leader_epochs_of_clients(node: Node) -> None:
    epoch = node.store.partition("t", 0).leader_epoch
    for version in (9, 12, 16, 18):
        for known, code in ((-1, 0), (epoch, 0), (epoch + 1, Code.UNKNOWN_LEADER_EPOCH)):
            got = Fetch(node, {T0: {"current_leader_epoch": known}}, version)
            assert got.codes == [code], (version, known)


@pytest.mark.parametrize(
    ("version", "epoch", "code"),
    [
        pytest.param(8, None, Code.NOT_LEADER_OR_FOLLOWER, id="no epochs yet"),
        pytest.param(12, -1, Code.NOT_LEADER_OR_FOLLOWER, id="no epoch"),
        pytest.param(12, 0, Code.UNKNOWN_LEADER_EPOCH, id="the epoch is the leader's"),
        pytest.param(14, 0, Code.UNKNOWN_LEADER_EPOCH, id="ids of topics"),
        pytest.param(15, 0, Code.UNKNOWN_LEADER_EPOCH, id="the broker's id is tagged"),
        pytest.param(17, -1, Code.NOT_LEADER_OR_FOLLOWER, id="the broker's id is tagged, no epoch"),
    ],
)
def test_other_brokers_get_nothing(node: Node, version: int, epoch: int | None, code: Code) -> None:
    """No broker has a replica here; a debugging consumer (-2) reads as any consumer does."""
    fill(node, {0: 1})
    here = node.store.partition("t", 0).leader_epoch
    known = {} if epoch is None else {"current_leader_epoch": here if epoch == 0 else -1}

    def got(replica_id: int) -> Fetch:
        state = {"replica_state": _Request.ReplicaState(replica_id=replica_id)}
        fields = state if version >= 15 else {"replica_id": replica_id}
        return Fetch(node, {T0: {"fetch_offset": 0, **known}}, version, **fields)

    assert got(2).codes == [code]
    assert bytes(got(2).part.records) == b""
    assert got(-2).codes == [Code.NONE]
    if version >= 16 and code is Code.NOT_LEADER_OR_FOLLOWER:
        leader = got(2).part.current_leader
        assert (leader.leader_id, leader.leader_epoch) == (node.node_id, here)
        [told] = got(2).answer.node_endpoints
        assert (told.node_id, told.host, told.port) == (node.node_id, *node.endpoint)


def test_a_client_s_last_epoch(store_dir: Path, tmp_path: Path) -> None:
    """Where the log does not have what a client fetched last, it is told where to go on (KIP-595)."""
    with segstore.open(tmp_path / "first") as store:
        store.create_topic("t")
        log = store.partition("t", 0)
        for value in (b"a", b"b", b"c"):
            log.append(value)
        old = log.leader_epoch
        with segstore.open(killed(tmp_path / "first", tmp_path / "second")) as again:
            assert again.partition("t", 0).leader_epoch == old + 1
            killed(tmp_path / "second", store_dir)
    with segstore.open(store_dir) as store:
        log = store.partition("t", 0)
        assert log.leader_epoch == old + 2
        log.append(b"d")
        node = serving(store)

        def got(offset: int, fetched: int) -> Any:
            return Fetch(node, {T0: {"fetch_offset": offset, "last_fetched_epoch": fetched}}).part

        for offset, fetched in ((3, old), (4, old + 2), (0, old), (2, -1)):
            part = got(offset, fetched)
            assert (part.error_code, part.diverging_epoch.epoch) == (0, -1)
        for offset, fetched, epoch, end in ((4, old, old, 3), (3, old + 1, old, 3), (4, old + 1, old, 3)):
            part = got(offset, fetched)
            assert (part.error_code, bytes(part.records)) == (0, b"")
            assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (epoch, end)
            assert (part.high_watermark, part.log_start_offset) == (4, 0)
        assert got(3, old + 3).error_code == Code.OFFSET_OUT_OF_RANGE
        fenced = Fetch(node, {T0: {"current_leader_epoch": old}}, 16)
        assert fenced.codes == [Code.FENCED_LEADER_EPOCH]
        leader, [told] = fenced.part.current_leader, fenced.answer.node_endpoints
        assert (leader.leader_id, leader.leader_epoch, told.node_id) == (node.node_id, old + 2, node.node_id)
        node.close()


# --- isolation ---------------------------------------------------------------------------------


def test_read_committed(node: Node) -> None:
    """It ends at the last stable offset, and has the aborted transactions."""
    log = node.store.partition("t", 0)
    log.append(b"before")
    for producer_id in (7, 8):
        send(log, producer_id, 0, txn=True)
    end_transaction([log], 7, 0, 0, commit=False)
    for version in (4, 11, 12, 18):
        got = Fetch(node, {T0: 0}, version, isolation_level=1).part
        assert (bases(got), got.high_watermark, got.last_stable_offset) == ([0, 1], 4, 2)
        assert [(each.producer_id, each.first_offset) for each in got.aborted_transactions] == [(7, 1)]
        got = Fetch(node, {T0: 0}, version, isolation_level=0).part
        assert (bases(got), got.high_watermark, got.last_stable_offset) == ([0, 1, 2, 3], 4, 2)
        assert got.aborted_transactions is None
        got = Fetch(node, {T0: 2}, version, isolation_level=1).part
        assert (bytes(got.records), got.aborted_transactions) == (b"", [])


def test_a_long_log_is_searched_for_aborted_transactions_by_a_worker(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; and not where there are no transactions among what is answered."""
    log = node.store.partition("t", 0)
    log.append(b"before")
    send(log, 7, 0, txn=True)
    end_transaction([log], 7, 0, 0, commit=False)
    node.store.partition("t", 1).append_batch([b"x"] * 100)
    monkeypatch.setattr(reading.Terms.__new__, "__defaults__", (2,))
    assert Fetch(node, {T1: 0}, isolation_level=1).part.aborted_transactions == []
    assert node.loop.works == 0
    got = Fetch(node, {T0: 0, T1: 0}, isolation_level=1, max_wait_ms=1000, min_bytes=1)
    assert (got.answer, node.loop.works) == (None, 1)
    node.loop.run()
    first, second = got.parts.values()
    assert [(each.producer_id, each.first_offset) for each in first.aborted_transactions] == [(7, 1)]
    assert (second.aborted_transactions, len(bases(second))) == ([], 1)
    assert Fetch(node, {T0: 0}, isolation_level=1).answer is not None
    assert node.loop.works == 1


def test_a_search_that_fails_is_answered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    log = node.store.partition("t", 0)
    send(log, 7, 0, txn=True)
    end_transaction([log], 7, 0, 0, commit=True)
    monkeypatch.setattr(reading.Terms.__new__, "__defaults__", (0,))

    def failing(*_: object) -> None:
        raise segstore.CorruptRecordError("a file", 0, 0, "a reason", 1)

    monkeypatch.setattr(log.aborted_transactions, "_replay", failing)
    got = Fetch(node, {T0: 0}, isolation_level=1)
    node.loop.run()
    assert (got.codes, node.loop.works) == ([Code.CORRUPT_MESSAGE], 1)


# --- quotas ------------------------------------------------------------------------------------


def test_a_client_s_rate(node: Node) -> None:
    """A fetch over the rate is answered, with the time for which its client must wait; until then it gets
    nothing; other clients go on.
    """
    node.store.context.clock = lambda: 1_000_000
    quotas(node.store).alter("slow", {"consumer_byte_rate": 1000})
    fill(node, {0: 30})
    first = Fetch(node, {T0: 0}, client_id="slow")
    assert sizes(first) == [9]  # no more than its rate allows within its window
    assert first.answer.throttle_time_ms == 0
    second = Fetch(node, {T0: 9}, client_id="slow")
    assert sizes(second) == [9]
    assert second.answer.throttle_time_ms > 0
    third = Fetch(node, {T0: 18}, client_id="slow")
    assert (third.answer.responses, third.answer.throttle_time_ms > 0) == ([], True)
    assert Fetch(node, {T0: 0}, client_id="fast").answer.throttle_time_ms == 0
    assert Fetch(node, {T0: 0}, client_id=None).answer.throttle_time_ms == 0


def test_a_quota_of_a_user_bounds_what_the_user_fetches(node: Node) -> None:
    """Who has not authenticated is the user ANONYMOUS."""
    fill(node, {0: 30})
    quotas(node.store).alter_entity(Entity("another", None), {"consumer_byte_rate": 1})
    assert Fetch(node, {T0: 0}, client_id="a").answer.throttle_time_ms == 0
    quotas(node.store).alter_entity(Entity("ANONYMOUS", None), {"consumer_byte_rate": 1})
    assert Fetch(node, {T0: 0}, client_id="a").answer.throttle_time_ms > 0
    assert Fetch(node, {T0: 0}, client_id="b").answer.throttle_time_ms > 0


# --- calls -------------------------------------------------------------------------------------


def test_one_call_of_the_disk_a_partition_and_no_read(store_dir: Path) -> None:
    """A look at a partition is one native call; records are not read. At its end there is no call at all."""
    files = CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", partitions=3)
        node = serving(store)
        fill(node, {0: 3, 1: 3})
        Fetch(node, {T0: 0, T1: 0, T2: 0})
        asked = wanted(node, {T0: 0, T1: 1, T2: 0})
        files.clear()
        found = reading.look(fetches(node)._logs, asked, TERMS)
        assert [name for name, _ in files.calls] == ["find_stretch", "find_stretch"]
        found.release()
        node.close()


TERMS = reading.Terms(12, -1, False, 0, 1, 1 << 20)


def wanted(node: Node, offsets: dict[tuple[str, int], int]) -> list[Any]:
    request = Fetch(node, offsets).request
    context = fetches(node).sessions.open(12, request.body, fetches(node)._logs)
    return list(context.wanted)


def test_stretches_are_released_where_a_later_partition_fails(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(node, {0: 1, 1: 1})
    asked = wanted(node, {T0: 0, T1: 0})
    made: list[Any] = []
    stretch = segstore.PartitionLog.stretch

    def failing(log: Any, *given: Any, **more: Any) -> Any:
        if log.partition == 1:
            raise MemoryError
        made.append(stretch(log, *given, **more))
        return made[-1]

    monkeypatch.setattr(segstore.PartitionLog, "stretch", failing)
    with pytest.raises(MemoryError):
        reading.look(fetches(node)._logs, asked, TERMS)
    assert [each.fileno() for each in made] == [-1]
