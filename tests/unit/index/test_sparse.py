"""segstore.index: look-ups, growth, truncation, and entries that are not trusted."""

from __future__ import annotations

import errno
import mmap
import os
import random
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from descriptors import opened
from faults import CountingFiles, FailingFiles

from segstore._native import ffi
from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.index import (
    ActiveOffsetIndex,
    ActiveTimeIndex,
    OffsetIndex,
    SealedOffsetIndex,
    SealedTimeIndex,
    TimeIndex,
    replace_index,
)

STEP = 65536


# --- look-ups and validity ---------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 1001])
def test_lookup_agrees_with_a_plain_search(n: int) -> None:
    seed = int(os.environ.get("SEGSTORE_SEED", "17"))
    rng = random.Random(seed + n)
    keys = sorted(rng.sample(range(1, 5 * n + 1), n))
    offsets = SealedOffsetIndex.of(OffsetIndex.format((k, 7 * k) for k in keys))
    times = SealedTimeIndex.of(TimeIndex.format((k << 33, k) for k in keys))
    assert (offsets.entries, times.entries) == (n, n)
    for key in range(-1, 5 * n + 2):
        expected = max((k for k in keys if k <= key), default=None)
        assert offsets.lookup(key) == (None if expected is None else (expected, 7 * expected)), f"seed {seed}"
        assert times.lookup(key << 33) == (None if expected is None else (expected << 33, expected))
    assert offsets.lookup(2**62) == (offsets.entry(-1) if n else None)
    assert offsets.lookup(-(2**62)) is None


@pytest.mark.parametrize(
    ("entries", "expected", "damaged"),
    [
        pytest.param([], 0, False, id="nothing"),
        pytest.param([(1, 10), (5, 50), (99, 999)], 3, False, id="all"),
        pytest.param([(0, 10)], 1, False, id="relative offset 0"),
        pytest.param([(1, 10), (0, 0), (0, 0)], 1, False, id="zero tail"),
        pytest.param([(0, 0)] * 3, 0, False, id="zeros"),
        pytest.param([(1, 10), (1, 20)], 1, True, id="offset does not rise"),
        pytest.param([(1, 10), (2, 10)], 1, True, id="position does not rise"),
        pytest.param([(1, 10), (100, 20)], 1, True, id="offset at the end"),
        pytest.param([(1, 10), (2, 1000)], 1, True, id="position at the end"),
        pytest.param([(1, 0)], 0, True, id="position 0"),
        pytest.param([(-1, 10)], 0, True, id="negative offset"),
        pytest.param([(1, -10)], 0, True, id="negative position"),
    ],
)
def test_valid_offset_entries(tmp_path: Path, entries: Any, expected: int, damaged: bool) -> None:
    data = OffsetIndex.format(entries)
    assert OffsetIndex.valid_entries(data, 100, 1000) == expected
    (tmp_path / "i").write_bytes(data)
    for mapped in (True, False):
        index = SealedOffsetIndex(Files(), tmp_path / "i", log_size=1000, end_relative=100, mapped=mapped)
        assert (index.entries, index.damaged) == (expected, damaged)
        assert index.lookup(2**31) == (entries[expected - 1] if expected else None)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([(5, 1), (6, 1), (7, 99)], 3, id="all; offsets may stay"),
        pytest.param([(0, 1)], 1, id="timestamp 0"),
        pytest.param([(5, 0)], 1, id="relative offset 0"),
        pytest.param([(5, 1), (0, 0)], 1, id="zero tail"),
        pytest.param([(0, 0)] * 3, 0, id="zeros"),
        pytest.param([(5, 1), (5, 2)], 1, id="timestamp does not rise"),
        pytest.param([(5, 2), (6, 1)], 1, id="offset falls"),
        pytest.param([(5, 100)], 0, id="offset at the end"),
        pytest.param([(-1, 1)], 0, id="no timestamp"),
        pytest.param([(5, -1)], 0, id="negative offset"),
    ],
)
def test_valid_time_entries(entries: Any, expected: int) -> None:
    assert TimeIndex.valid_entries(TimeIndex.format(entries), 100, 0) == expected


@pytest.mark.parametrize("tail", [b"\1", b"\0\0\0\2\0\0\0"], ids=["one byte", "seven bytes"])
def test_a_file_cut_within_an_entry_is_damaged(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "i").write_bytes(OffsetIndex.format([(1, 10)]) + tail)
    index = SealedOffsetIndex(Files(), tmp_path / "i")
    assert (index.entries, index.damaged) == (1, True)


def test_a_missing_sealed_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SealedOffsetIndex(Files(), tmp_path / "none")


@pytest.mark.parametrize("slot", [2, -3, 100])
def test_entry_outside(slot: int) -> None:
    index = SealedOffsetIndex.of(OffsetIndex.format([(1, 10), (2, 20)]))
    assert (index.entry(0), index.entry(-1)) == ((1, 10), (2, 20))
    with pytest.raises(IndexError):
        index.entry(slot)


# --- the active index ----------------------------------------------------------------


def entry(i: int) -> bytes:
    return struct.pack(">ii", i * 10, i * 100)


def records() -> tuple[Any, Any]:
    end = ffi.new("seg_end *")
    return end, ffi.new("seg_active *", {"end": end})


def active(
    path: Path, entries: int = 0, files: Files | None = None, max_bytes: int = 1 << 20
) -> ActiveOffsetIndex:
    return ActiveOffsetIndex(files or Files(), path, max_bytes, *records(), entries)


def test_grows_by_allocated_steps_and_is_trimmed(tmp_path: Path) -> None:
    path, files = tmp_path / "i", CountingFiles()
    index = active(path, files=files)
    assert (path.stat().st_size, index.entries, index.lookup(5)) == (0, 0, None)
    index.append(b"".join(entry(i) for i in range(1, 8193)))
    assert path.stat().st_size == STEP
    index.append(entry(8193))
    assert path.stat().st_size == 2 * STEP
    assert path.stat().st_blocks * 512 >= 2 * STEP
    assert files.count("allocate") == 2
    assert files.count("pwrite", "sync") == 0
    assert (index.lookup(81929), index.lookup(10**9)) == ((81920, 819200), (81930, 819300))
    data = b"".join(entry(i) for i in range(1, 8194))
    assert path.read_bytes() == data.ljust(2 * STEP, b"\0")
    index.seal()
    assert path.read_bytes() == data
    assert index.lookup(81929) == (81920, 819200)


def test_keeps_no_descriptor(tmp_path: Path) -> None:
    held = [active(tmp_path / str(i)) for i in range(20)]
    for index in held:
        index.append(entry(1))
    assert opened(tmp_path) == []


@pytest.mark.parametrize("tail", [b"", b"\0" * 100, b"\xff" * 1000], ids=["trimmed", "zeros", "garbage"])
def test_reopens_for_further_appends(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "i"
    path.write_bytes(entry(1) + entry(2) + tail)
    index = active(path, entries=2)
    assert (path.stat().st_size, index.entries, index.lookup(99)) == (16, 2, (20, 200))
    index.append(entry(3))
    assert path.read_bytes() == (entry(1) + entry(2) + entry(3)).ljust(STEP, b"\0")
    index.seal()
    assert path.stat().st_size == 24


def test_reopens_a_preallocated_file_of_a_broker(tmp_path: Path) -> None:
    """Its tail is a hole, which must not be stored to."""
    path = tmp_path / "i"
    path.write_bytes(entry(1))
    os.truncate(path, 10 << 20)
    index = active(path, entries=1)
    index.append(entry(2))
    assert path.stat().st_size == STEP
    assert path.stat().st_blocks * 512 >= STEP


def test_refuses_more_entries_than_the_file_has(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(entry(1))
    with pytest.raises(InvalidArgumentError):
        active(tmp_path / "i", entries=2)


@pytest.mark.parametrize(("kind", "most"), [(ActiveOffsetIndex, 5), (ActiveTimeIndex, 2)])
def test_is_full_by_max_bytes(tmp_path: Path, kind: Any, most: int) -> None:
    """Of the time index an entry is kept for the seal."""
    index = kind(Files(), tmp_path / "i", 43, *records())
    assert index.max_entries == 43 // index.ENTRY.size
    assert not index.is_full(most)
    assert index.is_full(most + 1)
    index.append(index.format((i, i) for i in range(1, most + 1)))
    assert index.is_full()
    assert (tmp_path / "i").stat().st_size == index.max_entries * index.ENTRY.size
    index.reserve(index.max_entries - most)
    with pytest.raises(InvalidArgumentError):
        index.reserve(index.max_entries - most + 1)


@pytest.mark.parametrize("step", ["open", "allocate", "map"])
def test_reserve_that_fails_changes_nothing(tmp_path: Path, step: str) -> None:
    path, failing = tmp_path / "i", FailingFiles([step], OSError(errno.ENOSPC, "full"), nth=0)
    index = active(path, files=failing)
    index.append(b"".join(entry(i) for i in range(1, 8193)))
    before = path.read_bytes()
    failing.arm(times=2)  # a whole step, then a page
    with pytest.raises(OSError) as caught:
        index.reserve(1)
    assert (caught.value.errno, failing.hits) == (errno.ENOSPC, 2)
    assert path.read_bytes() == before
    assert (index.entries, index.lookup(10**9)) == (8192, (81920, 819200))
    index.append(entry(8193))  # there is room again
    assert index.lookup(10**9) == (81930, 819300)


def test_without_room_for_a_step_an_index_grows_by_a_page(tmp_path: Path) -> None:
    path, failing = tmp_path / "i", FailingFiles(["allocate"], OSError(errno.ENOSPC, "full"), nth=1)
    index = active(path, files=failing)
    index.append(entry(1))
    assert (failing.hits, path.stat().st_size, index.lookup(10)) == (1, mmap.PAGESIZE, (10, 100))


@pytest.mark.parametrize(
    ("kind", "entries", "relative_offset", "kept"),
    [
        pytest.param(ActiveOffsetIndex, [(10, 1), (20, 2), (30, 3)], 31, 3, id="nothing to drop"),
        pytest.param(ActiveOffsetIndex, [(10, 1), (20, 2), (30, 3)], 30, 2, id="an entry at the offset goes"),
        pytest.param(ActiveOffsetIndex, [(10, 1), (20, 2), (30, 3)], 11, 1, id="between"),
        pytest.param(ActiveOffsetIndex, [(10, 1), (20, 2), (30, 3)], 0, 0, id="all"),
        pytest.param(ActiveOffsetIndex, [], 0, 0, id="empty"),
        pytest.param(ActiveTimeIndex, [(100, 1), (200, 5), (300, 5)], 5, 1, id="time index by its offsets"),
        pytest.param(ActiveTimeIndex, [(100, 1), (200, 5), (300, 5)], 6, 3, id="time index, nothing to drop"),
    ],
)
def test_truncate_to(tmp_path: Path, kind: Any, entries: Any, relative_offset: int, kept: int) -> None:
    """Dropped entries are zeros on disk at once: nobody may believe them when the log has grown again."""
    path, files = tmp_path / "i", CountingFiles()
    index = kind(files, path, 1 << 20, *records())
    index.append(index.format(entries))
    files.clear()
    index.truncate_to(relative_offset)
    assert files.calls == []  # needs no room on a full disk
    assert index.entries == kept
    assert index.lookup(10**6) == (entries[kept - 1] if kept else None)
    assert path.read_bytes() == index.format(entries[:kept]).ljust(STEP if entries else 0, b"\0")
    index.append(index.format([(500, 50)]))
    index.seal()
    assert path.read_bytes() == index.format([*entries[:kept], (500, 50)])


def test_a_seal_cuts_no_page_off_under_an_older_view(tmp_path: Path) -> None:
    """A thread that was stopped within a look-up goes on in memory that the file no longer has: SIGBUS."""
    path = tmp_path / "i"
    index = active(path)
    index.append(b"".join(entry(i) for i in range(1, 5001)))
    older = index.view
    index.truncate_to(101)
    index.seal()
    assert path.read_bytes() == b"".join(entry(i) for i in range(1, 11))
    assert index._slot(older.pointer, older.n, 2**31) == 4999
    index.append(entry(11))
    index.seal()
    assert path.read_bytes() == b"".join(entry(i) for i in range(1, 12))


def test_lookups_run_beside_the_writer(tmp_path: Path) -> None:
    index, wrong, done = active(tmp_path / "i"), [], threading.Event()

    def look_up() -> None:
        rng = random.Random(3)
        while not done.is_set():
            n = index.entries
            if n:
                i = rng.randint(1, n)
                found = index.lookup(i * 10 + 5)
                if found != (i * 10, i * 100):
                    wrong.append((i, found))

    readers = [threading.Thread(target=look_up) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(1, 40_000):  # grows and is mapped anew several times meanwhile
        index.append(entry(i))
    index.seal()
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong


@pytest.mark.parametrize(
    "make", [lambda p: None, lambda p: p.write_bytes(b"garbage")], ids=["missing", "garbage"]
)
def test_replace_index(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path = tmp_path / "i"
    make(path)
    replace_index(Files(), path, entry(1))
    assert path.read_bytes() == entry(1)
    assert os.listdir(tmp_path) == ["i"]
