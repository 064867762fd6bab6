"""Record batches of scans: the same rows as a plain loop over `read`, for logs of all kinds, whatever columns
are asked for, and however small pieces are.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn_sets import EACH_KIND, entry, joined
from drawn_sets import some as some_messages
from message_sets import GZIP, NONE
from mixed_logs import LOGS, headers, some
from places import GOLDEN
from stores import Clock, write_segment

import segstore
from segstore.integers import INT64_MAX
from segstore.records import CODECS
from segstore.storage.scans import piece_reader
from segstore.storage.scans.bounds import INT64_MIN, Bounds
from segstore.storage.scans.columns import schema_of
from segstore.storage.scans.topic_scan import COLUMNS

pa = pytest.importorskip("pyarrow")

Row = tuple[Any, ...]


def by_codecs(path: Path, rng: random.Random) -> None:
    """Batches of each codec by turns, some of them many times as large once decompressed."""
    with segstore.open(path, clock=Clock(step=1)) as store:
        store.create_topic("t", config={"segment.bytes": 30_000, "index.interval.bytes": 500})
        log = store.partition("t")
        for _ in range(30):
            n = rng.randrange(1, 200)
            values = rng.choice([some(rng, n, 60), [b"a" * 2000] * n])
            codec = rng.choice(CODECS)
            log.append_batch(values, some(rng, n, 9), headers=headers(rng, n), compression=codec)


def alike(path: Path, rng: random.Random) -> None:
    """Records that have one shape, and a few that have not, in batches of all sizes."""
    with segstore.open(path, clock=Clock(step=1)) as store:
        store.create_topic("t", config={"segment.bytes": 60_000})
        log = store.partition("t")
        for size in (100, 1, 0, 130, 20_000, 9):
            values = [rng.randbytes(size) for _ in range(300)]
            keys = rng.choice([None, [b"key"] * 300, [b""] * 300, some(rng, 300, 3)])
            stamps = [rng.choice([-1, 5, 10**12]) for _ in range(300)]
            log.append_batch(values, keys, timestamps=stamps, batch_bytes=rng.choice([2000, 65536]))


def small_batches(path: Path, rng: random.Random) -> None:
    with segstore.open(path, clock=Clock(step=1)) as store:
        store.create_topic("t", config={"segment.bytes": 3000})
        for value in some(rng, 300, 100):
            store.partition("t").append(value)


def all_magics(path: Path, rng: random.Random) -> None:
    write_segment(path / "t-0", EACH_KIND.messages[0].offset, EACH_KIND.data)


MADE: dict[str, Callable[[Path, random.Random], None]] = {
    **LOGS,
    **{each.__name__: each for each in (by_codecs, alike, small_batches, all_magics)},
}
KEPT = [*sorted((GOLDEN / "clean").iterdir()), *sorted((GOLDEN / "old" / "clean").iterdir())]
LEVELS = "read_uncommitted", "read_committed"
SIZES = {"in one piece": None, "in small pieces": 5000, "in the smallest pieces": 1}
CHOICES: dict[str, tuple[str, ...]] = {
    "all columns": COLUMNS,
    "none": (),
    "offsets": ("offset",),
    "no bytes of records": ("timestamp_type", "partition", "topic", "offset"),
    "timestamps": ("timestamp", "offset"),
    "timestamps and their types": ("timestamp_type", "timestamp"),
    "values": ("value",),
    "keys": ("key", "offset"),
    "headers": ("headers",),
    "keys, values": ("partition", "value", "key"),
}


@pytest.fixture(scope="module", params=[*MADE, *(path.name for path in KEPT)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    name, path = request.param, tmp_path_factory.mktemp("made") / "store"
    if name in MADE:
        MADE[name](path, random.Random(name))
        return path, "t"
    path.mkdir()
    source = next(each for each in KEPT if each.name == name)
    shutil.copytree(source, path / name, copy_function=shutil.copyfile)
    return path, name.rpartition("-")[0]


@pytest.fixture(params=SIZES)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pieces of this size, and reads of a quarter of them, for which threads are begun; parts that end early,
    behind little that is decompressed, or few rows.
    """
    if size := SIZES[request.param]:
        for name in ("AT_A_TIME", "HEADERS_AT_A_TIME", "COUNTED_AT_A_TIME"):
            monkeypatch.setattr(piece_reader, name, size)
        monkeypatch.setattr(piece_reader, "STEP", max(size // 4, 1))
        monkeypatch.setattr(piece_reader, "_MOST_PLAIN", max(size // 2, 1))
        for name in ("_MOST_ROWS", "_MOST_COUNTED"):
            monkeypatch.setattr(piece_reader, name, 30)
    return str(request.param)


def by_reads(log: segstore.PartitionLog, start: int, end: int, **how: Any) -> list[Row]:
    """The rows from `start` up to `end`, in a plain loop."""
    rows: list[Row] = []
    while start < end:
        records = log.read(start, 3000, **how)
        kinds = records.timestamp_types.tolist()
        for r, kind in zip(records, kinds, strict=True):
            said = r.headers or None
            rows += [(log.topic, log.partition, r.offset, r.timestamp, kind, r.key, r.value, said)]
        if records.next_offset <= start:
            break
        start = records.next_offset
    return [row for row in rows if row[2] < end]


def rows_of(batches: Any, columns: tuple[str, ...]) -> list[Row]:
    """The rows of batches, whose buffers are what Arrow says."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == schema_of(columns)
        assert batch.num_rows
        found = [_values(batch.column(i), name) for i, name in enumerate(columns)]
        rows += zip(*found, strict=True) if columns else [()] * batch.num_rows
    return rows


def _values(column: Any, name: str) -> list[Any]:
    if name == "headers":
        return [each and [(one["key"], one["value"]) for one in each] for each in column.to_pylist()]
    return (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist()


def only(rows: list[Row], columns: tuple[str, ...]) -> list[Row]:
    places = [COLUMNS.index(name) for name in columns]
    return [tuple(row[at] for at in places) for row in rows]


def open_one(made: tuple[Path, str]) -> tuple[segstore.Store, segstore.PartitionLog]:
    path, topic = made
    store = segstore.open(path, mode="r")
    return store, store.partition(topic, store.topics()[topic].partition_ids[0])


@pytest.mark.kind("costly unit tests")
def test_rows_are_those_of_reads(made: tuple[Path, str], pieces: str) -> None:
    store, log = open_one(made)
    with store:
        for level in LEVELS:
            wanted = by_reads(log, log.start_offset, log.end_offset, isolation_level=level)
            assert wanted
            scan = store.scan(made[1], isolation_level=level)
            for name, columns in CHOICES.items():
                assert rows_of(scan.batches(columns), columns) == only(wanted, columns), (level, name)


@pytest.mark.kind("costly unit tests")
def test_rows_of_a_range(made: tuple[Path, str], pieces: str, rng: random.Random) -> None:
    """Bounds of the scan, and bounds of a predicate, may cut batches anywhere."""
    store, log = open_one(made)
    with store:
        first, last = log.start_offset, log.end_offset
        for _ in range(12):
            start, end = sorted((rng.randint(first, last), rng.randint(first, last)))
            name, columns = rng.choice([*CHOICES.items()])
            wanted = only(by_reads(log, start, end), columns)
            scan = store.scan(made[1], start=start, end=end)
            assert rows_of(scan.batches(columns), columns) == wanted, (name, start, end)
            bounds = Bounds(None, start, end - 1)
            assert rows_of(store.scan(made[1]).batches(columns, bounds), columns) == wanted


MIXED = joined([entry(2, NONE, some_messages(0, 3)), entry(1, GZIP, some_messages(3, 6))])


@pytest.mark.parametrize("end", range(10))
def test_a_range_ends_within_a_wrapper_behind_a_batch(store_dir: Path, end: int) -> None:
    """The offset that a wrapper has is that of its last message."""
    write_segment(store_dir / "t-0", 0, MIXED.data)
    with segstore.open(store_dir) as store:
        table = store.scan("t", end=end).to_arrow(["offset", "value"])
    assert table["offset"].to_pylist() == [m.offset for m in MIXED.messages if m.offset < end]


@pytest.mark.kind("costly unit tests")
def test_bounds_of_time_leave_out_nothing(made: tuple[Path, str], pieces: str, rng: random.Random) -> None:
    store, log = open_one(made)
    with store:
        rows = by_reads(log, log.start_offset, log.end_offset)
        stamps = [row[3] for row in rows]
        for _ in range(12):
            first, last = sorted(rng.choices([*stamps, INT64_MIN, 0, max(stamps) + 1], k=2))
            columns = CHOICES[rng.choice(["all columns", "timestamps", "none"])]
            bounds = Bounds(None, 0, INT64_MAX, first, last)
            found = rows_of(store.scan(made[1]).batches(columns, bounds), columns)
            wanted = only([row for row in rows if first <= row[3] <= last], columns)
            rest = iter(found)
            assert all(row in rest for row in wanted)
            assert len(found) <= len(rows)


@pytest.mark.parametrize("partitions", [None, [], [0]])
def test_a_topic_that_is_not_there_is_told(store: segstore.Store, partitions: list[int] | None) -> None:
    with pytest.raises(segstore.errors.UnknownTopicOrPartitionError, match="no topic 'missing'"):
        store.scan("missing", partitions)
