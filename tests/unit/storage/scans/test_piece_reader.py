"""How many bytes of logs a scan reads, by which calls, and what of a damaged or changing log it gives."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compaction import CONFIG, clean, roll
from crc32c import crc32c
from damage import batches as batches_in
from damage import flip
from faults import CountingFiles
from stores import write_segment
from waiting import until

import segstore
from segstore._native import lib
from segstore.errors import CorruptRecordError, OffsetOutOfRangeError
from segstore.integers import INT32_MAX
from segstore.storage.scans import piece_reader
from segstore.storage.scans.bounds import Bounds

pa = pytest.importorskip("pyarrow")
columns_module = pytest.importorskip("segstore.storage.scans.columns")

STAMP = 1_700_000_000_000
BATCHES, EACH = 200, 50
N = BATCHES * EACH


class Read(CountingFiles):
    """Files that count the bytes that are read of logs."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def pread(self, handle: Any, size: int, position: int) -> bytes:
        data = super().pread(handle, size, position)
        self.bytes += len(data)
        return data

    def pread_into(self, handle: Any, buffer: Any, position: int) -> int:
        n = super().pread_into(handle, buffer, position)
        self.bytes += n
        return n


class ReadByC:
    """The functions of C, of which one reads logs by itself: at most a window beyond what it takes."""

    def __init__(self, files: Read) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def seg_read_table(self, fd: int, end: int, window: Any, room: int, table: Any, r: Any) -> int:
        before = r.position
        done: int = lib.seg_read_table(fd, end, window, room, table, r)
        self._files.bytes += min(end - before, r.position - before + room)
        return done


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Read:
    files = Read()
    monkeypatch.setattr(piece_reader, "lib", ReadByC(files))
    return files


@pytest.fixture
def log(store_dir: Path, files: Read) -> Iterator[segstore.PartitionLog]:
    """200 batches of 50 records of 1000 bytes, each stamped with its offset, in one segment."""
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        for first in range(0, N, EACH):
            stamps = [STAMP + at for at in range(first, first + EACH)]
            log.append_batch([b"v" * 1000] * EACH, timestamps=stamps)
        list(scan(log).batches(["offset"], Bounds(None, 0, 0)))  # opens what is opened once
        files.clear()
        files.bytes = 0
        yield log


def scan(log: segstore.PartitionLog, **terms: Any) -> Any:
    return log.store.scan("t", **terms)  # type: ignore[attr-defined]


def offsets(batches: Any) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def small_pieces(monkeypatch: pytest.MonkeyPatch, size: int = 200_000) -> None:
    for name in ("AT_A_TIME", "HEADERS_AT_A_TIME", "COUNTED_AT_A_TIME"):
        monkeypatch.setattr(piece_reader, name, size)


@pytest.mark.parametrize("columns", [[], ["offset"], ["topic", "partition", "timestamp_type", "offset"]])
@pytest.mark.parametrize("small", [False, True])
def test_headers_are_enough(
    log: segstore.PartitionLog,
    files: Read,
    columns: list[str],
    small: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No record is read: all reads are of headers, by functions of C, which read 64 bytes at a time."""
    if small:
        small_pieces(monkeypatch)
    found = list(scan(log).batches(columns))
    assert sum(batch.num_rows for batch in found) == N
    assert files.bytes == 0
    assert set(files.counts()) <= {"read_by", "seek_batch", "open", "exists", "identity"}
    assert small or files.count("read_by") == 1


CALLS: dict[str, tuple[list[str], set[str]]] = {
    "count": ([], {"seg_seek", "seg_read_headers", "seg_offset_slot"}),
    "timestamps": (["timestamp"], {"seg_seek", "seg_read_table", "seg_offset_slot"}),
    "values": (["value"], {"seg_seek", "seg_read_table", "seg_offset_slot"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_few_calls_of_c(log: segstore.PartitionLog, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, allowed = CALLS[name]
    monkeypatch.setattr(piece_reader, "AT_A_TIME", 1 << 30)  # one piece: no thread
    called: list[str] = []

    def profile(frame: Any, event: str, function: Any) -> None:
        name = getattr(function, "__name__", "")
        if event == "c_call" and name.startswith("seg_"):
            called.append(name)

    sys.setprofile(profile)
    try:
        for _ in scan(log).batches(columns):
            """All of it."""
    finally:
        sys.setprofile(None)
    assert set(called) <= allowed
    assert len(called) <= 9, called


RANGES: dict[str, tuple[dict[str, Any], Bounds, int, int]] = {
    "offsets of a predicate": ({}, Bounds(None, 2_000, 2_999), 2_000, 3_000),
    "offsets of the scan": ({"start": 2_000, "end": 3_000}, Bounds(), 2_000, 3_000),
    "times of the scan": (
        {"from_time": STAMP + 2_000, "to_time": STAMP + 3_000},
        Bounds(),
        2_000,
        3_000,
    ),
    "a first time of a predicate": ({}, Bounds(first_time=STAMP + 9_000), 9_000, N),
    "both": ({"end": 3_000}, Bounds(first_time=STAMP + 2_000), 2_000, 3_000),
    "another partition": ({}, Bounds(frozenset({3})), 0, 0),
}


@pytest.mark.parametrize("name", RANGES)
def test_only_the_bytes_of_a_range_are_read(log: segstore.PartitionLog, files: Read, name: str) -> None:
    """But for what the search by time reads, a piece of the log where the time begins, and where it ends."""
    terms, bounds, first, end = RANGES[name]
    made = scan(log, **terms)
    files.bytes = 0
    found = offsets(made.batches(["offset", "value"], bounds))
    assert found == list(range(first, end))
    size = log.size * (end - first) // N
    assert files.bytes >= size
    searched = 1 << 20 if bounds.first_time >= 0 else 0
    assert files.bytes <= size + 2 * log.size // BATCHES + searched


def test_a_batch_with_gaps_alone_is_read(store_dir: Path, files: Read) -> None:
    with segstore.open(store_dir, files=files, config={"log.cleaner.threads": 0}) as store:
        store.create_topic("t", config=CONFIG | {"segment.bytes": 1 << 20})
        log = store.partition("t")
        for first in range(0, 30 * 20, 20):
            keys = [b"%d" % (0 if at % 200 == 7 else at) for at in range(first, first + 20)]
            log.append_batch([b"v" * 1000] * 20, keys=keys)
        roll(store)
        clean(store)
        list(store.scan("t").batches(["offset"]))
        files.clear()
        files.bytes = 0
        wanted = [r.offset for r in log]
        read = files.bytes
        files.bytes = 0
        assert offsets(store.scan("t").batches(["offset"])) == wanted
        assert len(wanted) == 30 * 20 - 3
        assert 0 < files.bytes < read // 3


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("columns", [["offset", "value"], ["offset", "timestamp"]])
def test_damage_is_told_at_its_place(
    tmp_path: Path, columns: list[str], small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with segstore.open(path) as store:
        store.create_topic("t")
        for _ in range(BATCHES):
            store.partition("t").append_batch([b"v" * 1000] * EACH)
        size = store.partition("t").size
    flip(next((path / "t-0").glob("*.log")), size // 2 + 500)
    if small:
        small_pieces(monkeypatch)
    with segstore.open(path, mode="r") as store:
        found: list[Any] = []
        with pytest.raises(CorruptRecordError, match="CRC"):
            found.extend(store.scan("t").batches(columns))
        assert offsets(found) == list(range(N // 2))
        assert len(offsets(store.scan("t").batches(["offset"]))) == N
        unchecked = store.scan("t", check_crcs=False)
        assert offsets(unchecked.batches(columns)) == list(range(N))


@pytest.mark.parametrize("codec", ["zstd", "gzip", "lz4", "snappy"])
@pytest.mark.parametrize("columns", [["offset", "value"], ["offset", "timestamp"]])
def test_records_before_damaged_compressed_bytes_are_given(
    tmp_path: Path, codec: str, columns: list[str]
) -> None:
    path = tmp_path / "store"
    with segstore.open(path) as store:
        store.create_topic("t")
        for _ in range(9):
            store.partition("t").append_batch([b"v" * 100] * EACH, compression=codec)
    file = next((path / "t-0").glob("*.log"))
    flip(file, batches_in(file)[5][0] + 61)
    with segstore.open(path, mode="r") as store:
        found: list[Any] = []
        with pytest.raises(CorruptRecordError, match=f"offset {5 * EACH}"):
            found.extend(store.scan("t", check_crcs=False).batches(columns))
    assert offsets(found) == list(range(5 * EACH))


# --- a log that changes ----------------------------------------------------------------------------


def in_the_midst(
    log: segstore.PartitionLog, change: Callable[[], object], columns: list[str], **terms: Any
) -> list[int]:
    """The offsets of a scan that has given its first batch when the log is changed."""
    batches = scan(log, **terms).batches(columns)
    first = next(batches)
    change()
    return offsets([first, *batches])


COLUMNS = [["offset"], ["offset", "value"]]


@pytest.mark.parametrize("columns", COLUMNS)
def test_appends_are_no_part_of_it(
    log: segstore.PartitionLog, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    assert in_the_midst(log, lambda: log.append(b"later"), columns) == list(range(N))


@pytest.mark.parametrize("columns", COLUMNS)
def test_retention_passes_it(
    log: segstore.PartitionLog, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    with pytest.raises(OffsetOutOfRangeError):
        in_the_midst(log, lambda: log.delete_records(N - 1), columns)


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_compaction_goes_on_beside_it(
    store_dir: Path, columns: list[str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is given is in order, once, and all that stays."""
    small_pieces(monkeypatch, 3000)
    with segstore.open(store_dir, config={"log.cleaner.threads": 0}) as writer:
        writer.create_topic("t", config=CONFIG | {"segment.bytes": 20_000, "index.interval.bytes": 100})
        log = writer.partition("t")
        for at in range(60):
            log.append_batch([b"%0100d" % at] * 10, keys=[b"%d" % (key % 40) for key in range(at, at + 10)])
        roll(writer)
        with segstore.open(store_dir, mode="r") as reader:
            seen = writer.partition("t") if mode == "rw" else reader.partition("t")
            found = in_the_midst(seen, lambda: clean(writer), columns)
        kept = [r.offset for r in log]
    assert len(kept) < 600
    assert sorted(set(found)) == found
    assert set(kept) <= set(found)


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_scan_that_is_left_early_ends_its_threads(
    log: segstore.PartitionLog, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    batches = scan(log).batches()
    next(batches)
    assert any(each.name.startswith("segstore-scan") for each in threading.enumerate())
    if how == "closed":
        batches.close()
    del batches
    until(lambda: not any(each.name.startswith("segstore-scan") for each in threading.enumerate()))


def test_a_batch_larger_than_a_piece(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 1000)
    store.create_topic("t")
    log = store.partition("t")
    for size in (10, 100_000, 10):
        log.append(b"v" * size)
    found = pa.Table.from_batches(store.scan("t").batches(["value"]))
    assert [len(value) for value in found["value"].to_pylist()] == [10, 100_000, 10]


# --- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [[], ["offset"], ["timestamp_type"]])
def test_no_memory_is_taken_for_a_count_that_a_compressed_batch_claims(
    tmp_path: Path, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with segstore.open(path) as store:
        store.create_topic("t")
        for _ in range(20):
            store.partition("t").append_batch([b"v" * 100] * EACH, compression="zstd")
    file = next((path / "t-0").glob("*.log"))
    data = bytearray(file.read_bytes())
    at = batches_in(file)[-1][0]
    for field, value in ((23, INT32_MAX - 1), (57, INT32_MAX)):  # last offset delta, count
        struct.pack_into(">i", data, at + field, value)
    struct.pack_into(">I", data, at + 17, crc32c(data[at + 21 :]))
    write_segment(tmp_path / "old" / "t-0", 0, bytes(data))  # a broker's, without segstore's own files
    made: list[int] = []

    def pooled(n: int, kind: Any) -> Any:
        made.append(n)
        return np.empty(n, kind)

    monkeypatch.setattr(columns_module, "pooled", pooled)
    with segstore.open(tmp_path / "old", mode="r") as store:
        assert store.partition("t").end_offset > INT32_MAX
        found: list[Any] = []
        with pytest.raises(CorruptRecordError, match="offset 950"):
            found.extend(store.scan("t", end=19 * EACH + 1).batches(columns))
        assert sum(batch.num_rows for batch in found) == 19 * EACH
    assert max(made, default=0) <= N


@pytest.mark.parametrize(("column", "factor"), [("offset", 1), ("partition", 2)])
def test_ranges_that_are_remembered_are_given_in_parts(
    column: str, factor: int, log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows of them are in memory as of headers that are read."""
    monkeypatch.setattr(piece_reader, "_MOST_ROWS", 20 * EACH)
    monkeypatch.setattr(piece_reader, "_MOST_COUNTED", 40 * EACH)
    for most in (20 * EACH, factor * 20 * EACH):
        found = list(scan(log).batches([column]))
        assert column != "offset" or offsets(found) == list(range(N))
        assert sum(batch.num_rows for batch in found) == N
        assert max(batch.num_rows for batch in found) == most
        assert len(log.view.segments[0].dense) == 1
