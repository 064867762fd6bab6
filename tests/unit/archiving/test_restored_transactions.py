"""Transactions in a restored store are whole, in all of their partitions and with their offsets, or
absent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from made_archive import make_archive
from stores import START_MS, Clock, committed_values

import segstore
from segstore import OffsetAndMetadata, TopicPartition
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import parse_segment_list
from segstore.coordinator.transaction.markers import MarkerWriter
from segstore.files import Files
from segstore.storage.segment.batch_scan import walk

CONFIG = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
T = [TopicPartition("t", number) for number in range(3)]


def transact(store: segstore.Store, outcome: str) -> None:
    """Write to three partitions, and commit an offset, in one transaction."""
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for at in T:
            producer.send(at.topic, b"in it", partition=at.partition).get()
        producer.send_offsets_to_transaction({T[0]: OffsetAndMetadata(7)}, "g")
        (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)()


def stamps(path: Path) -> dict[str, list[int]]:
    """Return the timestamps of each log's batches, from START_MS on."""
    found: dict[str, list[int]] = {}
    for log in sorted(path.glob("*/*.log")):
        with Files().open(log) as handle:
            for step in walk(Files(), handle, 0, log.stat().st_size, check_crcs=True):
                found.setdefault(log.parent.name, []).extend(
                    (step.batches["max_timestamp"] - START_MS).tolist()
                )
    return found


def seen(path: Path) -> tuple[list[list[bytes | None]], int | None]:
    """Return the committed values of each partition, none of which may have an open transaction, and the
    committed offset.
    """
    with segstore.open(path, mode="r") as store:  # before anybody has opened it
        for log in [store.partition(*at) for at in T]:
            assert log.last_stable_offset == log.end_offset
    with segstore.open(path, config=CONFIG) as store:
        logs = [store.partition(*at) for at in T]
        with segstore.Consumer(store, group_id="g") as consumer:
            offset = consumer.committed(T[0])
        return [committed_values(log) for log in logs], offset


@pytest.fixture(params=["commit", "abort"])
def outcome(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def archived(outcome: str, store_dir: Path, tmp_path: Path) -> RemoteFiles:
    with segstore.open(store_dir, clock=Clock(step=1), config=CONFIG) as store:
        store.create_topic("t", 3)
        transact(store, outcome)
    return make_archive(store_dir, tmp_path / "archive", START_MS + 10_000)


def test_a_transaction_is_whole_or_absent_at_each_time(
    archived: RemoteFiles, outcome: str, store_dir: Path, tmp_path: Path
) -> None:
    there = stamps(store_dir)
    moments = sorted({stamp for each in there.values() for stamp in each})
    markers = [there[f"t-{number}"][-1] for number in range(3)]
    assert len(set(markers)) == 3  # so that a time may lie between them
    decided = [stamp for stamp in there["__transaction_state-0"] if stamp < min(markers)][-1]
    for moment in (moments[0] - 1, *moments):
        place = tmp_path / f"at {moment}"
        segstore.restore(archived.uri, place, at=START_MS + moment)
        assert segstore.check(place) == []
        whole = outcome == "commit" and moment >= decided
        if moment < min(there["t-0"]):
            continue
        assert seen(place) == ([[b"in it"] if whole else []] * 3, 7 if whole else None), moment


def test_a_decision_without_a_marker(store_dir: Path, tmp_path: Path) -> None:
    """A kill after the decision: no marker is in the archive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MarkerWriter, "write_markers", lambda *_: None)
        with segstore.open(store_dir, clock=Clock(step=1), config=CONFIG) as store:
            store.create_topic("t", 3)
            transact(store, "commit")
            archive = make_archive(store_dir, tmp_path / "archive", START_MS + 10_000)
    segstore.restore(archive.uri, tmp_path / "restored")
    assert seen(tmp_path / "restored") == ([[b"in it"]] * 3, 7)
    assert segstore.check(tmp_path / "restored") == []


@pytest.mark.parametrize("topics", ["t", ["t"], ["t", "u"]])
def test_internal_topics_come_with_the_named_ones(
    store_dir: Path, tmp_path: Path, topics: str | list[str]
) -> None:
    with segstore.open(store_dir, clock=Clock(step=1), config=CONFIG) as store:
        store.create_topic("t", 3)
        store.create_topic("u")
        store.create_topic("other")
        transact(store, "commit")
    archive = make_archive(store_dir, tmp_path / "archive", START_MS + 10_000)
    segstore.restore(archive.uri, tmp_path / "restored", topics=topics)
    with segstore.open(tmp_path / "restored", mode="r") as store:
        internal = {"__consumer_offsets", "__transaction_state"}
        assert set(store.topics()) == internal | {"t", *topics}
    assert seen(tmp_path / "restored") == ([[b"in it"]] * 3, 7)
    assert segstore.check(tmp_path / "restored") == []


def test_partitions_of_other_topics_may_be_missing(store_dir: Path, tmp_path: Path) -> None:
    """A transaction that is decided, and has partitions of topics that are not restored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MarkerWriter, "write_markers", lambda *_: None)
        with segstore.open(store_dir, clock=Clock(step=1), config=CONFIG) as store:
            store.create_topic("t", 3)
            store.create_topic("u")
            transact(store, "commit")
            archive = make_archive(store_dir, tmp_path / "archive", START_MS + 10_000)
    segstore.restore(archive.uri, tmp_path / "restored", topics="u")
    assert segstore.check(tmp_path / "restored") == []
    with segstore.open(tmp_path / "restored") as store:
        offsets = store.partition("__consumer_offsets")
        assert offsets.last_stable_offset == offsets.end_offset
        assert store.partition("u").append(b"goes on") == 0


def test_segments_that_only_seem_to_reach_beyond_a_time(store_dir: Path, tmp_path: Path) -> None:
    """Their largest timestamp may be that of records that are there no more: nothing is cut then, and their
    aborted transactions stay aborted.
    """
    with segstore.open(store_dir, clock=Clock(step=1), config=CONFIG) as store:
        store.create_topic("t", 3, {"segment.bytes": 500})
        for outcome in ("abort", "commit", "abort", "abort", "commit", "commit") * 2:
            transact(store, outcome)
    archive = make_archive(store_dir, tmp_path / "archive", START_MS + 10_000)
    for name in archive.list("topics/"):
        if name.endswith(".segments"):
            listed = parse_segment_list(archive.read(name), name)
            later = [each._replace(max_timestamp=1 << 50) for each in listed.segments]
            archive.write(name, [listed.next_version(later, listed.starts).to_bytes()])
    segstore.restore(archive.uri, tmp_path / "restored", at=START_MS + 9_000)
    assert stamps(tmp_path / "restored") == stamps(store_dir)
    assert seen(tmp_path / "restored") == seen(store_dir) == ([[b"in it"] * 6] * 3, 7)
    assert segstore.check(tmp_path / "restored") == []
