"""ListOffsets and OffsetForLeaderEpoch: offsets of times, of places, and of the ends of leader epochs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import send as request
from calls import versions
from compaction import clean, open_compacted, put, roll
from fetches import serving
from producers import send
from stores import Clock, killed

import segstore
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.storage.log.transaction_markers import end_transaction

_Offsets, _Ends = structs("ListOffsetsRequest"), structs("OffsetForLeaderEpochRequest")
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NONE = (0, -1, -1)


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    store.create_topic("t", partitions=2, config={"segment.bytes": 1000})
    node = serving(store)
    yield node
    node.close()


def asked(node: Node, version: int, *given: tuple[int, int], topic: str = "t", **fields: Any) -> list[Any]:
    """Return the answers for pairs of partition and timestamp."""
    parts = [_Offsets.ListOffsetsPartition(partition_index=p, timestamp=t) for p, t in given]
    topics = [_Offsets.ListOffsetsTopic(name=topic, partitions=[part]) for part in parts]
    sent = request(node, Api.LIST_OFFSETS, version, **{"replica_id": -1, "topics": topics, **fields})
    [body] = sent.answers
    assert [each.name for each in body.topics] == [topic] * len(given)
    return [part for each in body.topics for part in each.partitions]


def found(node: Node, timestamp: int, version: int = 10, **fields: Any) -> tuple[int, int, int]:
    """Return (error, timestamp, offset) of partition 0."""
    [part] = asked(node, version, (0, timestamp), **fields)
    return part.error_code, part.timestamp, part.offset


def fill(node: Node, *timestamps: int) -> segstore.PartitionLog:
    log = node.store.partition("t", 0)
    for each in timestamps:
        log.append(b"x" * 100, timestamp=each)
    return log


def test_each_version(node: Node) -> None:
    log = fill(node, 100, 300, 200)
    for version in versions(Api.LIST_OFFSETS):
        got = [asked(node, version, (0, each))[0] for each in (LATEST, EARLIEST, 150, 301)]
        offsets = [(0, -1, 3), (0, -1, 0), (0, 300, 1), NONE]
        assert [(each.error_code, each.timestamp, each.offset) for each in got] == offsets
        epoch = log.leader_epoch if version >= 4 else -1
        assert [each.leader_epoch for each in got] == [epoch, epoch, epoch, -1]


@pytest.mark.parametrize(
    ("place", "since", "expected"),
    [
        pytest.param(LATEST, 1, (0, -1, 3), id="latest"),
        pytest.param(EARLIEST, 1, (0, -1, 1), id="earliest"),
        pytest.param(MAX_TIMESTAMP, 7, (0, 300, 1), id="max timestamp"),
        pytest.param(EARLIEST_LOCAL, 8, (0, -1, 1), id="earliest local"),
        pytest.param(LATEST_TIERED, 9, NONE, id="latest tiered: nothing is"),
        pytest.param(PENDING_UPLOAD, 11, NONE, id="earliest pending upload: nothing is"),
        pytest.param(-7, 12, NONE, id="of later versions"),
        pytest.param(-100, 99, NONE, id="of no version"),
    ],
)
def test_places(node: Node, place: int, since: int, expected: tuple[int, int, int]) -> None:
    fill(node, 100, 300, 200).delete_records(1)
    for version in versions(Api.LIST_OFFSETS):
        known = expected if version >= since else (Code.UNSUPPORTED_VERSION, -1, -1)
        assert found(node, place, version) == known


def test_the_first_record_of_a_time_or_later(node: Node) -> None:
    """Wherever it lies: the log has several segments."""
    fill(node, 100, 300, *[200] * 20)
    expected = {0: (0, 100, 0), 100: (0, 100, 0), 101: (0, 300, 1), 300: (0, 300, 1), 301: NONE}
    assert {each: found(node, each) for each in expected} == expected


def test_an_empty_log(node: Node) -> None:
    assert [found(node, each) for each in (0, MAX_TIMESTAMP)] == [NONE, NONE]
    assert [found(node, each) for each in (LATEST, EARLIEST)] == [(0, -1, 0), (0, -1, 0)]


def test_the_largest_timestamp_is_in_an_older_segment(node: Node) -> None:
    log = fill(node, 100, 900, *[200] * 20)
    assert len(log.view.segments) > 1
    assert found(node, MAX_TIMESTAMP) == (0, 900, 1)
    log.delete_records(2)
    assert found(node, MAX_TIMESTAMP) == (0, 200, 2)


def test_the_largest_timestamp_lies_below_the_log_start(node: Node) -> None:
    """Within one batch, of which the rest is still there."""
    log = node.store.partition("t", 0)
    log.append_batch([b"a", b"b", b"c"], timestamps=[900, 100, 300])
    fill(node, 200)
    assert found(node, MAX_TIMESTAMP) == (0, 900, 0)
    log.delete_records(1)
    assert found(node, MAX_TIMESTAMP) == (0, 300, 2)
    log.delete_records(3)
    assert found(node, MAX_TIMESTAMP) == (0, 200, 3)


def test_a_marker_has_the_largest_timestamp(store_dir: Path) -> None:
    """As in Kafka, whose time indexes have markers too; a time is looked for among records."""
    with segstore.open(store_dir, clock=Clock(step=10)) as store:
        store.create_topic("t")
        log = store.partition("t")
        send(log, 7, 0, txn=True)
        end_transaction([log], 7, 0, 0, commit=True)
        node = serving(store)
        error, timestamp, offset = found(node, MAX_TIMESTAMP)
        assert (error, offset) == (0, 1)
        assert found(node, timestamp) == NONE
        node.close()


def test_a_gap_that_compaction_left(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t", 0)
        for i in range(20):
            put(log, (b"k", b"%d" % i))
        roll(store)
        clean(store)
        kept = log.read(0).offsets.tolist()
        node = serving(store)
        assert found(node, 0)[2] == kept[0]
        node.close()


def test_isolation(node: Node) -> None:
    """Latest is the high watermark, or the last stable offset; a time beyond that has no offset."""
    log = fill(node, 100, 200)
    send(log, 7, 0, txn=True)
    after = log.read(2).timestamps[0]
    assert [found(node, LATEST, 2, isolation_level=each) for each in (0, 1)] == [(0, -1, 3), (0, -1, 2)]
    assert found(node, after, 2, isolation_level=0) == (0, after, 2)
    assert found(node, after, 2, isolation_level=1) == NONE
    assert found(node, MAX_TIMESTAMP, 7, isolation_level=1) == NONE
    assert found(node, LATEST, 2, isolation_level=1, replica_id=-2) == (0, -1, 3)


def test_errors(node: Node) -> None:
    fill(node, 100)
    parts = asked(node, 10, (0, LATEST), (7, LATEST), (-1, 0))
    assert [(each.error_code, each.offset) for each in parts] == [(0, 1), (3, -1), (3, -1)]
    [unknown] = asked(node, 10, (0, LATEST), topic="u")
    assert (unknown.error_code, unknown.timestamp, unknown.offset, unknown.leader_epoch) == (3, -1, -1, -1)


def test_a_partition_that_is_named_twice(node: Node) -> None:
    parts = asked(node, 10, (0, LATEST), (1, LATEST), (0, EARLIEST))
    assert [each.error_code for each in parts] == [Code.INVALID_REQUEST, 0, Code.INVALID_REQUEST]


@pytest.mark.parametrize("api", [Api.LIST_OFFSETS, Api.OFFSET_FOR_LEADER_EPOCH])
def test_leader_epochs_of_clients(store_dir: Path, tmp_path: Path, api: Api) -> None:
    with again(store_dir, tmp_path) as store:
        node, epoch = serving(store), store.partition("t").leader_epoch
        for known, code in ((-1, 0), (epoch, 0), (epoch - 1, 74), (epoch + 1, 75)):
            if api is Api.LIST_OFFSETS:
                part = _Offsets.ListOffsetsPartition(
                    partition_index=0, timestamp=LATEST, current_leader_epoch=known
                )
                topics = [_Offsets.ListOffsetsTopic(name="t", partitions=[part])]
                [body] = request(node, api, 10, replica_id=-1, topics=topics).answers
                assert body.topics[0].partitions[0].error_code == code
            else:
                assert end(node, 4, epoch, known)[0] == code
        node.close()


def test_a_search_is_a_worker_s(node: Node) -> None:
    """Ends are answered in the loop, times in a worker thread; one failure ends no other search."""
    fill(node, 100)
    found(node, LATEST)
    found(node, EARLIEST)
    assert node.loop.works == 0
    found(node, 50)
    found(node, MAX_TIMESTAMP)
    assert node.loop.works == 2


# --- OffsetForLeaderEpoch ----------------------------------------------------------------------


def again(store_dir: Path, tmp_path: Path) -> segstore.Store:
    """Open a store whose topic t has offsets 0 and 1 of one leader epoch, and offset 2 of the next."""
    with segstore.open(tmp_path / "first") as store:
        store.create_topic("t")
        for value in (b"a", b"b"):
            store.partition("t").append(value)
        killed(tmp_path / "first", store_dir)
    store = segstore.open(store_dir)
    store.partition("t").append(b"c")
    return store


def end(node: Node, version: int, epoch: int, known: int = -1, partition: int = 0) -> tuple[int, int, int]:
    """Return (error, epoch, end offset)."""
    part = _Ends.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=known)
    topics = [_Ends.OffsetForLeaderTopic(topic="t", partitions=[part])]
    [body] = request(node, Api.OFFSET_FOR_LEADER_EPOCH, version, topics=topics).answers
    [topic] = body.topics
    [answer] = topic.partitions
    assert (topic.topic, answer.partition) == ("t", partition)
    return answer.error_code, answer.leader_epoch, answer.end_offset


def test_ends_of_leader_epochs(store_dir: Path, tmp_path: Path) -> None:
    with again(store_dir, tmp_path) as store:
        node, epoch = serving(store), store.partition("t").leader_epoch
        for version in versions(Api.OFFSET_FOR_LEADER_EPOCH):
            assert end(node, version, epoch) == (0, epoch, 3)
            assert end(node, version, epoch - 1) == (0, epoch - 1, 2)
            for unknown in (epoch + 1, -1):
                assert end(node, version, unknown) == (0, -1, -1)
            assert end(node, version, epoch, partition=5) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        node.close()
