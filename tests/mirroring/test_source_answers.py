"""Names and numbers that a hostile or damaged source answers do not enter files: a mirror and a standby say
what was wrong, and go on with other topics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mirrors import QUICK
from waiting import PATIENCE, until

import segstore
from segstore import names
from segstore.errors import DisconnectedError, UnusableAnswerError
from segstore.integers import INT32_MAX, INT64_MAX
from segstore.leader_epochs import EpochEnd
from segstore.replica_fetcher import fetcher
from segstore.replica_fetcher.fetched_data import FetchedData
from segstore.replica_fetcher.source_answers import (
    MOST_EPOCH,
    MOST_PARTITION,
    check_cluster_id,
    check_data,
    check_epoch,
    check_range,
    faults,
    largest_epoch,
    only_part,
)
from segstore.replication.core.messages import FetchedSpan
from segstore.storage.meta.offset_checkpoints import read_offsets
from segstore.testing import Broker
from segstore.wire import cluster
from segstore.wire.metadata import ClusterMetadata, LeaderAndEpoch, Topic

pytestmark = pytest.mark.kind("mirrors")

LED = LeaderAndEpoch(1, 0)
ID = names.new_topic_id()
KINDS = ("mirror", "standby")


def topic(name: str = "bad", topic_id: str = ID, partitions: Any = None, **changes: Any) -> Topic:
    return Topic(name, topic_id, False, 0, {0: LED} if partitions is None else partitions, **changes)


BAD: dict[str, tuple[Topic, str]] = {
    "partition -256": (topic(partitions={-256: LED, 1: LED}), "partition -256"),
    "partition -1": (topic(partitions={0: LED, -1: LED}), "partition -1"),
    "a partition too far": (topic(partitions={MOST_PARTITION + 1: LED}), str(MOST_PARTITION)),
    "the largest int32": (topic(partitions={INT32_MAX: LED}), str(INT32_MAX)),
    "no partitions": (topic(partitions={}), "no partitions"),
    "a partition twice": (topic(repeated=True), "twice"),
    "a slash": (topic("../bad"), "can't be a topic's name"),
    "up": (topic(".."), "can't be a topic's name"),
    "here": (topic("."), "can't be a topic's name"),
    "a zero byte": (topic("bad\0"), "can't be a topic's name"),
    "a line break": (topic("bad\nrecovery 0 0"), "can't be a topic's name"),
    "a blank": (topic("bad 0 5"), "can't be a topic's name"),
    "no ASCII": (topic("bäd"), "can't be a topic's name"),
    "too long": (topic("x" * 250), "can't be a topic's name"),
    "a huge name": (topic("x" * 30_000), "can't be a topic's name"),
    "a directory's name that is too long": (topic("x" * 249, partitions={0: LED, 999_999: LED}), "255 bytes"),
    "the metadata log": (topic("__cluster_metadata"), "only controllers"),
    "the id of the metadata log": (topic(topic_id="A" * 21 + "Q"), "another topic's"),
    "leader -2": (topic(partitions={0: LeaderAndEpoch(-2, 0)}), "broker -2"),
    "leader epoch -2": (topic(partitions={0: LeaderAndEpoch(1, -2)}), "leader epoch -2"),
    "the largest leader epoch": (topic(partitions={0: LeaderAndEpoch(1, INT32_MAX)}), str(INT32_MAX)),
    "a leader epoch that none can follow": (
        topic(partitions={0: LeaderAndEpoch(1, MOST_EPOCH + 1)}),
        str(MOST_EPOCH),
    ),
}
GOOD = {
    "one partition": topic(),
    "partitions of a copied directory": topic(partitions={3: LED, 7: LED}),
    "nobody leads": topic(partitions={0: LeaderAndEpoch(-1, -1)}),
    "the last partition": topic(partitions={MOST_PARTITION: LeaderAndEpoch(1, MOST_EPOCH)}),
    "the longest name": topic("x" * 249),
    "an error of Kafka's": Topic("bad", "", False, 29, {}),
    "no id": topic(topic_id=""),
}


def metadata(*topics: Topic) -> ClusterMetadata:
    return ClusterMetadata("c", {}, {each.name: each for each in topics})


@pytest.mark.parametrize("name", BAD)
def test_a_topic_that_can_t_be_is_named(name: str) -> None:
    bad, told = BAD[name]
    found = faults(metadata(bad, topic("good", names.new_topic_id(), {0: LeaderAndEpoch(1, 5)})))
    assert list(found) == [bad.name]
    assert told in found[bad.name]
    assert len(found[bad.name]) < 1500
    assert largest_epoch(metadata(bad, topic("good", names.new_topic_id(), {0: LeaderAndEpoch(1, 5)}))) == 5


@pytest.mark.parametrize("name", GOOD)
def test_a_topic_that_can_be_is_followed(name: str) -> None:
    assert faults(metadata(GOOD[name])) == {}


def test_two_topics_with_one_id_are_both_refused() -> None:
    found = faults(metadata(topic("a"), topic("b"), topic("c", names.new_topic_id())))
    assert sorted(found) == ["a", "b"]


DATA: dict[str, tuple[dict[str, Any], FetchedSpan | None, str]] = {
    "a high watermark below -1": ({"high_watermark": -2}, None, "high watermark -2"),
    "a log start offset below -1": ({"log_start_offset": -5}, None, "log start offset -5"),
    "an end of an epoch below 0": ({"diverging": EpochEnd(0, -7)}, None, "end offset of a leader epoch -7"),
    "an epoch that none can follow": ({"diverging": EpochEnd(INT32_MAX, 5)}, None, str(INT32_MAX)),
    "a base offset below 0": ({}, FetchedSpan(5, ((0, -9),)), "base offset -9"),
    "a batch that ends below 0": ({}, FetchedSpan(-3, ((0, 0),)), "end of a batch -3"),
    "a batch of an epoch below -1": ({}, FetchedSpan(5, ((-2, 0),)), "leader epoch of a batch -2"),
    "a batch of the largest epoch": ({}, FetchedSpan(5, ((3, 0), (INT32_MAX, 4))), str(INT32_MAX)),
}


@pytest.mark.parametrize("name", DATA)
def test_numbers_of_an_answer_to_fetch(name: str) -> None:
    changes, fetched, told = DATA[name]
    data = FetchedData(0, 5, 0, None, b"")
    check_data(data, FetchedSpan(5, ((-1, 0), (MOST_EPOCH, 3))), "t-0")
    with pytest.raises(UnusableAnswerError, match=told) as raised:
        check_data(data._replace(**changes), fetched, "t-0")
    assert "t-0" in str(raised.value)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (-5, -5), (6, 5), (0, -1)])
def test_a_log_that_can_t_be(start: int, end: int) -> None:
    check_range(0, 0, "t-0")
    check_range(5, INT64_MAX, "t-0")
    with pytest.raises(UnusableAnswerError, match="t-0"):
        check_range(start, end, "t-0")


@pytest.mark.parametrize("text", ["a b", "a\nb", "x" * 256, "\N{SNOWMAN}", "\0"])
def test_a_cluster_id_that_can_t_be(text: str) -> None:
    check_cluster_id("x" * 255, "HOST:1")
    check_cluster_id("", "HOST:1")
    with pytest.raises(UnusableAnswerError, match="HOST:1"):
        check_cluster_id(text, "HOST:1")


def test_epochs_and_parts() -> None:
    check_epoch(MOST_EPOCH, "HOST:1")
    with pytest.raises(UnusableAnswerError, match=str(INT32_MAX)):
        check_epoch(INT32_MAX, "HOST:1")

    @dataclasses.dataclass
    class Answered:
        partitions: list[int]

    assert only_part([Answered([7])], "t-0") == 7
    for parts in ([], [Answered([])], [Answered([1, 2])], [Answered([1]), Answered([2])]):
        with pytest.raises(UnusableAnswerError, match="not one"):
            only_part(parts, "t-0")


# --- whole followers -----------------------------------------------------------------------------


def follow(kind: str, broker: Broker, directory: Path) -> Any:
    """Return a follower that hears of everything at once."""
    config: dict[str, Any] = {name: value for name, value in QUICK.items() if not name.startswith("sync.")}
    if kind == "mirror":
        config["sync.group.offsets.enabled"] = False
    call = segstore.mirror if kind == "mirror" else segstore.follow
    return call(broker.bootstrap_servers, directory, config=config)


def told_of(monkeypatch: pytest.MonkeyPatch, change: Callable[[ClusterMetadata], ClusterMetadata]) -> None:
    read = cluster.read_metadata
    monkeypatch.setattr(cluster, "read_metadata", lambda answer: change(read(answer)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("known", [False, True])
def test_other_topics_go_on(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, known: bool
) -> None:
    bad, told = BAD[name]
    with Broker(tmp_path / "p", topics={"good": 2, "bad": 2}) as broker:
        for each in ("good", "bad"):
            broker.store.partition(each, 1).append(b"x")
        if known:
            with follow(kind, broker, store_dir) as running:
                assert running.wait_caught_up(PATIENCE * 1000)
        before = sorted(path.name for path in store_dir.glob("bad*"))

        def change(found: ClusterMetadata) -> ClusterMetadata:
            topics = {**found.topics, bad.name: bad}
            if bad.name != "bad":
                topics.pop("bad", None)
            return found._replace(topics=topics)

        told_of(monkeypatch, change)
        with follow(kind, broker, store_dir) as running:
            if running._control._topics._choice.has(bad.name):
                until(lambda: bad.name in running.problems)
                assert told in running.problems[bad.name]
            broker.store.partition("good", 1).append(b"y")
            until(lambda: "good" in running.store.topics())
            until(lambda: running.store.partition("good", 1).end_offset == 2)
            assert running.error is None
            assert bad.name == "bad" or bad.name not in running.store.topics()
    if bad.name == "bad":
        assert sorted(path.name for path in store_dir.glob("bad*")) == before
    assert {path.parent for path in tmp_path.rglob(names.LEADER_EPOCHS)} >= {store_dir / "good-0"}
    for checkpoint in names.OFFSET_CHECKPOINTS[:3]:
        found = read_offsets(segstore.files.Files(), str(store_dir / checkpoint))
        assert {number for _, number in found} <= {0, 1}
    assert segstore.check(store_dir) == []


FETCHED = {
    "a high watermark below 0": {"high_watermark": -7},
    "a log start offset below 0": {"log_start_offset": -7},
    "an epoch that ends below 0": {"diverging": EpochEnd(0, -7)},
    "the largest epoch diverges": {"diverging": EpochEnd(INT32_MAX, 0)},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FETCHED)
def test_other_partitions_go_on(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    read = fetcher.read_part

    def changed(held: Any, isolation: int) -> FetchedData:
        data = read(held, isolation)
        return data._replace(**FETCHED[name]) if held.partition_index == 0 else data

    monkeypatch.setattr(fetcher, "read_part", changed)
    with Broker(tmp_path / "p", topics={"t": 2}) as broker:
        for number in range(2):
            broker.store.partition("t", number).append(b"x")
        with follow(kind, broker, store_dir) as running:
            until(lambda: "t" in running.store.topics())
            until(lambda: running.store.partition("t", 1).end_offset == 1)
            logs = running._control.fetchers.logs.values()
            until(lambda: any(isinstance(each.error, UnusableAnswerError) for each in logs))
            assert running.store.partition("t", 0).log_end_offset == 0
    assert segstore.check(store_dir) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "host", [("127.0.0.1", -1), ("127.0.0.1", 1 << 20), ("x" * 300 + ".y", 9), ("\0", 9)]
)
def test_an_address_that_can_t_be_is_told(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str, host: tuple[str, int]
) -> None:
    hostile = [True]

    def change(found: ClusterMetadata) -> ClusterMetadata:
        return found._replace(brokers={1: cluster.Address(*host)}) if hostile[0] else found

    told_of(monkeypatch, change)
    with Broker(tmp_path / "p", topics=["t"]) as broker:
        broker.store.partition("t").append(b"x")
        with follow(kind, broker, store_dir) as running:
            logs = running._control.fetchers
            until(lambda: any(isinstance(each.error, DisconnectedError) for each in logs.logs.values()))
            hostile[0] = False
            until(lambda: "t" in running.store.topics() and running.store.partition("t").end_offset == 1)
