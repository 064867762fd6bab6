"""What replicas cost against a plain store: appends with acks=all, by threads and inline, catching up, and
failover over partitions.

In the page cache, all directories on one disk; each round has fresh topics, and everything is read back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import VALUE_BYTES, Results, as_list, by_turns, keep_ratios, new_log, random_values, reads

import segstore

BULK, CALL, ONE, ROUNDS = 500_000, 10_000, 500, 5
IN_TOPIC, CATCH_UP_MB, TURNS = 200, 400, 5
names = count()


@contextmanager
def replicated(
    base: Path, directories: int, inline: bool = False, **config: Any
) -> Iterator[segstore.ReplicatedStore]:
    base.mkdir()
    paths = [base / f"d{number}" for number in range(directories)]
    settings = {"min.insync.replicas": min(2, directories), **config}
    with segstore.open_replicated(paths, config=settings, inline=inline) as store:
        yield store


def new_replicated_log(store: segstore.ReplicatedStore, factor: int) -> Any:
    name = f"t{next(names)}"
    store.create_topic(name, replication_factor=factor)
    return store.partition(name)


def length(log: segstore.PartitionLog) -> int:
    return sum(len(records) for records in reads(log))


WAYS = pytest.mark.parametrize("inline", [False, True], ids=["by threads", "inline"])


def named(what: str, replicas: int, inline: bool) -> str:
    return f"{what}, acks=all, {replicas} replicas{', inline' if inline else ''}"


@WAYS
@pytest.mark.parametrize(("replicas", "target"), [(2, 0.6), (3, 0.35)])
def test_bulk(
    benchmark: Any,
    results: Results,
    store: segstore.Store,
    tmp_path: Path,
    replicas: int,
    target: float,
    inline: bool,
) -> None:
    values = as_list(random_values(BULK))
    calls = [values[at : at + CALL] for at in range(0, BULK, CALL)]
    with replicated(tmp_path / "replicated", replicas, inline) as other:
        logs: list[Any] = []

        def prepare() -> None:
            warm_pages(tmp_path, replicas * BULK * VALUE_BYTES * 2 >> 20)
            logs[:] = [new_log(store, f"t{next(names)}"), new_replicated_log(other, replicas)]

        def append(log: Any) -> None:
            for call in calls:
                log.append_batch(call)

        ratio, plain, best = by_turns(
            benchmark, lambda: append(logs[1]), lambda: append(logs[0]), prepare, ROUNDS
        )
        assert length(logs[1]) == BULK
    note = f"of a plain store; {BULK / best / 1e6:.2f} to {BULK / plain / 1e6:.2f} M/s"
    results.add(benchmark, named("bulk append", replicas, inline), ratio, target, "x", True, note)


@WAYS
@pytest.mark.parametrize(("replicas", "target"), [(2, 3.0), (3, 4.0)])
def test_append_one(
    benchmark: Any,
    results: Results,
    store: segstore.Store,
    tmp_path: Path,
    replicas: int,
    target: float,
    inline: bool,
) -> None:
    """p50 of both, by turns."""
    took: dict[str, list[float]] = {"plain": [], "replicated": []}
    with replicated(tmp_path / "replicated", replicas, inline) as other:
        plain, log = new_log(store, "t"), new_replicated_log(other, replicas)

        def run() -> None:
            for name, each in (("plain", plain), ("replicated", log)):
                for _ in range(ONE):
                    began = time.perf_counter()
                    each.append(b"v" * 100)
                    took[name].append(time.perf_counter() - began)

        benchmark.pedantic(run, rounds=ROUNDS)
        assert length(log) == ROUNDS * ONE
    ours, theirs = median(took["replicated"]), median(took["plain"])
    keep_ratios(benchmark, [p / r for p, r in zip(took["plain"], took["replicated"], strict=True)][::50])
    note = f"p50 of a plain store's; {ours * 1e6:.0f} to {theirs * 1e6:.1f} us"
    results.add(benchmark, named("append of one", replicas, inline), ours / theirs, target, "x", False, note)


def test_catch_up(benchmark: Any, results: Results, tmp_path: Path) -> None:
    """An empty directory takes the place of a lost one; against a copy by pread and pwrite of 1 MiB. By
    turns, after one of each.
    """
    ours, theirs = [], []
    with replicated(tmp_path / "replicated", 3, **{"broker.heartbeat.interval.ms": 50}) as store:
        log, path = new_replicated_log(store, 3), tmp_path / "replicated" / "d2"
        for _ in range(CATCH_UP_MB):
            log.append_batch([b"x" * 1_000] * 1_000)
        for turn in range(1 + TURNS):
            lost = lose(store, log.topic, path)
            warm_pages(tmp_path, CATCH_UP_MB)
            theirs.append(copied(tmp_path / "replicated" / "d0" / f"{log.topic}-0", tmp_path / "copy"))
            shutil.rmtree(tmp_path / "copy")
            path = tmp_path / f"new{turn}"
            warm_pages(tmp_path, CATCH_UP_MB)
            began = time.perf_counter()
            store.replace_directory(2, path)
            while len(store.describe_partition(log.topic, 0).isr) < 3:
                time.sleep(0.001)
            ours.append(time.perf_counter() - began)
            shutil.rmtree(lost)  # not before: what the store has open is freed when it lets go of that
        size = sum(each.stat().st_size for each in (path / f"{log.topic}-0").glob("*.log"))
        assert length(log) == CATCH_UP_MB * 1_000
    benchmark.pedantic(lambda: None, rounds=1)
    ratios = [raw / own for raw, own in zip(theirs[1:], ours[1:], strict=True)]
    keep_ratios(benchmark, ratios)
    note = f"of a raw copy; {size / median(ours) / 1e6:.0f} to {size / median(theirs) / 1e6:.0f} MB/s"
    results.add(benchmark, "catch-up of a replica, CRCs checked", median(ratios), 0.6, "x", True, note)


def lose(store: segstore.ReplicatedStore, topic: str, path: Path) -> Path:
    """Let a directory be lost, and return where it is now."""
    lost = path.with_name("lost")
    path.rename(lost)
    while not store.describe_partition(topic, 0).offline:
        time.sleep(0.01)
    return lost


def warm_pages(base: Path, megabytes: int) -> None:
    """Let nothing be left to write to the disk, and the memory that the next writes are given be one that was
    in use just before: in a virtual machine a page that was not takes four times as long.
    """
    os.sync()
    with (base / "scratch").open("wb", buffering=0) as file:
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    (base / "scratch").unlink()


def copied(source: Path, target: Path) -> float:
    """Return the seconds that a copy of a log takes."""
    target.mkdir()
    began = time.perf_counter()
    for path in sorted(source.glob("*.log")):
        one, other = os.open(path, os.O_RDONLY), os.open(target / path.name, os.O_WRONLY | os.O_CREAT)
        at = 0
        while data := os.pread(one, 1 << 20, at):
            at += os.pwrite(other, data, at)
        os.close(one)
        os.close(other)
    return time.perf_counter() - began


LOST = [10, 100, 1_000, pytest.param(10_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("partitions", LOST)
def test_failover(benchmark: Any, results: Results, tmp_path: Path, partitions: int) -> None:
    """From the loss of a disk until all partitions that it led, each with a record, have another leader that
    takes appends; and an append to each behind that. The first append to a log that is empty makes its index
    files, which is no part of a failover.
    """
    took, appended = [], []
    for turn in range(3 if partitions < 10_000 else 1):
        base = tmp_path / str(turn)
        with replicated(base, 3, **{"broker.heartbeat.interval.ms": 10}) as store:
            logs = led_by_the_first(store, partitions)
            before = [log.leader_epoch for log in logs]
            os.rename(base / "d0", base / "lost")
            began = time.perf_counter()
            for log, epoch in zip(logs, before, strict=True):
                while log.leader_epoch <= epoch:
                    time.sleep(0.001)
            took.append(time.perf_counter() - began)
            for log in logs:
                log.append(b"later", acks=1)
            appended.append(time.perf_counter() - began - took[-1])
    benchmark.pedantic(lambda: None, rounds=1)
    keep_ratios(benchmark, [1 / seconds for seconds in took])
    note = f"s, until all have leaders that take appends; one to each takes {median(appended):.2f} s more"
    results.add(benchmark, f"failover of {partitions:,} partitions", median(took), 1.0, "s", False, note)


def led_by_the_first(store: segstore.ReplicatedStore, partitions: int) -> list[Any]:
    """Return logs which the first directory leads, each with a record in all replicas. A topic is given 30 s
    to have leaders, so there are several.
    """
    logs = []
    for begin in range(0, partitions, IN_TOPIC):
        name, size = f"t{next(names)}", min(IN_TOPIC, partitions - begin)
        store.create_topic(name, assignments={number: [0, 1, 2] for number in range(size)})
        made = [store.partition(name, number) for number in range(size)]
        for acks in (1, "all"):  # the second finds what the first has let the followers fetch
            for log in made:
                log.append(b"before", acks=acks)
        logs += made
    return logs
