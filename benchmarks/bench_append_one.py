"""How fast records are appended one by one: against RocksDB and a bare os.write, by several threads, durably.

In the page cache where nothing else is said. Values are distinct, and all are read back; each round has a
fresh log and a fresh peer.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import SEED, Results, by_turns, new_log, reads
from rocksdict import DBCompressionType, Options, Rdict

import segstore

RECORDS, ROUNDS = 10_000, 7
THREADS, SHARED = 6, 120_000  # so many that threads have begun and met: the interpreter lets one run for 5 ms
SYNCED, SYNCING = 3_200, 8  # so many that the start of the threads is a small part
KEPT = random.Random(SEED).randbytes(4_000)  # zlib keeps the interpreter's lock for up to 5 KiB


def values_of(count: int, width: int) -> list[bytes]:
    """Random, so that no two are alike."""
    flat = np.random.default_rng(SEED).bytes(count * width)
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def stored(log: segstore.PartitionLog) -> list[bytes]:
    return [value for records in reads(log) for value in records.values]


# --- one thread --------------------------------------------------------------------------------


class Rocks:
    """Raw mode, rocksdict's defaults but no compression; keys are 8 bytes big-endian."""

    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(DBCompressionType.none())
        self._db = Rdict(str(path), options)

    def append(self, values: Sequence[bytes]) -> None:
        put = self._db.put
        for at, value in enumerate(values):
            put(at.to_bytes(8, "big"), value)

    def stored(self, _width: int) -> list[bytes]:
        return list(self._db.values())

    def close(self) -> None:
        self._db.close()


class File:
    """One os.write a value."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._fd = os.open(path / "file", os.O_RDWR | os.O_CREAT)

    def append(self, values: Sequence[bytes]) -> None:
        write, fd = os.write, self._fd
        for value in values:
            write(fd, value)

    def stored(self, width: int) -> list[bytes]:
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        return [data[at : at + width] for at in range(0, len(data), width)]

    def close(self) -> None:
        os.close(self._fd)


PEERS: dict[str, tuple[type[Rocks | File], float]] = {"RocksDB": (Rocks, 1.0), "os.write": (File, 0)}
"""Name -> the peer, and the target against it: 0 tells the figure alone."""


@pytest.mark.parametrize("width", [100, 1_000])
@pytest.mark.parametrize("name", PEERS)
def test_append_one(
    benchmark: Any, results: Results, store: segstore.Store, tmp_path: Path, name: str, width: int
) -> None:
    values, where, (kind, target) = values_of(RECORDS, width), tmp_path / "peer", PEERS[name]
    log: Any = None
    peer: Any = None

    def prepare() -> None:
        nonlocal log, peer
        log = new_log(store, "t")
        if peer is not None:
            peer.close()
            shutil.rmtree(where)
        peer = kind(where)

    def ours() -> None:
        append = log.append
        for value in values:
            append(value)

    ratio, other, best = by_turns(benchmark, ours, lambda: peer.append(values), prepare, ROUNDS)
    peer.append(values)  # `prepare` came last
    assert stored(log) == values == peer.stored(width)
    peer.close()
    note = f"of {name}; {best / RECORDS * 1e6:.1f} to {other / RECORDS * 1e6:.1f} us"
    results.add(benchmark, f"append by one, {width:,} bytes, {name}", ratio, target, "x", True, note)


# --- several threads ---------------------------------------------------------------------------


def by_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own, all at once. What one raises is raised."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            ready.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def appending(log: segstore.PartitionLog, values: Sequence[bytes]) -> Callable[[], None]:
    def run() -> None:
        append = log.append
        for value in values:
            append(value)

    return run


def shares(values: list[bytes], count: int) -> list[list[bytes]]:
    """Each lies together in memory, as all of them do for the one thread."""
    size = len(values) // count
    return [values[at : at + size] for at in range(0, len(values), size)]


def calling(count: int) -> Callable[[], None]:
    """Make so many calls of C that keep the interpreter's lock, each for as long as an append or so."""

    def run() -> None:
        call = zlib.crc32
        for _ in range(count):
            call(KEPT)

    return run


def test_calls_by_threads(benchmark: Any, results: Results) -> None:
    """What threads cost that do nothing but call C, with no file and no lock of theirs."""

    def together() -> None:
        by_threads([calling(SHARED // THREADS)] * THREADS)

    ratio, one, best = by_turns(benchmark, together, calling(SHARED), rounds=ROUNDS)
    note = f"of one thread, in sum; {best / SHARED * 1e6:.1f} to {one / SHARED * 1e6:.1f} us"
    results.add(benchmark, f"calls of zlib.crc32 by {THREADS} threads", ratio, 0, "x", True, note)


@pytest.mark.parametrize(("partitions", "target"), [(THREADS, 1.0), (1, 0.8)], ids=["own", "one"])
def test_append_by_threads(
    benchmark: Any, results: Results, store: segstore.Store, partitions: int, target: float
) -> None:
    """As many records as the one thread, which the same ones are compared with, appends to one partition. A
    record is in each partition before: the first append of a log is no short one.
    """
    values, before = values_of(SHARED, 100), b"before"
    logs: list[segstore.PartitionLog] = []
    alone: Any = None

    def prepare() -> None:
        nonlocal alone
        alone = new_log(store, "alone")
        if "t" in store.topics():
            store.delete_topic("t")
        store.create_topic("t", partitions=partitions)
        logs[:] = [store.partition("t", number % partitions) for number in range(THREADS)]
        for log in (alone, *logs[:partitions]):
            log.append(before)

    def together() -> None:
        by_threads([appending(log, share) for log, share in zip(logs, shares(values, THREADS), strict=True)])

    ratio, one, best = by_turns(benchmark, together, lambda: appending(alone, values)(), prepare, ROUNDS)
    together_stored = [value for log in logs[:partitions] for value in stored(log)]
    assert sorted(together_stored) == sorted([*values, *[before] * partitions])
    name = "partitions of their own" if partitions > 1 else "one partition"
    note = f"of one thread, in sum; {best / len(values) * 1e6:.1f} to {one / len(values) * 1e6:.1f} us"
    results.add(benchmark, f"append by {THREADS} threads, {name}", ratio, target, "x", True, note)


@pytest.mark.parametrize("way", ["flush.messages", "flush"])
def test_durable_by_threads(benchmark: Any, results: Results, store: segstore.Store, way: str) -> None:
    """Each record is synced before its thread's next: by the topic's setting, or by a call of flush(). Two
    records are there before: what the first ones sync besides the log, such as the directory, is synced once.
    """
    values, config = values_of(SYNCED, 100), {"flush.messages": 1} if way == "flush.messages" else {}
    before = [b"before"] * 2
    log: Any = None

    def prepare() -> None:
        nonlocal log
        log = new_log(store, "t", **config)
        durably(before)()

    def durably(share: Sequence[bytes]) -> Callable[[], None]:
        def run() -> None:
            for value in share:
                log.append(value)
                if not config:
                    log.flush()

        return run

    def together() -> None:
        by_threads([durably(share) for share in shares(values, SYNCING)])

    ratio, one, best = by_turns(benchmark, together, lambda: durably(values)(), prepare, ROUNDS)
    assert sorted(stored(log)) == sorted([*values, *before])
    note = f"of one thread; {best / SYNCED * 1e6:.0f} to {one / SYNCED * 1e6:.0f} us a record"
    results.add(benchmark, f"durable by {SYNCING} threads, {way}", ratio, 4, "x", True, note)
