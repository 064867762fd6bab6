"""A stream's offsets and limits, without a JVM: the reader is called as PySpark calls it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from consumers import append, fill
from hypothesis import given
from hypothesis import strategies as st
from producers import send
from replicated_writers import open_writer, topic
from stores import Clock

import segstore
from segstore.coordinator.structs import TopicPartition
from segstore.errors import ConfigError, DataLossError, OffsetNotAvailableError
from segstore.storage.log.append import append_one
from segstore.storage.log.transaction_markers import end_transaction

pytest.importorskip("pyspark", "4.2")

from pyspark.sql import types
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from segstore.spark import logs, source
from segstore.spark.source import StreamReader, rate_limited

COLUMNS = types.StructType().add("offset", types.LongType())
ALL = ReadAllAvailable()


class Stream:
    """A query as Spark runs it: micro-batches from the offsets of its checkpoint on."""

    def __init__(self, path: Path, at: Any = None, **options: str) -> None:
        named = {
            "path": str(path),
            **({} if "subscribePattern" in options else {"subscribe": "t"}),
            **options,
        }
        self.reader = StreamReader(named, COLUMNS)
        self.at = self.reader.initialOffset() if at is None else at
        self.limit = self.reader.getDefaultReadLimit()

    def batch(self, limit: Any = None) -> list[str]:
        """What the next micro-batch reads: "t-0 0-5"; Spark starts none where no offset has changed."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, limit or self.limit)))
        if json.dumps(end) == json.dumps(self.at):
            return []
        parts = self.reader.partitions(self.at, end)
        for part in parts:
            for rows in self.reader.read(part):
                assert rows.num_rows
        self.at = end
        return [f"{p.topic}-{p.partition} {p.start}-{p.end}" for p in parts]


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """Topic "t": 12 records in partition 0, 4 in partition 1."""
    with segstore.open(store_dir, clock=Clock()) as made:
        made.create_topic("t", partitions=2, config={"segment.bytes": 200, "file.delete.delay.ms": 0})
        append(made, 12, partition=0)
        append(made, 4, partition=1)
        yield made


def test_a_stream_begins_at_the_end_and_reads_what_is_new(store: segstore.Store) -> None:
    stream = Stream(Path(store.path))
    assert stream.at == {"t": {"0": 12, "1": 4}, "leader epochs": {"t": {"0": 0, "1": 0}}}
    assert stream.batch() == []
    append(store, 3, partition=1)
    assert stream.batch() == ["t-1 4-7"]
    assert stream.batch() == []


def test_all_at_once_without_limits(store: segstore.Store) -> None:
    stream = Stream(Path(store.path), startingOffsets="earliest")
    assert isinstance(stream.limit, ReadAllAvailable)
    assert stream.batch() == ["t-0 0-12", "t-1 0-4"]
    assert stream.reader.reportLatestOffset() == {"t": {"0": 12, "1": 4}}


def test_max_offsets_are_shared_by_backlog(store: segstore.Store) -> None:
    stream = Stream(Path(store.path), startingOffsets="earliest", maxOffsetsPerTrigger="8")
    assert stream.limit == ReadMaxRows(8)
    assert stream.batch() == ["t-0 0-6", "t-1 0-2"]
    append(store, 20, partition=1)
    assert stream.batch() == ["t-0 6-7", "t-1 2-8"]
    assert stream.batch(ALL) == ["t-0 7-12", "t-1 8-24"]  # Trigger.Once takes no limit
    assert stream.batch() == []


@given(
    begin=st.dictionaries(st.integers(0, 5), st.integers(0, 50), min_size=1),
    more=st.lists(st.integers(0, 90), min_size=6, max_size=6),
    most=st.integers(1, 100),
)
def test_rate_limit(begin: dict[int, int], more: list[int], most: int) -> None:
    starts = {TopicPartition("t", p): at for p, at in begin.items()}
    latest = {each: at + more[each.partition] for each, at in starts.items()}
    ends = rate_limited(starts, latest, most)
    waiting = [each for each in starts if latest[each] > starts[each]]
    assert ends.keys() == latest.keys()
    assert all(starts[each] <= ends[each] <= latest[each] for each in starts)
    assert all(ends[each] > starts[each] for each in waiting)
    assert sum(ends[each] - starts[each] for each in starts) <= max(most, len(waiting)) + len(waiting)


def test_min_offsets_wait_for_more_or_for_the_delay(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stream = Stream(Path(store.path), minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    assert stream.limit == ReadMinRows(5)
    append(store, 2)
    assert stream.batch() == ["t-0 12-14"]  # the first batch never waits
    append(store, 4)
    assert stream.batch() == []
    append(store, 1)
    assert stream.batch() == ["t-0 14-19"]
    append(store, 1)
    now[0] += 9.9
    assert stream.batch() == []
    now[0] += 0.2
    assert stream.batch() == ["t-0 19-20"]


def test_min_and_max_together(store: segstore.Store) -> None:
    stream = Stream(
        Path(store.path), startingOffsets="earliest", minOffsetsPerTrigger="4", maxOffsetsPerTrigger="8"
    )
    assert stream.limit == ReadMaxRows(8)
    assert stream.batch() == ["t-0 0-6", "t-1 0-2"]
    assert stream.batch() == ["t-0 6-12", "t-1 2-4"]
    append(store, 3)
    assert stream.batch() == []


def test_available_now_ends_where_the_log_was(store: segstore.Store) -> None:
    stream = Stream(
        Path(store.path), startingOffsets="earliest", maxOffsetsPerTrigger="8", minOffsetsPerTrigger="7"
    )
    stream.reader.prepareForTriggerAvailableNow()
    append(store, 100)
    store.add_partitions("t", 3)
    append(store, 5, partition=2)
    assert stream.batch() == ["t-0 0-6", "t-1 0-2"]
    append(store, 100)
    assert stream.batch() == ["t-0 6-12", "t-1 2-4"]
    assert stream.batch() == []


def test_available_now_takes_no_partition_that_appears_while_it_starts(store: segstore.Store) -> None:
    """Spark fixes the end, and then asks where to begin: it was told of a partition without an end, which
    was taken for a deleted one.
    """
    reader = StreamReader(
        {"path": store.path, "subscribePattern": "t.*", "startingOffsets": "earliest"}, COLUMNS
    )
    reader.prepareForTriggerAvailableNow()
    store.add_partitions("t", 3)
    append(store, 5, partition=2)
    fill(store, "tt", records=3)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    assert [str(part) for part in reader.partitions(begin, end)] == ["t-0", "t-1"]
    assert reader.latestOffset(end, ALL) == end
    again = Stream(Path(store.path), at=end, subscribePattern="t.*")
    assert again.batch() == ["t-2 0-5", "tt-0 0-3"]


def test_available_now_from_the_latest_offset_ends_beside_a_writer(store: segstore.Store) -> None:
    """Records that came between Spark's two questions let the query begin after its fixed end: it looked for
    an end again in each micro-batch, and so read on for as long as others appended.
    """
    reader = StreamReader({"path": store.path, "subscribe": "t"}, COLUMNS)
    reader.prepareForTriggerAvailableNow()
    append(store, 2)
    begin = reader.initialOffset()
    for _ in range(3):
        append(store, 3)
        assert reader.latestOffset(begin, ALL) == begin
        assert begin["t"] == {"0": 14, "1": 4}


@pytest.mark.parametrize(
    ("limit", "expected"), [(8, ["t-0 90-95", "t-1 0-2"]), (3, ["t-0 90-92", "t-1 0-1"])]
)
def test_removed_offsets_do_not_count_against_the_limit(
    limit: int, expected: list[str], store: segstore.Store
) -> None:
    """Of 100 offsets retention had removed 90: empty micro-batches went through these, a limit at a time."""
    append(store, 88)
    store.partition("t", 0).delete_records(90)
    options = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": str(limit)}
    stream = Stream(Path(store.path), at={"t": {"0": 0, "1": 0}}, **options)
    assert stream.batch() == expected


def test_a_stream_keeps_up_with_retention(store: segstore.Store) -> None:
    """Each micro-batch reads records, however far the start has moved since the last one."""
    stream = Stream(
        Path(store.path), at={"t": {"0": 0, "1": 4}}, failOnDataLoss="false", maxOffsetsPerTrigger="10"
    )
    for number in range(1, 6):
        append(store, 100)
        store.partition("t", 0).delete_records(100 * number)
        assert stream.batch() == [f"t-0 {100 * number}-{100 * number + 10}"]


def test_removed_offsets_do_not_count_as_enough(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stream = Stream(Path(store.path), failOnDataLoss="false", minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    append(store, 1)
    assert stream.batch() == ["t-0 12-13"]  # the first batch never waits
    append(store, 20)
    store.partition("t", 0).delete_records(30)
    assert stream.batch() == []
    append(store, 2)
    assert stream.batch() == ["t-0 30-35"]


def test_a_partition_that_vanishes_while_it_is_looked_at(store: segstore.Store) -> None:
    stream = Stream(
        Path(store.path), startingOffsets="earliest", failOnDataLoss="false", maxOffsetsPerTrigger="9"
    )
    ends = stream.reader._latest()
    store.delete_topic("t")
    begins = {each: at._replace(offset=0) for each, at in ends.items()}
    assert stream.reader._admitted(begins, ends, 16) == ends


OLDER: dict[str, dict[str, str]] = {
    "no limit": {},
    "maxOffsetsPerTrigger": {"maxOffsetsPerTrigger": "5"},
    "minOffsetsPerTrigger": {"minOffsetsPerTrigger": "5"},
}


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("limit", OLDER)
def test_an_older_copy_of_the_source_is_told(
    limit: str, available_now: bool, store_dir: Path, tmp_path: Path
) -> None:
    """The checkpoint's offsets lie beyond the log's end. With minOffsetsPerTrigger the query waited."""
    with segstore.open(store_dir) as store:
        fill(store, records=8, partitions=2)
    shutil.copytree(store_dir, tmp_path / "older")
    with segstore.open(store_dir) as store:
        append(store, 4)
        stream = Stream(store_dir, startingOffsets="earliest", **OLDER[limit])
        stream.batch(ALL)
        stream.reader.latestOffset(stream.at, stream.limit)  # the first one never waits
        stream.reader.stop()
    reader = StreamReader({"path": str(tmp_path / "older"), "subscribe": "t", **OLDER[limit]}, COLUMNS)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    reader._triggered_at = time.monotonic()
    with pytest.raises(DataLossError, match="t-0: its offset went from 12 back to 8"):
        reader.partitions(stream.at, reader.latestOffset(stream.at, reader.getDefaultReadLimit()))
    reader.stop()


def test_new_partitions_and_topics_are_read_from_their_start(store: segstore.Store) -> None:
    stream = Stream(Path(store.path), subscribePattern="t.*", maxOffsetsPerTrigger="1000")
    store.add_partitions("t", 3)
    append(store, 2, partition=2)
    fill(store, "tt", records=3)
    assert stream.batch() == ["t-2 0-2", "tt-0 0-3"]
    append(store, 1, "tt")
    assert stream.batch() == ["tt-0 3-4"]


def test_a_restart_goes_on_and_takes_no_notice_of_where_to_begin(store: segstore.Store) -> None:
    stream = Stream(Path(store.path), startingOffsets="earliest")
    stream.batch()
    stream.reader.stop()
    append(store, 2)
    assert Stream(Path(store.path), at=stream.at, startingOffsets="earliest").batch() == ["t-0 12-14"]


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_open_transactions(level: str, store: segstore.Store) -> None:
    log = store.partition("t", 1)
    stream = Stream(Path(store.path), **{"kafka.isolation.level": level})
    send(log, 1, 0, n=3, txn=True)
    assert stream.batch() == ([] if level == "read_committed" else ["t-1 4-7"])
    end_transaction([log], 1, 0, 0, commit=True)
    assert stream.batch() == ["t-1 4-8" if level == "read_committed" else "t-1 7-8"]


LOST: dict[str, tuple[Any, list[str], str]] = {
    "the first offsets": (
        lambda store: store.partition("t", 0).delete_records(8),
        ["t-0 8-12", "t-1 0-4"],
        "t-0: offsets 0 to 12 were to be read, and 8 to 12 are there",
    ),
    "the topic": (lambda store: store.delete_topic("t"), [], "option subscribe: no topic 't'"),
    "a topic made anew": (
        lambda store: (store.delete_topic("t"), fill(store, partitions=2, records=2)),
        ["t-0 0-2", "t-1 0-2"],
        "",
    ),
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_goes_between_batches(name: str, fail: str, store: segstore.Store) -> None:
    remove, left, said = LOST[name]
    stream = Stream(Path(store.path), startingOffsets="earliest", failOnDataLoss=fail)
    remove(store)
    if fail == "true" and said:
        with pytest.raises((DataLossError, ConfigError)) as raised:
            stream.batch()
        assert said in str(raised.value)
    else:
        assert stream.batch() == left


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_made_anew_behind_a_stream(fail: str, store: segstore.Store) -> None:
    stream = Stream(Path(store.path), failOnDataLoss=fail)
    store.delete_topic("t")
    fill(store, partitions=2, records=2)
    if fail == "true":
        with pytest.raises(DataLossError, match="went from 12 back to 2"):
            stream.batch()
    else:
        assert stream.batch() == []
        append(store, 1)
        assert stream.batch() == ["t-0 2-3"]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_replica_whose_high_watermark_has_gone_back(fail: str, tmp_path: Path) -> None:
    """Its writer was killed: nothing is lost, and what was read is not read again."""
    path = tmp_path / "d"
    writer = open_writer(path)
    writer.topic_admin.make(topic())
    stream = Stream(path, startingOffsets="earliest", failOnDataLoss=fail)
    for epoch, (count, read) in enumerate([(10, ["t-0 0-10"]), (1, ["t-0 10-11"])], 1):
        replica = writer.partitions.replica("t", 0)
        replica.lead(epoch)
        for _ in range(count):
            append_one(writer.partition("t", 0), b"x", None, (), None)
        replica.set_high_watermark(replica.log_end_offset)
        assert stream.batch() == read
        writer.let_go()
        writer = open_writer(path)
        assert stream.batch() == []
    writer.let_go()


class Replica:
    """One directory of a replicated store, with 11 records of which 10 are shown behind a kill of its writer;
    a query of which a micro-batch up to the eleventh was planned before, and not committed.
    """

    def __init__(self, path: Path, fail: str) -> None:
        self.writer, self._fail = open_writer(path), fail
        self.writer.topic_admin.make(topic())
        self.stream = Stream(path, startingOffsets="earliest", failOnDataLoss=fail)
        self.lead(1, 11)
        self.replica.set_high_watermark(10)
        self.writer.partitions.checkpoint()
        self.replica.set_high_watermark(11)
        self.begin = self.stream.at
        self.end = self.stream.reader.latestOffset(self.begin, ALL)
        self.parts = self.stream.reader.partitions(self.begin, self.end)
        self.kill(path)

    @property
    def replica(self) -> Any:
        return self.writer.partitions.replica("t", 0)

    def lead(self, epoch: int, count: int) -> None:
        self.replica.lead(epoch)
        for _ in range(count):
            append_one(self.writer.partition("t", 0), b"x", None, (), None)

    def kill(self, path: Path) -> None:
        """Let the writer go as a power cut does: what it has published is gone, its checkpoint is there."""
        self.writer.let_go()
        (path / ".segstore" / "ends").unlink()
        self.writer = open_writer(path)
        assert self.replica.high_watermark <= 10
        self.stream.reader.stop()
        self.stream = Stream(path, at=self.begin, failOnDataLoss=self._fail)

    def planned(self) -> list[str]:
        parts = self.stream.reader.partitions(self.begin, self.end)
        return [f"{part.topic}-{part.partition} {part.start}-{part.end}" for part in parts]

    def read(self) -> int:
        return sum(rows.num_rows for part in self.parts for rows in self.stream.reader.read(part))


WORK: dict[str, tuple[Callable[[Replica], object], object]] = {
    "a plan": (Replica.planned, ["t-0 0-11"]),
    "a task": (Replica.read, 11),
}


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("work", WORK)
def test_r38_a_planned_micro_batch_waits_until_it_is_shown_again(
    work: str, fail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer was killed: nothing is lost, and a part of it is not taken for all."""
    one, slept = Replica(tmp_path / "d", fail), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            one.replica.set_high_watermark(11)

    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    ask, expected = WORK[work]
    assert (ask(one), len(slept)) == (expected, 3)
    one.writer.let_go()


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("work", WORK)
def test_r38_a_micro_batch_that_is_not_shown_again_in_time_is_not_lost(
    work: str, fail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Replica(tmp_path / "d", fail)
    monkeypatch.setattr(logs, "PATIENCE", 0.1)
    with pytest.raises(OffsetNotAvailableError, match="up to offset 11 are there, and not shown above"):
        WORK[work][0](one)
    one.replica.truncate_to(10)  # its leader lacks the last one
    with pytest.raises(DataLossError) if fail == "true" else nullcontext():
        assert WORK[work][0](one) in (["t-0 0-10"], 10, ["t-0 0-0"], 0)
    one.writer.let_go()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_new_partition_that_has_lost_its_start(fail: str, store: segstore.Store) -> None:
    stream = Stream(Path(store.path), failOnDataLoss=fail)
    store.add_partitions("t", 3)
    append(store, 12, partition=2)
    store.partition("t", 2).delete_records(8)
    if fail == "true":
        with pytest.raises(DataLossError, match="t-2: offsets 0 to 12 were to be read, and 8 to 12"):
            stream.batch()
    else:
        assert stream.batch() == ["t-2 8-12"]


def test_errors_wait_for_the_first_question(store_dir: Path) -> None:
    """PySpark hides what the constructor raises, and stops what it could not make."""
    reader = StreamReader({"path": str(store_dir), "subscribe": "t"}, COLUMNS)
    with pytest.raises(ConfigError, match="option path"):
        reader.initialOffset()
    reader.stop()
    reader = StreamReader({"path": str(store_dir)}, COLUMNS)
    with pytest.raises(ConfigError, match="subscribe, subscribePattern, assign"):
        reader.getDefaultReadLimit()
    reader.stop()
