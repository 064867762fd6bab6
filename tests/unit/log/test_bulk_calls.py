"""Promise: columns of any number of records are written by few calls of the system, in the calling thread and
from memory that is used again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from faults import CountingFiles

import segstore
from segstore.records import encoded
from segstore.storage.log.append import AHEAD_PLAIN

WIDTH = 100
RECORDS = 60_000
ON_DISK = 111  # bytes of a record, its part of the header of its batch included, rounded up

WRITES = ("pwrite", "pwritev")


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture
def log(store_dir: Path, files: CountingFiles) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        yield store.partition("t")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that were started."""
    names: list[str] = []
    start = threading.Thread.start

    def counted(self: threading.Thread) -> None:
        names.append(self.name)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", counted)
    return names


def table(n: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """`n` values of WIDTH bytes, all different."""
    made = np.full((n, WIDTH), 7, np.uint8)
    made[:, :8] = np.arange(n, dtype=np.int64)[:, None].view(np.uint8)
    return made


def read_back(log: segstore.PartitionLog) -> bytes:
    found, at = [], 0
    while at < log.end_offset:
        records = log.read(at)
        found += [value or b"" for value in records.values]
        at = records.next_offset
    return b"".join(found)


@pytest.mark.parametrize("n", [1, 100, 2_000, 10_000, 30_000])
def test_a_call_is_one_write(
    log: segstore.PartitionLog, files: CountingFiles, started: list[str], n: int
) -> None:
    values = table(n)
    for _ in range(3):
        files.clear()
        log.append_batch(values, timestamps=5)
        assert files.count(*WRITES) == 1
    assert started == []
    assert read_back(log) == 3 * values.tobytes()


def test_a_long_append_is_a_write_for_each_chunk(
    log: segstore.PartitionLog, files: CountingFiles, started: list[str]
) -> None:
    values = table(RECORDS)
    assert values.nbytes > AHEAD_PLAIN
    files.clear()
    log.append_batch(values, timestamps=5)
    assert files.count(*WRITES) <= 1 + RECORDS * ON_DISK // encoded.CHUNK_BYTES
    assert started == []
    assert read_back(log) == values.tobytes()


@pytest.mark.parametrize("n", [2_000, 30_000, RECORDS])
def test_memory_is_used_again(log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """The first call takes buffers; those after it find them in the pool."""
    made: list[int] = []
    empty = np.empty

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(np, name)

        def empty(self, shape: int, kind: type) -> object:
            made.append(shape)
            return empty(shape, kind)

    values = table(n)
    log.append_batch(values, timestamps=5)
    monkeypatch.setattr(encoded, "np", Counting())
    log.append_batch(values, timestamps=5)
    assert made == []
    assert read_back(log) == 2 * values.tobytes()
