"""What an archive costs the writer beside it, how old it is, and how fast a restore is.

The archive lies in a directory, or below the URI in the variable ARCHIVE of the environment, such as
`s3://bucket/bench?endpoint_override=127.0.0.1:9000&scheme=http`. The archiver is a process of its own
(`segstore archive`) where appends are timed, as beside a server, and a thread of this process where its lag
is asked for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import Results, by_turns, keep_ratios

import segstore
from segstore.archiving.remote import RemoteFiles

SECONDS = 20.0
RATE = 50_000_000
"""Bytes a second that the writer appends."""
VALUE_BYTES, AT_A_TIME = 1000, 250
PARTITIONS = 4
SEGMENT_BYTES = 64 << 20
PAIRS, EACH = 7, 3.0
"""Seconds that appends are made, one by one."""
RESTORED = 1_000_000_000
THREADS = 8
_STEP = 4 << 20


def given(path: Path) -> str:
    """The URI of an archive that is not there yet."""
    place, mark, query = os.environ.get("ARCHIVE", "").partition("?")
    name = f"archive-{uuid.uuid4()}"
    return f"{place.rstrip('/')}/{name}{mark}{query}" if place else str(path / name)


def a_store(path: Path) -> segstore.Store:
    store = segstore.open(path)
    store.create_topic("t", PARTITIONS, {"segment.bytes": SEGMENT_BYTES})
    return store


# --- how old it is ---------------------------------------------------------------------------


def test_lag(benchmark: Any, results: Results, tmp_path: Path) -> None:
    values, ages = [os.urandom(VALUE_BYTES) for _ in range(AT_A_TIME)], list[int]()
    with a_store(tmp_path / "store") as store, segstore.archive(store, given(tmp_path)) as archive:
        archive.wait_archived()
        logs = [store.partition("t", number) for number in range(PARTITIONS)]

        def write() -> None:
            began, done = time.perf_counter(), 0
            while (now := time.perf_counter()) - began < SECONDS:
                logs[done % PARTITIONS].append_batch(values)
                done += 1
                ages.append(archive.total_lag().ms)
                time.sleep(max(began + done * AT_A_TIME * VALUE_BYTES / RATE - now, 0))
            benchmark.extra_info["rate"] = done * AT_A_TIME * VALUE_BYTES / SECONDS / 1e6

        benchmark.pedantic(write, rounds=1)
        assert archive.wait_archived(timeout_ms=60_000)
    rate, late = benchmark.extra_info["rate"], sum(age > 1000 for age in ages) / len(ages)
    note = f"{rate:.0f} MB/s of appends; median {median(ages)} ms, above 1000 ms {late:.1%} of the time"
    results.add(benchmark, "archive: greatest lag", max(ages), 1000, "ms", False, note)


# --- what it costs the writer ----------------------------------------------------------------


@contextmanager
def archiver(store: Path, uri: str) -> Iterator[None]:
    """Archive a store by a process of its own, which has begun."""
    command = [sys.executable, "-m", "segstore", "archive", uri, "--store", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline()
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


@pytest.mark.parametrize("most", [RATE, None])
def test_appends(benchmark: Any, results: Results, tmp_path: Path, most: int | None) -> None:
    value, numbers = os.urandom(VALUE_BYTES), iter(range(PAIRS * 2))

    def rate(beside: bool) -> float:
        path = tmp_path / f"store-{next(numbers)}"
        with a_store(path) as store:
            log = store.partition("t")
            with archiver(path, given(tmp_path)) if beside else _nothing():
                began, done = time.perf_counter(), 0
                while (took := time.perf_counter() - began) < EACH:
                    for _ in range(AT_A_TIME):
                        log.append(value)
                    done += AT_A_TIME
                    if most is not None:
                        time.sleep(max(began + done * VALUE_BYTES / most - time.perf_counter(), 0))
        shutil.rmtree(path)
        return done / took

    pairs: list[tuple[float, float]] = []
    benchmark.pedantic(lambda: pairs.append((rate(False), rate(True))), rounds=PAIRS)
    ratios = [beside / alone for alone, beside in pairs]
    keep_ratios(benchmark, ratios)
    alone = median(alone for alone, _ in pairs) * VALUE_BYTES / 1e6
    note = f"one by one, {alone:.0f} MB/s alone; the archiver is another process"
    kind = "at full speed" if most is None else f"at {most / 1e6:.0f} MB/s"
    results.add(benchmark, f"archive: appends beside it, {kind}", median(ratios), 0.9, "x", True, note)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


# --- restore ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archived(tmp_path_factory: Any) -> tuple[str, Path]:
    """The URI of an archive, and a directory with room beside it."""
    path = tmp_path_factory.mktemp("restore")
    uri = given(path)
    values = [os.urandom(VALUE_BYTES) for _ in range(1000)]
    with a_store(path / "store") as store, segstore.archive(store, uri) as archive:
        for number in range(RESTORED // VALUE_BYTES // 1000):
            store.partition("t", number % PARTITIONS).append_batch(values)
        assert archive.wait_archived()
    shutil.rmtree(path / "store")
    return uri, path


def test_restore(benchmark: Any, results: Results, archived: tuple[str, Path]) -> None:
    uri, path = archived
    remote = RemoteFiles(uri)
    sizes = remote.list("topics/") | remote.list("commits/")
    places = [path / "raw", path / "restored"]

    def clear() -> None:
        for each in places:
            shutil.rmtree(each, ignore_errors=True)
        os.sync()

    def fetch(number: int, name: str) -> None:
        buffer = bytearray(_STEP)
        with open(path / "raw" / str(number), "wb") as out:
            for at in range(0, sizes[name], _STEP):
                out.write(memoryview(buffer)[: remote.read_into(name, at, buffer)])
            out.flush()
            os.fdatasync(out.fileno())

    def raw() -> None:
        (path / "raw").mkdir()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(fetch, range(len(sizes)), sizes))

    ratio, theirs, mine = by_turns(
        benchmark, lambda: segstore.restore(uri, path / "restored"), raw, clear, rounds=7
    )
    size = sum(sizes.values()) / 1e6
    note = f"{size:.0f} MB: {size / mine:.0f} MB/s, a copy of the same objects {size / theirs:.0f} MB/s"
    results.add(benchmark, "archive: rate of a restore", ratio, 0.5, "x", True, note)
