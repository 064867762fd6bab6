"""Spark's source with all directories of a replicated store, without Spark: which replicas it reads, what it
does when a disk is lost, and what it tells when an election took records back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

from replicated_stores import (
    PATIENT,
    Directories,
    Writer,
    append_alone,
    await_in_sync,
    elect_the_other,
    found,
    retrying,
)
from spark import schema
from waiting import until

import segstore
from segstore.errors import ConfigError, DataLossError, QuorumLostError, ReplicaOfflineError
from segstore.replication import replicated_reader
from segstore.spark import slices
from segstore.spark.offsets import EPOCHS
from segstore.spark.source import BatchReader, StreamReader, reader

pytestmark = pytest.mark.kind("replicated stores")

COLUMNS = schema("topic", "partition", "offset", "value")
Row = tuple[int, int, bytes | None]
PARTED = "another way from offset 3 on"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be read is told sooner."""
    monkeypatch.setattr(replicated_reader, "PATIENCE", 3.0)
    monkeypatch.setattr(replicated_reader, "SHOWN", 0.5)
    monkeypatch.setattr(slices, "PATIENCE", 3.0)


def given(directories: Directories, **options: Any) -> dict[str, str]:
    """The source's options: all directories, all of topic "t" from its start."""
    witness = {} if directories.witness is None else {"witness": str(directories.witness)}
    named = {name.replace("_", "."): str(value) for name, value in options.items()}
    path = ":".join(map(str, directories.paths))
    return {"path": path, "subscribe": "t", "startingOffsets": "earliest", **witness, **named}


def batch(directories: Directories, **options: Any) -> BatchReader:
    made = reader(given(directories, **options), COLUMNS)
    assert isinstance(made, BatchReader)
    return made


def values_of(some: Any) -> list[Row]:
    columns = [some.column(name).to_pylist() for name in ("partition", "offset", "value")]
    return list(zip(*columns, strict=True))


def rows(source: BatchReader | StreamReader, parts: Any) -> list[Row]:
    """The rows of these slices, in order; each is there once."""
    read: list[Row] = []
    for part in parts:
        for some in source.read(part):
            read += values_of(some)
    assert len({row[:2] for row in read}) == len(read), "a record was read twice"
    return sorted(read)


def read_all(directories: Directories, **options: Any) -> list[Row]:
    source = batch(directories, **options)
    return rows(source, source.partitions())


class Stream:
    """A streaming query: it keeps offsets as Spark does, and what it has read."""

    def __init__(self, directories: Directories, **options: Any) -> None:
        self._given = given(directories, **options)
        self.read: list[Row] = []
        self._begin()
        self.at = self.source.initialOffset()

    def _begin(self) -> None:
        self.source = StreamReader(self._given, COLUMNS)

    def restart(self, **options: Any) -> None:
        self.source.stop()
        self._given |= options
        self._begin()

    def plan(self) -> tuple[Any, Any]:
        """The next micro-batch: its end and its slices."""
        end = self.source.latestOffset(self.at, self.source.getDefaultReadLimit())
        return end, (self.source.partitions(self.at, end) if end != self.at else [])

    def step(self) -> list[Row]:
        """Read a micro-batch."""
        end, parts = self.plan()
        some = rows(self.source, parts)
        self.read += some
        self.at = end
        return some


@pytest.fixture
def stream() -> Iterator[Callable[..., Stream]]:
    """Make streams, which are stopped when the test is over."""
    made: list[Stream] = []

    def make(directories: Directories, **options: Any) -> Stream:
        made.append(Stream(directories, **options))
        return made[-1]

    yield make
    for each in made:
        each.source.stop()


def filled(directories: Directories, count: int = 50, **config: Any) -> tuple[Any, list[Row]]:
    """A store whose topic "t" has a partition in each two of the directories: no directory has all."""
    store = directories.open(**{**PATIENT, **config})
    n = len(directories.paths)
    store.create_topic("t", assignments={number: [number, (number + 1) % n] for number in range(n)})
    for number in range(n):
        store.partition("t", number).append_batch([b"%d" % each for each in range(count)], batch_bytes=100)
    await_in_sync(store)
    return store, [(number, each, b"%d" % each) for number in range(n) for each in range(count)]


# --- which replicas ------------------------------------------------------------------------------


def test_each_partition_is_read_of_the_replica_that_leads(three: Directories) -> None:
    store, expected = filled(three)
    source = batch(three, minPartitions=9)
    parts: list[Any] = source.partitions()
    assert rows(source, parts) == expected
    assert len(parts) > 3
    for part in parts:
        state = store.describe_partition("t", part.partition)
        assert part.places[:2] == tuple(str(three.paths[each]) for each in state.replicas)
        assert part.until == (50, state.leader_epoch)


def test_two_directories_and_a_witness(two: Directories) -> None:
    _, expected = filled(two)
    assert read_all(two) == expected
    two.lose(0)
    assert read_all(two) == expected


def test_the_order_of_the_directories_does_not_matter(three: Directories) -> None:
    _, expected = filled(three)
    three.paths.reverse()
    assert read_all(three) == expected
    three.paths.reverse()


@pytest.mark.hangs
def test_nothing_is_read_that_is_not_committed(three: Directories, stream: Callable[..., Stream]) -> None:
    store, expected = filled(three)
    following = stream(three)
    assert following.step() == expected
    three.files.hang(three.paths[1])
    log = store.partition("t", 0)
    log.append(b"not committed yet", acks=1)
    assert (log.log_end_offset, log.high_watermark) == (51, 50)
    assert read_all(three) == expected
    assert following.step() == []
    three.files.mend()
    until(lambda: log.high_watermark == 51)
    assert following.step() == [(0, 50, b"not committed yet")]


@pytest.mark.parametrize("way", ["closed", "as after a kill", "as after a power cut"])
def test_a_store_that_nobody_has_open(three: Directories, way: str) -> None:
    """Where ends are not published, as of a former boot of the machine, the checkpointed high watermark
    counts: the log of the replica that leads has a record more.
    """
    store, expected = filled(three, replica_high_watermark_checkpoint_interval_ms=50)
    copies = Directories(three.base / "copies")
    (three.base / "copies").mkdir()
    if way == "closed":
        store.close()
    else:
        until(lambda: ends_are_checkpointed(three))
        three.files.hang(three.paths[1]) if not three.inline else None
        if not three.inline:
            store.partition("t", 0).append(b"not committed yet", acks=1)
    for path, copy in zip(three.paths, copies.paths, strict=True):
        shutil.copytree(path, copy)
        if way == "as after a power cut":
            (copy / ".segstore" / "ends").unlink()
    three.files.mend()
    assert read_all(copies) == expected
    copies.lose(0)
    assert read_all(copies) == expected


def test_r38_what_was_read_stays_read_where_less_is_shown_by_now(
    three: Directories, stream: Callable[..., Stream]
) -> None:
    """High watermarks on disk are older ones: the stream waits, and what was planned is read."""
    store, expected = filled(three)
    following = stream(three)
    begin, (end, _) = following.at, following.plan()
    store.close()
    for path in three.paths:
        (path / ".segstore" / "ends").unlink()
        file = path / "replication-offset-checkpoint"
        file.write_text(file.read_text().replace(" 50\n", " 30\n"))
    following.restart()
    assert [offset for _, offset, _ in read_all(three)] == [*range(30)] * 3
    following.at = end
    assert following.plan() == (end, [])
    assert rows(following.source, following.source.partitions(begin, end)) == expected


def ends_are_checkpointed(three: Directories) -> bool:
    files = [path / "replication-offset-checkpoint" for path in three.paths]
    return all(file.exists() and f"t {n} 50" in file.read_text().splitlines() for n, file in enumerate(files))


# --- a directory is lost ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_a_disk_that_was_taken_away_between_plan_and_task(three: Directories, is_open: bool) -> None:
    store, expected = filled(three)
    source = batch(three)
    parts = source.partitions()
    if not is_open:
        store.close()
    three.lose(0)
    assert rows(source, parts) == expected
    assert read_all(three) == expected


def test_a_disk_that_fails_in_the_middle_of_a_task(
    three: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on behind what was read."""
    _, expected = filled(three)
    source = batch(three)
    parts: list[Any] = source.partitions()
    monkeypatch.setattr(slices, "FIRST_BYTES", 1)
    monkeypatch.setattr(slices, "FEW_ROWS", 0)
    tasks = Directories(three.base)  # other processes see the disk fail, too
    opened = slices.storage.open
    monkeypatch.setattr(slices.storage, "open", lambda path, mode: opened(path, mode, files=tasks.files))
    read: list[Row] = []
    for part in parts:
        for number, some in enumerate(source.read(part)):
            read += values_of(some)
            if number == 1:
                tasks.files.fail(Path(part.places[0]))
        assert number > 3
        tasks.files.mend()
    assert read == expected


@pytest.mark.usefixtures("impatient")
def test_all_replicas_are_lost(three: Directories) -> None:
    """Of the partition that has no other; the others are read."""
    store, expected = filled(three)
    source = batch(three)
    parts: list[Any] = source.partitions()
    store.close()
    for number in (0, 1):
        three.lose(number)
    with pytest.raises(ReplicaOfflineError, match=r"t-0: no replica has all records up to offset 50: .*d0"):
        rows(source, parts[:1])
    assert rows(source, parts[1:]) == expected[50:]
    with pytest.raises(QuorumLostError, match=r"2 of the 3 directories are needed .* 1 can be read: .*d0"):
        read_all(three)


@pytest.mark.usefixtures("impatient")
def test_a_replica_that_is_not_in_sync_is_not_asked(three: Directories) -> None:
    """The partition's replicas in sync are lost: what another one has may lack records."""
    store, _ = filled(three, replica_lag_time_max_ms=400)
    three.lose(1)
    until(lambda: store.describe_partition("t", 0).isr == (0,))
    store.partition("t", 0).append(b"alone")
    store.close()
    three.bring_back()
    three.lose(0)
    with pytest.raises(
        ReplicaOfflineError, match="no replica of t-0 can be read that is in sync: directory 0"
    ):
        batch(three).partitions()
    three.bring_back()
    assert (0, 50, b"alone") in read_all(three)


def test_a_stream_over_failovers_loses_nothing_and_has_nothing_twice(
    three: Directories, stream: Callable[..., Stream]
) -> None:
    """Disks fail one after the other while a writer goes on; the stream is begun anew now and then."""
    store = three.open(replica_lag_time_max_ms=2_000)
    store.create_topic("t", 1, {"min.insync.replicas": 2}, replication_factor=3)
    log, following = store.partition("t", 0), stream(three)
    with Writer(log) as writer:
        for _ in range(4):
            writer.more()
            following.step()
            _lose_the_leader(three, store, following)
            writer.more()
            following.step()
            following.restart()
            following.step()
    await_in_sync(store)
    until(lambda: log.high_watermark == log.log_end_offset)
    following.step()
    assert {offset: value for _, offset, value in following.read} == found(log)
    assert len(following.read) == log.end_offset
    writer.assert_kept(log)


def _lose_the_leader(three: Directories, store: Any, following: Stream) -> None:
    """And read on until it is back, and in sync."""

    def over() -> bool:
        following.step()
        return store.describe_partition("t", 0).leader not in (-1, lost)

    lost = store.describe_partition("t", 0).leader
    three.lose(lost)
    until(over)
    three.bring_back()
    retrying(lambda: store.replace_directory(lost, three.paths[lost]))
    await_in_sync(store)


def test_committed_records_of_a_replica_whose_leader_is_lost(three: Directories) -> None:
    """Those of open and aborted transactions are left out there, too."""
    store = three.open(**PATIENT)
    store.create_topic("t", replication_factor=3)
    for name, commit in (("a", True), ("b", False), ("c", True)):
        with segstore.Producer(store, transactional_id=name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(3):
                producer.send("t", b"%s%d" % (name.encode(), number), partition=0).get(60)
            (producer.commit_transaction if commit else producer.abort_transaction)()
    producer = segstore.Producer(store, transactional_id="open")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"open", partition=0).get(60)
    log = store.partition("t", 0)
    until(lambda: log.last_stable_offset == log.log_end_offset - 1)
    expected = [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2"]
    assert [it.value for it in log.read(0, isolation_level="read_committed")] == expected
    source = batch(three, kafka_isolation_level="read_committed")
    parts = source.partitions()
    three.lose(store.describe_partition("t", 0).leader)
    assert [value for _, _, value in rows(source, parts)] == expected
    assert [value for _, _, value in read_all(three, kafka_isolation_level="read_committed")] == expected
    three.bring_back()
    producer.close()


# --- elections that take records back ----------------------------------------------------------------


def diverging(three: Directories) -> tuple[Any, Any]:
    """A store, and its log, of which replica 0 has offsets 3 to 6 alone; they are shown."""
    store = three.open(auto_leader_rebalance_enable=False)
    store.create_topic("t", assignments={0: [0, 1]})
    log = store.partition("t", 0)
    log.append_batch([b"both have it"] * 3)
    append_alone(three, store, log, 4)
    return store, log


@pytest.mark.hangs
@pytest.mark.parametrize("more", [0, 2, 4, 9])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_stream_is_told_of_records_that_were_taken_back(
    three: Directories, stream: Callable[..., Stream], fail: str, more: int
) -> None:
    """Whether the log is shorter by then, or longer: nothing is skipped silently."""
    store, log = diverging(three)
    following = stream(three, failOnDataLoss=fail)
    assert len(following.step()) == 7
    assert following.at == {"t": {"0": 7}, EPOCHS: {"t": {"0": 0}}}
    elect_the_other(three, store)
    if more:
        retrying(lambda: log.append_batch([b"other"] * more))
        until(lambda: log.end_offset == 3 + more)
    following.restart()
    if fail == "true":
        with pytest.raises(DataLossError, match=PARTED):
            following.step()
        return
    following.step()
    assert [row[1:] for row in following.read[7:]] == [(3 + n, b"other") for n in range(more)]
    assert following.step() == []
    retrying(lambda: log.append(b"later"))
    until(lambda: log.end_offset == 4 + more)
    assert following.step() == [(0, 3 + more, b"later")]


@pytest.mark.usefixtures("impatient")
@pytest.mark.hangs
def test_a_task_that_was_planned_before_reads_nothing_of_another_leader(
    three: Directories, stream: Callable[..., Stream]
) -> None:
    store, log = diverging(three)
    following, source = stream(three), batch(three)
    end, parts = following.plan()
    planned = source.partitions()
    elect_the_other(three, store)
    retrying(lambda: log.append_batch([b"other"] * 9))
    until(lambda: log.end_offset == 12)
    three.lose(0)
    lacking = "no replica has all records up to offset 7"
    for reading, some in ((following.source, parts), (source, planned)):
        with pytest.raises((DataLossError, ReplicaOfflineError), match=lacking):
            rows(reading, some)
    with pytest.raises(DataLossError, match=PARTED):  # as Spark plans a micro-batch of its checkpoint again
        following.source.partitions(following.at, end)


@pytest.mark.hangs
def test_a_planned_micro_batch_ends_where_the_logs_part(
    three: Directories, stream: Callable[..., Stream]
) -> None:
    """Spark runs it again behind the election; the next one goes on there, so no record comes twice."""
    store, log = diverging(three)
    following = stream(three, failOnDataLoss="false")
    end, _ = following.plan()
    elect_the_other(three, store)
    retrying(lambda: log.append_batch([b"other"] * 9))
    until(lambda: log.end_offset == 12)
    found = rows(following.source, following.source.partitions(following.at, end))
    following.at = end
    found += following.step()
    assert [row[1] for row in found] == [*range(12)]


def test_a_checkpoint_without_leader_epochs_goes_on(
    three: Directories, stream: Callable[..., Stream]
) -> None:
    """As one of a query that has read a single directory; and the other way round."""
    store, _ = filled(three)
    following = stream(three)
    following.step()
    without = {"t": following.at["t"]}
    following.at = without
    store.partition("t", 0).append(b"more")
    assert following.step() == [(0, 50, b"more")]
    one = StreamReader({"path": str(three.paths[0]), "subscribe": "t"}, COLUMNS)
    try:
        until(lambda: one.reportLatestOffset()["t"]["0"] == 51)
        end = one.latestOffset(following.at, one.getDefaultReadLimit())
        assert end[EPOCHS] == {"t": {"0": following.at[EPOCHS]["t"]["0"]}}
        assert one.initialOffset()[EPOCHS]["t"]["0"] == end[EPOCHS]["t"]["0"]
    finally:
        one.stop()


# --- options -----------------------------------------------------------------------------------------


def _other_store(three: Directories) -> str:
    other = Directories(three.base / "other", 1)
    other.base.mkdir()
    other.open().close()
    return f"{three.paths[0]}:{other.paths[0]}"


def _copy(three: Directories) -> str:
    shutil.copytree(three.paths[0], three.base / "copy")
    return f"{three.paths[0]}:{three.base / 'copy'}:{three.paths[1]}"


def _link(three: Directories) -> str:
    os.symlink(three.paths[0], three.base / "link")
    return f"{three.paths[0]}:{three.paths[1]}:{three.base / 'link'}"


def _plain(three: Directories) -> str:
    for name in ("x", "y"):
        segstore.open(three.base / name).close()
    return f"{three.base / 'x'}:{three.base / 'y'}"


WRONG: dict[str, tuple[Callable[[Directories], str], str]] = {
    "of different stores": (_other_store, r"option path=.*belong to different stores"),
    "one twice": (lambda it: f"{it.paths[0]}:{it.paths[0]}", r"option path=.*are the same directory"),
    "one twice, by a link": (_link, r"option path=.*are the same directory"),
    "a copy": (_copy, r"option path=.*copies of one directory"),
    "one within another": (
        lambda it: f"{it.paths[0]}:{it.paths[0]}/t-0",
        r"option path=.*lies within the other",
    ),
    "a relative one": (lambda it: f"d0:{it.paths[1]}", r"option path='d0:/.*must be absolute"),
    "stores without replicas": (_plain, r"option path=.*no directory of a replicated store"),
    "none that is there": (lambda it: "/x/y:/x/z", r"option path='/x/y:/x/z'.*no directory of a replicated"),
}


@pytest.mark.parametrize("name", WRONG)
def test_directories_that_are_refused(three: Directories, name: str) -> None:
    filled(three)
    path, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        reader({"path": path(three), "subscribe": "t"}, COLUMNS).partitions()


def test_a_directory_with_a_colon_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    directories = Directories(tmp_path / "a:b")
    try:
        _, expected = filled(directories)
        assert read_all(directories) == expected
        one = reader({"path": str(directories.paths[0]), "assign": '{"t": [0]}'}, COLUMNS)
        assert rows(one, one.partitions()) == expected[:50]
    finally:
        directories.close()


def test_a_directory_that_comes_back_is_read_again(three: Directories, stream: Callable[..., Stream]) -> None:
    store, _ = filled(three, count=5)
    following = stream(three)
    following.step()
    three.lose(2)
    until(lambda: 2 in store.describe_partition("t", 1).offline)
    log = store.partition("t", 2)
    log.append(b"by another leader", acks=1)
    until(lambda: following.step())
    three.bring_back()
    retrying(lambda: store.replace_directory(2, three.paths[2]))
    await_in_sync(store)
    retrying(lambda: store.elect_leaders("preferred", [("t", 2)]))
    until(lambda: store.describe_partition("t", 2).leader == 2)
    log.append(b"by the first one")
    assert following.step() == [(2, 6, b"by the first one")]
    assert batch(three).partitions()[2].places[0] == str(three.paths[2])  # type: ignore[attr-defined]
