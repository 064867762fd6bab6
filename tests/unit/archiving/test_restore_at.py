"""`restore(at=...)`: the log, its start, settings and topics of an earlier moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from archived_history import ArchivedHistory
from compaction import CONFIG, clean, end_in_gap, fill, open_compacted, pairs, put, roll
from made_archive import make_archive
from stores import START_MS, Clock, records, value_of

import segstore
from segstore import TopicPartition, names
from segstore.errors import ArchiveError, InvalidArgumentError, InvalidTypeError

SMALL = {"segment.bytes": 1000}
T = TopicPartition("t", 0)


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Path]:
    """Where a store is restored; it must be sound, and alone."""
    path = tmp_path / "restored"
    yield path
    assert [each.name for each in tmp_path.iterdir() if names.RESTORING in each.name] == []
    if path.exists():
        assert segstore.check(path) == []


def batch(store: segstore.Store, first: int, n: int, topic: str = "t") -> None:
    """Append a batch of records, stamped START_MS + their offsets."""
    numbers = range(first, first + n)
    store.partition(topic).append_batch(
        [value_of(i) for i in numbers], timestamps=[START_MS + i for i in numbers]
    )


def bounds(path: Path, topic: str = "t") -> tuple[int, int]:
    with segstore.open(path, mode="r") as store:
        log = store.partition(topic)
        return log.start_offset, log.end_offset


def all_records(path: Path, topic: str = "t") -> list[segstore.Record]:
    with segstore.open(path, mode="r") as store:
        return list(records(store.partition(topic)))


CODECS = ["uncompressed", "zstd", "lz4"]


@pytest.fixture(params=CODECS)
def source(request: pytest.FixtureRequest, store_dir: Path) -> Path:
    """A store with 100 records in batches of 7 or less, and several segments."""
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config={**SMALL, "compression.type": request.param})
        for first in range(0, 100, 7):
            batch(store, first, min(7, 100 - first))
    return store_dir


@pytest.mark.parametrize("kept", [0, 1, 7, 10, 50, 98, 99, 100])
def test_a_log_ends_at_a_time(source: Path, restored: Path, tmp_path: Path, kept: int) -> None:
    archive = make_archive(source, tmp_path / "archive", START_MS + 1_000)
    before = all_records(source)
    made = segstore.restore(archive.uri, restored, at=START_MS + kept - 1)
    assert all_records(restored) == before[:kept]
    assert bounds(restored) == (0, kept)
    assert made.time == START_MS + kept - 1
    with segstore.open(restored) as store:
        assert store.partition("t").append(b"goes on") == kept


@pytest.mark.parametrize("end", [0, 1, 7, 10, 50, 98, 99, 100])
def test_a_log_ends_at_an_offset(source: Path, restored: Path, tmp_path: Path, end: int) -> None:
    archive = make_archive(source, tmp_path / "archive", START_MS + 1_000)
    before = all_records(source)
    segstore.restore(archive.uri, restored, at={T: end})
    assert all_records(restored) == before[:end]
    assert bounds(restored) == (0, end)


def test_the_other_partitions_are_whole(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        for name in "tu":
            store.create_topic(name, config=SMALL)
            batch(store, 0, 20, name)
    archive = make_archive(store_dir, tmp_path / "archive")
    segstore.restore(archive.uri, restored, at={("t", 0): 3})
    assert (bounds(restored), bounds(restored, "u")) == ((0, 3), (0, 20))


TIMES: dict[str, Callable[[int], Any]] = {
    "ms": lambda ms: ms,
    "a datetime": lambda ms: datetime.fromtimestamp(ms / 1000, timezone.utc),
    "of another zone": lambda ms: datetime.fromtimestamp(ms / 1000, timezone(timedelta(hours=5))),
    "parts of a ms": lambda ms: (
        datetime.fromtimestamp(ms // 1000, timezone.utc) + timedelta(microseconds=ms % 1000 * 1000 + 999)
    ),
}


@pytest.mark.parametrize("form", TIMES)
def test_forms_of_a_time(store_dir: Path, restored: Path, tmp_path: Path, form: str) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t")
        batch(store, 0, 9)
    archive = make_archive(store_dir, tmp_path / "archive", START_MS + 1_000)
    segstore.restore(archive.uri, restored, at=TIMES[form](START_MS + 4))
    assert bounds(restored) == (0, 5)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a naive datetime": (datetime(2026, 1, 1), InvalidArgumentError, "needs a time zone"),
    "a time before 1970": (-1, InvalidArgumentError, "at=-1"),
    "a text": ("2026-01-01", InvalidTypeError, "at is a str: give ms"),
    "a float": (1.5, InvalidTypeError, "at is a float: give ms"),
    "a bool": (True, InvalidTypeError, "at is a bool: give ms"),
    "no partition": ({}, InvalidArgumentError, "at least one partition"),
    "a topic alone": ({"t": 3}, InvalidTypeError, "the key 't': a TopicPartition is needed"),
    "an end that is no number": ({T: "3"}, InvalidTypeError, "at"),
    "an end below 0": ({T: -1}, InvalidArgumentError, "at"),
    "an end behind the archive's": (
        {T: 10},
        ArchiveError,
        "t-0 can't end at offset 10: the archive has it from offset 0 to end offset 9",
    ),
    "a partition that is not there": ({("t", 4): 1}, ArchiveError, r"has no partition 4; it has \[0\]"),
    "a topic that is not there": ({("x", 0): 1}, ArchiveError, "'x' is not among .* are: t"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be(store_dir: Path, restored: Path, tmp_path: Path, name: str) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t")
        batch(store, 0, 9)
    archive = make_archive(store_dir, tmp_path / "archive", START_MS)
    at, kind, said = REFUSED[name]
    with pytest.raises(kind, match=said):
        segstore.restore(archive.uri, restored, at=at)
    assert not restored.exists()


# --- history -----------------------------------------------------------------------------------


def test_the_log_start_offset_of_that_time(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    history = ArchivedHistory(tmp_path / "archive")
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config={**SMALL, "file.delete.delay.ms": 0})
        for first in range(0, 100, 5):
            batch(store, first, 5)
        before = list(records(store.partition("t")))
    history.take(store_dir, START_MS + 100)
    for at, start in ((200, 33), (300, 61)):
        with segstore.open(store_dir, clock=Clock()) as store:
            store.partition("t").delete_records(start)
        history.take(store_dir, START_MS + at)
    for at, start in ((100, 0), (150, 0), (200, 33), (250, 33), (300, 61), (None, 61)):
        place = tmp_path / f"at {at}"
        segstore.restore(history.uri, place, at=None if at is None else START_MS + at)
        assert bounds(place) == (start, 100)
        assert all_records(place) == before[start:]
        assert segstore.check(place) == []
    # What retention took out of the log is still in the archive.
    segstore.restore(history.uri, restored, at={T: 40})
    assert all_records(restored) == before[:40]


def test_a_log_start_offset_behind_the_time(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config=SMALL)
        for first in range(0, 100, 5):
            batch(store, first, 5)
        store.partition("t").delete_records(50)
    archive = make_archive(store_dir, tmp_path / "archive", START_MS + 200)
    segstore.restore(archive.uri, restored, at=START_MS + 20)
    assert bounds(restored) == (50, 50)
    with segstore.open(restored) as store:
        assert store.partition("t").append(b"goes on") == 50


def test_settings_and_topics_of_that_time(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    history = ArchivedHistory(tmp_path / "archive")
    with segstore.open(store_dir, clock=Clock()) as store:
        for name in ("t", "gone"):
            store.create_topic(name, config={"retention.ms": 1})
            batch(store, 0, 5, name)
        ids = {name: info.topic_id for name, info in store.topics().items()}
    history.take(store_dir, START_MS + 100)
    with segstore.open(store_dir, clock=Clock()) as store:
        store.alter_topic("t", {"retention.ms": 2})
        store.delete_topic("gone")
        store.create_topic("gone", 2)
        batch(store, 10, 2, "gone")
    history.take(store_dir, START_MS + 200)
    segstore.restore(history.uri, restored, at=START_MS + 150)
    with segstore.open(restored, mode="r") as store:
        assert {name: info.topic_id for name, info in store.topics().items()} == ids
        assert store.topics()["t"].config["retention.ms"] == 1
        assert [store.topics()[name].partitions for name in ("t", "gone")] == [1, 1]
    assert [r.value for r in all_records(restored, "gone")] == [value_of(i) for i in range(5)]
    segstore.restore(history.uri, tmp_path / "newest")
    with segstore.open(tmp_path / "newest", mode="r") as store:
        assert store.topics()["gone"].topic_id not in ids.values()
        assert store.topics()["t"].config["retention.ms"] == 2
        assert [store.topics()[name].partitions for name in ("t", "gone")] == [1, 2]
    assert segstore.check(tmp_path / "newest") == []


def test_records_that_compaction_has_removed_since(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    history = ArchivedHistory(tmp_path / "archive")
    with open_compacted(store_dir) as store:
        fill(store, 60, 7)
        roll(store)
        before = pairs(store.partition("t"))
    with open_compacted(store_dir) as store:
        then = store.context.clock() + 1_000
    history.take(store_dir, then)
    with open_compacted(store_dir, Clock(then + 10)) as store:
        fill(store, 20, 7)
        roll(store)
        clean(store)
        after = pairs(store.partition("t"))
    history.take(store_dir, then + 1_000)
    assert len(after) < len(before)
    segstore.restore(history.uri, restored, at=then)
    with segstore.open(restored, mode="r") as store:
        assert pairs(store.partition("t")) == before
        assert store.partition("t").end_offset == 60
    segstore.restore(history.uri, tmp_path / "newest")
    with segstore.open(tmp_path / "newest", mode="r") as store:
        assert pairs(store.partition("t")) == after
        assert store.topics()["t"].config["cleanup.policy"] == CONFIG["cleanup.policy"]
    assert segstore.check(tmp_path / "newest") == []


def test_a_segment_that_was_never_archived_before_a_compaction(
    store_dir: Path, restored: Path, tmp_path: Path
) -> None:
    """Its records are in a segment with older ones: those of it that are not in the log before count."""
    history = ArchivedHistory(tmp_path / "archive")
    with open_compacted(store_dir, Clock(START_MS, 1)) as store:
        fill(store, 60, 7)
        roll(store)
        before = pairs(store.partition("t"))
    history.take(store_dir, START_MS + 1_000)
    log_end = 60
    with open_compacted(store_dir, Clock(START_MS + 2_000)) as store:
        put(
            store.partition("t"),
            *[(b"new %d" % i, b"x") for i in range(4)],
            timestamps=[START_MS + 2_000] * 4,
        )
        put(store.partition("t"), *[(b"late", b"y")] * 2, timestamps=[START_MS + 3_000] * 2)
        roll(store)
        clean(store)
        after = pairs(store.partition("t"))
    history.take(store_dir, START_MS + 4_000)
    listed = next(iter(history.lists.values())).at(START_MS + 2_500)
    assert [each for each in listed if each.base < log_end < each.end]  # else this tests nothing
    segstore.restore(history.uri, restored, at=START_MS + 2_500)
    with segstore.open(restored, mode="r") as store:
        found = pairs(store.partition("t"))
        assert found[:60] == before
        assert found[60:] == [each for each in after if each[1] and each[1].startswith(b"new")]
        assert store.partition("t").end_offset == 64


def test_a_log_that_ends_in_a_gap(tmp_path: Path, restored: Path) -> None:
    source = tmp_path / "source"
    end_in_gap(source)
    archive = make_archive(source, tmp_path / "archive")
    segstore.restore(archive.uri, restored)
    assert bounds(restored) == bounds(source) == (0, 60)
    assert all_records(restored) == all_records(source)
    for end in (30, 5):
        place = tmp_path / f"end {end}"
        segstore.restore(archive.uri, place, at={T: end})
        assert bounds(place) == (0, end)
        assert segstore.check(place) == []
        with segstore.open(place) as store:
            assert store.partition("t").append(b"goes on", key=b"k") == end


def test_another_way_since(store_dir: Path, restored: Path, tmp_path: Path) -> None:
    history = ArchivedHistory(tmp_path / "archive")
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config=SMALL)
        batch(store, 0, 50)
        before = list(records(store.partition("t")))
    history.take(store_dir, START_MS + 100)
    history.go_another_way(START_MS + 200)
    history.lists.clear()
    other = tmp_path / "other"
    with segstore.open(other, clock=Clock()) as store:
        store.create_topic("u")
        batch(store, 0, 3, "u")
    history.take(other, START_MS + 300)
    segstore.restore(history.uri, restored, at=START_MS + 199)
    assert all_records(restored) == before
    segstore.restore(history.uri, tmp_path / "newest")
    assert bounds(tmp_path / "newest", "u") == (0, 3)
