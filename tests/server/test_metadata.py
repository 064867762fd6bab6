"""Promise: every version of Metadata tells of topics and leaders as a broker's does: all of them or those
that were named, by name or by id; missing topics are created where that is allowed, and nowhere else.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from calls import CLUSTER_ID, ENDPOINT, FakeLoop, call, node_of, send, versions
from replicated_stores import PATIENT, QUICK
from stores import killed
from waiting import until

import segstore
from segstore.names import topic_id_bytes
from segstore.protocol.codec import packed, structs
from segstore.protocol.error_codes import Code
from segstore.replication.states import PartitionState
from segstore.server.apis import Api
from segstore.server.partition_rows import PartitionRows
from segstore.server.topics import NOBODY, Leaders, PartitionLeader
from segstore.storage.store.partitions import Partitions

ZERO = bytes(16)
NOT_ASKED = -(1 << 31)
Asked = structs("MetadataRequest").MetadataRequestTopic
Cursor = structs("DescribeTopicPartitionsRequest").Cursor
Named = structs("DescribeTopicPartitionsRequest").TopicRequest


def asked(*names: str) -> list[Any]:
    return [Asked(name=name) for name in names]


def brief(topics: list[Any]) -> list[tuple[Any, ...]]:
    return [(each.error_code, each.name, [p.partition_index for p in each.partitions]) for each in topics]


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_every_version_tells_what_it_can(store: segstore.Store, version: int) -> None:
    info = store.create_topic("t", 2)
    body = call(node_of(store), Api.METADATA, version, topics=asked("t"))
    (broker,), (topic,) = body.brokers, body.topics
    assert (broker.node_id, (broker.host, broker.port), broker.rack) == (1, ENDPOINT, None)
    assert body.controller_id == (1 if version >= 1 else -1)
    assert body.cluster_id == (CLUSTER_ID if version >= 2 else None)
    assert (body.throttle_time_ms, body.error_code) == (0, 0)
    assert brief([topic]) == [(0, "t", [0, 1])]
    assert topic.topic_id == (topic_id_bytes(info.topic_id) if version >= 10 else ZERO)
    assert not topic.is_internal
    assert (topic.topic_authorized_operations, body.cluster_authorized_operations) == (NOT_ASKED, NOT_ASKED)
    for each in topic.partitions:
        assert (each.leader_id, each.replica_nodes, each.isr_nodes) == (1, [1], [1])
        assert (each.leader_epoch, each.offline_replicas) == (0 if version >= 7 else -1, [])


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_null_is_all_and_empty_is_none_but_in_version_0(store: segstore.Store, version: int) -> None:
    for name in ("b", "a"):
        store.create_topic(name)
    node = node_of(store)
    everything = [(0, "a", [0]), (0, "b", [0])]
    assert brief(call(node, Api.METADATA, version, topics=[]).topics) == ([] if version else everything)
    if version:
        assert brief(call(node, Api.METADATA, version, topics=None).topics) == everything


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("version", versions(Api.METADATA))
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
def test_a_missing_topic_is_created_where_both_allow_it(
    store: segstore.Store, version: int, enabled: bool, allowed: bool
) -> None:
    allowed = allowed or version < 4  # which can't forbid it
    node = node_of(store, auto_create_topics_enable=enabled, num_partitions=3)
    topics = call(node, Api.METADATA, version, topics=asked("new"), allow_auto_topic_creation=allowed).topics
    if enabled and allowed:
        assert brief(topics) == [(0, "new", [0, 1, 2])]
        assert store.topics()["new"].partitions == 3
    else:
        assert brief(topics) == [(Code.UNKNOWN_TOPIC_OR_PARTITION, "new", [])]
        assert not store.topics()


@pytest.mark.parametrize("name", ["", "a b", "..", "x" * 250])
def test_a_name_that_is_none_is_refused_alone(store: segstore.Store, name: str) -> None:
    topics = call(node_of(store), Api.METADATA, 12, topics=asked(name, "good")).topics
    assert brief(topics) == [(Code.INVALID_TOPIC_EXCEPTION, name, []), (0, "good", [0])]
    assert list(store.topics()) == ["good"]


def test_internal_topics_are_told_and_never_created(store: segstore.Store) -> None:
    node = node_of(store)
    internal = asked("__consumer_offsets", "__cluster_metadata")
    codes = {each.error_code for each in call(node, Api.METADATA, 12, topics=internal).topics}
    assert (codes, store.topics()) == ({Code.UNKNOWN_TOPIC_OR_PARTITION}, {})
    store._create_topic("__consumer_offsets", 2, {"cleanup.policy": "compact"})
    (topic,) = call(node, Api.METADATA, 1, topics=None).topics
    assert (topic.name, topic.is_internal) == ("__consumer_offsets", True)


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_asked_for_by_id(store: segstore.Store, version: int) -> None:
    topic_id = topic_id_bytes(store.create_topic("t").topic_id)
    wanted = [Asked(name=None, topic_id=topic_id), Asked(name=None, topic_id=b"x" * 16)]
    known, unknown = call(node_of(store), Api.METADATA, version, topics=wanted).topics
    assert brief([known]) == [(0, "t", [0])]
    assert (unknown.error_code, unknown.name) == (Code.UNKNOWN_TOPIC_ID, None)
    assert (unknown.topic_id, unknown.partitions) == (b"x" * 16, [])


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(
    "wanted", [Asked(name=None), Asked(name="t", topic_id=b"x" * 16)], ids=["null", "id"]
)
def test_before_version_12_ids_and_null_names_are_refused(
    store: segstore.Store, version: int, wanted: Any
) -> None:
    body = call(node_of(store), Api.METADATA, version, topics=[wanted])
    (topic,) = body.topics
    assert (topic.error_code, topic.name) == (Code.INVALID_REQUEST, wanted.name or "")
    assert (body.brokers, body.controller_id) == ([], -1)
    assert not store.topics()


def test_a_topic_that_is_asked_for_twice_is_told_once(store: segstore.Store) -> None:
    assert brief(call(node_of(store), Api.METADATA, 9, topics=asked("t", "t")).topics) == [(0, "t", [0])]


def test_authorized_operations_are_all_where_they_are_asked_for(store: segstore.Store) -> None:
    fields = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    body = call(node_of(store), Api.METADATA, 8, topics=asked("t"), **fields)
    on_topic = [3, 4, 5, 6, 7, 8, 10, 11]
    on_cluster = [5, 7, 8, 9, 10, 11, 12]
    assert body.topics[0].topic_authorized_operations == sum(1 << bit for bit in on_topic)
    assert body.cluster_authorized_operations == sum(1 << bit for bit in on_cluster)


def test_the_loop_opens_no_log(store_dir: Path) -> None:
    """Logs that are named are opened in a worker, once; all of them are told without being opened."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", 2)
        store.partition("t", 0).append(b"x")
    with segstore.open(store_dir) as store:
        node = node_of(store)
        assert isinstance(node.loop, FakeLoop)
        (topic,) = call(node, Api.METADATA, 9, topics=None).topics
        assert ([each.leader_epoch for each in topic.partitions], node.loop.works) == ([0, 0], 0)
        assert not store.engine.opened()
        for _ in range(2):
            (topic,) = call(node, Api.METADATA, 9, topics=asked("t")).topics
            assert ([each.leader_epoch for each in topic.partitions], node.loop.works) == ([0, 0], 1)


def test_the_epoch_of_a_closed_log_is_that_under_which_it_is_opened(store_dir: Path, tmp_path: Path) -> None:
    """Clients that know a newer epoch than the log has would be told UNKNOWN_LEADER_EPOCH."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", 3)
        for number in (0, 1):
            store.partition("t", number).append(b"x")
        killed(store_dir, tmp_path / "killed")
    with segstore.open(tmp_path / "killed") as store:
        assert store.partition("t", 0).leader_epoch == 1, "an unclean shutdown begins an epoch"
    with segstore.open(tmp_path / "killed") as store:
        (topic,) = call(node_of(store), Api.METADATA, 9, topics=None).topics
        assert not store.engine.opened()
        told = [each.leader_epoch for each in topic.partitions]
        assert told == [store.partition("t", number).leader_epoch for number in range(3)]
        assert told[:2] == [1, 1]


def test_each_partition_is_told_with_its_own_epoch(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", 3)
        store.partition("t", 1).append(b"x")
        killed(tmp_path / "store", tmp_path / "killed")
    with segstore.open(tmp_path / "killed") as store:
        store.add_partitions("t", 4)
        epochs = [store.partition("t", number).leader_epoch for number in range(4)]
        assert epochs == [1, 1, 1, 0], "an unclean shutdown begins an epoch of logs that are there"
        for topics in (asked("t"), None):
            (topic,) = call(node_of(store), Api.METADATA, 12, topics=topics).topics
            assert [each.leader_epoch for each in topic.partitions] == epochs
        leaders, info = Leaders(store), store.topics()["t"]
        assert leaders.closed([info]) == []
        for numbers in (info.partition_ids, (3,), (3, 1), ()):
            assert [led.leader_epoch for led in leaders.of("t", numbers)] == [epochs[at] for at in numbers]


def test_an_answer_reads_the_epochs_of_open_logs_once(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("t", 2)
    node, read = node_of(store), list[str]()
    call(node, Api.METADATA, 12, topics=asked("t"))  # opens the logs
    epochs = Partitions.epochs

    def counted(self: Partitions, topic: str, numbers: Sequence[int]) -> list[int]:
        read.append(topic)
        return epochs(self, topic, numbers)

    monkeypatch.setattr(Partitions, "epochs", counted)
    call(node, Api.METADATA, 12, topics=asked("t"))
    assert read == ["t"]


def test_many_partitions_are_told_by_a_worker(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.handlers.metadata._AT_ONCE", 3)
    node = node_of(store)
    assert isinstance(node.loop, FakeLoop)
    for name, count, works in (("a", 3, 0), ("b", 1, 1)):
        store.create_topic(name, count)
        assert call(node, Api.METADATA, 9, topics=None).topics[-1].name == name
        assert node.loop.works == works


# --- rows that are remembered ---------------------------------------------------------------------


def grow(store: segstore.Store) -> None:
    store.add_partitions("t", 5)


def make_anew(store: segstore.Store) -> None:
    store.delete_topic("t")
    store.create_topic("t", 3)


def make_smaller(store: segstore.Store) -> None:
    store.delete_topic("t")
    store.create_topic("t", 1)


def delete(store: segstore.Store) -> None:
    store.delete_topic("t")


CHANGES = {
    "it grows": grow,
    "it is made anew": make_anew,
    "it is made smaller": make_smaller,
    "it goes": delete,
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("version", [0, 7, 12])
def test_a_topic_is_told_as_it_is_when(store: segstore.Store, version: int, name: str) -> None:
    """Who has been told of a topic before is told the same as who asks for the first time."""
    store.create_topic("t", 3)
    node, fields = node_of(store), {"topics": asked("t"), "allow_auto_topic_creation": False}
    for change in (None, CHANGES[name]):
        if change is not None:
            change(store)
        told = [call(node, Api.METADATA, version, **fields) for _ in range(2)]
        wanted = call(node_of(store), Api.METADATA, version, **fields)
        assert told == [wanted, wanted]
        there = store.topics().get("t")
        assert len(wanted.topics[0].partitions) == (0 if there is None else there.partitions)
        if version >= 10 and there is not None:
            assert told[0].topics[0].topic_id == topic_id_bytes(there.topic_id)


def test_the_epoch_of_a_topic_that_was_told_while_it_was_closed(tmp_path: Path) -> None:
    """What is opened after an unclean shutdown has another epoch than the one that was published."""
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", 2)
        store.partition("t", 0).append(b"x")
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with segstore.open(tmp_path / "killed") as store:
        node = node_of(store)
        for topics in (None, asked("t"), None):
            (topic,) = call(node, Api.METADATA, 12, topics=topics).topics
        epochs = [store.partition("t", number).leader_epoch for number in (0, 1)]
        assert [each.leader_epoch for each in topic.partitions] == epochs


def test_a_leader_that_changes_is_told(tmp_path: Path) -> None:
    patient = {name.replace("_", "."): value for name, value in PATIENT.items()}
    config = {**QUICK, **patient, "auto.leader.rebalance.enable": False}
    with segstore.open_replicated([tmp_path / "a", tmp_path / "b"], config=config) as store:
        store.create_topic("t", 3, replication_factor=2)
        node, key = node_of(store), ("t", 1)

        def told() -> list[tuple[int, int]]:
            (topic,) = call(node, Api.METADATA, 12, topics=asked("t")).topics
            return [(each.leader_id, each.leader_epoch) for each in topic.partitions]

        def state() -> PartitionState:
            return store.describe_partition(*key)

        before, leader = told(), state().leader
        other = next(each for each in state().replicas if each != leader)
        until(lambda: other in state().isr)
        store.reassign({key: [other, leader]})
        assert store.elect_leaders("preferred", [key]) == {key: None}
        until(lambda: state().leader == other)
        assert told() == [(1, store.describe_partition("t", number).leader_epoch) for number in range(3)]
        assert [new == old for new, old in zip(told(), before, strict=True)] == [True, False, True]


def test_what_is_asked_again_is_not_encoded_again(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by a worker, however many partitions there are, up to a limit."""
    encoded: list[str] = []

    def counting(name: str, version: int, rows: Any) -> Any:
        encoded.append(f"{len(rows)} in {version}")
        return packed(name, version, rows)

    monkeypatch.setattr("segstore.server.partition_rows.packed", counting)
    monkeypatch.setattr("segstore.server.handlers.metadata._AT_ONCE", 3)
    store.create_topic("t", 4)
    node = node_of(store)
    assert isinstance(node.loop, FakeLoop)
    for version, wanted in ((12, ["4 in 12"]), (12, []), (7, ["4 in 7"]), (7, []), (12, [])):
        for topics in (asked("t"), None) if not wanted else (asked("t"),):
            before = node.loop.works
            assert brief(call(node, Api.METADATA, version, topics=topics).topics) == [(0, "t", [0, 1, 2, 3])]
            assert node.loop.works - before == (0 if topics is not None and not wanted else 1)
        assert encoded == wanted
        encoded.clear()
    monkeypatch.setattr("segstore.server.handlers.metadata._KNOWN_AT_ONCE", 3)
    call(node, Api.METADATA, 12, topics=asked("t"))
    assert node.loop.works - before == 2


def test_rows_are_those_of_the_partitions_and_leaders_that_are_asked_for(store: segstore.Store) -> None:
    """Also where as many others are led in the same way, as in a copied directory with some partitions."""
    rows = PartitionRows(node_of(store))
    wanted = {
        (numbers, leaders): PartitionRows(node_of(store)).of("t", 12, numbers, [*leaders]).of(12)
        for leaders in (
            (NOBODY, NOBODY),
            (NOBODY, PartitionLeader(1, 0)),
            (PartitionLeader(1, 0), PartitionLeader(1, 0)),
            (PartitionLeader(1, 0), PartitionLeader(1, 1)),
        )
        for numbers in ((0, 1), (1, 2))
    }
    assert len({*wanted.values()}) == len(wanted)
    for _ in range(2):
        for (numbers, leaders), data in wanted.items():
            assert rows.of("t", 12, numbers, [*leaders]).of(12) == data


def test_few_bytes_are_remembered(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.partition_rows._MOST_BYTES", 100)
    node = node_of(store)
    rows = node.part(PartitionRows)
    for name in ("a", "b", "c", "a"):
        (topic,) = call(node, Api.METADATA, 12, topics=asked(name)).topics
        assert brief([topic]) == [(0, name, [0])]
    assert sum(each.size for each in rows._held.values()) == rows._size <= 100
    assert rows.knows("a", 12, (0,))
    assert not rows.knows("a", 12, (0, 1))


def test_a_log_that_cannot_be_opened_has_no_leader(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    with segstore.open(path) as store:
        store.create_topic("t", 2)
    (path / "t-1").rename(tmp_path / "elsewhere")
    (path / "t-1").symlink_to(tmp_path / "elsewhere")
    with segstore.open(path) as store:
        (topic,) = call(node_of(store), Api.METADATA, 9, topics=asked("t")).topics
    good, bad = topic.partitions
    assert (good.error_code, good.leader_id, good.offline_replicas) == (0, 1, [])
    assert (bad.error_code, bad.leader_id) == (Code.LEADER_NOT_AVAILABLE, -1)
    assert (bad.replica_nodes, bad.isr_nodes, bad.offline_replicas) == ([1], [], [1])


def test_a_store_that_is_open_for_reading_makes_nothing(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    with segstore.open(store_dir, "r") as store:
        topics = call(node_of(store), Api.METADATA, 9, topics=asked("t", "new")).topics
        assert brief(topics) == [(0, "t", [0]), (Code.UNKNOWN_TOPIC_OR_PARTITION, "new", [])]
        assert topics[0].partitions[0].leader_epoch == -1


def test_a_replicated_store_is_one_node(tmp_path: Path) -> None:
    with segstore.open_replicated([tmp_path / "a", tmp_path / "b"], config=dict(QUICK)) as store:
        store.create_topic("t", replication_factor=2)
        body = call(node_of(store), Api.METADATA, 9, topics=None)
        assert brief(body.topics) == [(0, "t", [0])]  # and not the metadata log
        (partition,) = body.topics[0].partitions
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        assert partition.leader_epoch == store.describe_partition("t").leader_epoch
        call(node_of(store), Api.METADATA, 9, topics=asked("made"))
        assert len(store.describe_partition("made").replicas) == 1  # default.replication.factor
    assert [segstore.check(tmp_path / name) for name in ("a", "b")] == [[], []]


def test_a_failure_that_nobody_expects_ends_the_connection(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    node = node_of(store)
    monkeypatch.setattr(store, "create_topic", fail)
    sent = send(node, Api.METADATA, 12, topics=asked("t"))
    assert (sent.answers, sent.channel.is_open) == ([], False)
    sent = send(node, Api.METADATA, 13, topics=asked("t"))
    assert [each.error_code for each in sent.answers] == [Code.UNKNOWN_SERVER_ERROR]


# --- DescribeCluster ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_CLUSTER))
def test_the_cluster_is_one_node(store: segstore.Store, version: int) -> None:
    fields = {"include_cluster_authorized_operations": True}
    body = call(node_of(store), Api.DESCRIBE_CLUSTER, version, **fields)
    (broker,) = body.brokers
    assert (body.error_code, body.cluster_id, body.controller_id) == (0, CLUSTER_ID, 1)
    assert (broker.broker_id, (broker.host, broker.port), broker.is_fenced) == (1, ENDPOINT, False)
    assert body.cluster_authorized_operations > 0


@pytest.mark.parametrize(
    ("kind", "code"), [(2, Code.MISMATCHED_ENDPOINT_TYPE), (9, Code.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_controllers_have_no_address_of_their_own(store: segstore.Store, kind: int, code: Code) -> None:
    body = call(node_of(store), Api.DESCRIBE_CLUSTER, 1, endpoint_type=kind)
    assert (body.error_code, body.brokers) == (code, [])
    assert body.error_message


# --- DescribeTopicPartitions ----------------------------------------------------------------------


def pages(node: Any, limit: int, **fields: Any) -> list[list[tuple[Any, ...]]]:
    """Return what each page tells, until there is no cursor; there are at most ten."""
    found, cursor = [], None
    for _ in range(10):
        body = call(
            node, Api.DESCRIBE_TOPIC_PARTITIONS, 0, response_partition_limit=limit, cursor=cursor, **fields
        )
        found.append(brief(body.topics))
        if body.next_cursor is None:
            return found
        cursor = Cursor(
            topic_name=body.next_cursor.topic_name, partition_index=body.next_cursor.partition_index
        )
    raise AssertionError("there is no last page")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (2000, [[(0, "a", [0, 1]), (0, "b", [0]), (0, "c", [0, 1, 2])]]),
        (2, [[(0, "a", [0, 1])], [(0, "b", [0]), (0, "c", [0])], [(0, "c", [1, 2])]]),
        (3, [[(0, "a", [0, 1]), (0, "b", [0])], [(0, "c", [0, 1, 2])]]),
        (0, [[(0, "a", [0])], [(0, "a", [1])], [(0, "b", [0])], *[[(0, "c", [n])] for n in range(3)]]),
    ],
)
def test_partitions_come_in_pages(store: segstore.Store, limit: int, expected: Any) -> None:
    for name, count in (("c", 3), ("a", 2), ("b", 1)):
        store.create_topic(name, count)
    assert pages(node_of(store), limit) == expected
    smaller = node_of(store, max_request_partition_size_limit=max(limit, 1))
    assert pages(smaller, 2000) == expected


def test_pages_of_named_topics_tell_the_missing_ones(store: segstore.Store) -> None:
    store.create_topic("b", 2)
    wanted = [Named(name=name) for name in ("b", "a", "c d")]
    missing, invalid = (Code.UNKNOWN_TOPIC_OR_PARTITION, "a", []), (Code.INVALID_TOPIC_EXCEPTION, "c d", [])
    assert pages(node_of(store), 9, topics=wanted) == [[missing, (0, "b", [0, 1]), invalid]]


def test_a_cursor_below_0_is_refused(store: segstore.Store) -> None:
    store.create_topic("t")
    cursor = Cursor(topic_name="t", partition_index=-1)
    body = call(node_of(store), Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[Named(name="t")], cursor=cursor)
    assert brief(body.topics) == [(Code.INVALID_REQUEST, "t", [])]
