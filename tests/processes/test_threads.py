"""Threads over one partition: order, group commit, and what is never done while an append holds its token."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import SYNCS, HookedFiles
from stores import Clock, records, values
from token_waiters import held_until_all_wait
from waiting import PATIENCE, until

import segstore
from segstore.mutex import Mutex
from segstore.storage.log.partition import Partition

THREADS = 6
ENCODE = sys.modules["segstore.records.encode"]  # by that name the package exports its function


class Watched(HookedFiles):
    """Calls `seen(name, args)` before each call; `sync_seconds` makes each sync as slow as a disk's."""

    def __init__(self, sync_seconds: float = 0.0) -> None:
        self.syncs, self._slow, self.seen = 0, sync_seconds, lambda name, args: None
        self._lock = threading.Lock()

    def before(self, name: str, args: tuple, kwargs: dict) -> None:
        self.seen(name, args)
        if name == "sync" and args[0].path.endswith(".log"):
            with self._lock:
                self.syncs += 1
            time.sleep(self._slow)


def at_once(n: int, run: Callable[[int], object]) -> list:
    """Results of `run(0)` to `run(n - 1)`, in threads that begin together; raises what any raised."""
    barrier = threading.Barrier(n)

    def go(i: int) -> object:
        barrier.wait()
        return run(i)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(go, range(n)))


@pytest.mark.parametrize("flush", [1, 1 << 40], ids=["flush.messages-1", "never-flushed"])
def test_appends_of_many_threads(store_dir: Path, flush: int) -> None:
    """Each append's records lie together, in their order; a thread's appends in the order it made them."""
    store = segstore.open(store_dir)
    store.create_topic("t", config={"segment.bytes": 20_000, "flush.messages": flush})
    log, stop, problems = store.partition("t"), threading.Event(), []

    def write(i: int) -> list[tuple[range, list[bytes]]]:
        rng, made = random.Random(i), []
        for j in range(20):
            some = [b"%d-%d-%d" % (i, j, k) for k in range(rng.choice([1, 1, 2, 30]))]
            codec = rng.choice(["none", "lz4"])
            made.append((log.append_batch(some, batch_bytes=rng.choice([1, 500]), compression=codec), some))
            assert log.read(made[-1][0].start)[0].value == some[0]
        return made

    def read() -> None:
        at = 0
        while not stop.is_set() or at < log.end_offset:
            found = log.read(at)
            if list(found.offsets) != list(range(at, at + len(found))):
                problems.append((at, found.offsets))
            at = found.next_offset

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        made = at_once(THREADS, write)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert problems == []
    everything = values(log)
    assert sorted(o for of_one in made for offsets, _ in of_one for o in offsets) == list(
        range(len(everything))
    )
    for of_one in made:
        starts = [offsets.start for offsets, _ in of_one]
        assert starts == sorted(starts)
        for offsets, some in of_one:
            assert everything[offsets.start : offsets.stop] == some
    store.close()


def test_group_commit(store_dir: Path) -> None:
    """All who append while one syncs are made durable by one sync more."""
    files, syncing, go_on = Watched(), threading.Event(), threading.Event()
    with segstore.open(store_dir, files=files) as store, ThreadPoolExecutor(8) as pool:
        store.create_topic("t", config={"flush.messages": 1})
        log = store.partition("t")

        def wait(name: str, args: tuple) -> None:
            if name == "sync" and args[0].path.endswith(".log"):
                syncing.set()
                assert go_on.wait(PATIENCE)

        files.syncs, files.seen = 0, wait
        appending = [pool.submit(log.append, b"0")]
        try:
            assert syncing.wait(PATIENCE)
            appending += [pool.submit(log.append, b"%d" % i) for i in range(1, 8)]
            until(lambda: log.end_offset == 8)
        finally:
            go_on.set()
        assert sorted(append.result() for append in appending) == list(range(8))
        assert files.syncs == 2


def test_who_is_durable_does_not_wait_for_the_next_sync(store_dir: Path) -> None:
    """Else threads append one by one: each that was synced would wait while those behind it are."""
    files, begun, go_on = (
        Watched(),
        [threading.Event() for _ in range(2)],
        [threading.Event() for _ in range(2)],
    )
    with segstore.open(store_dir, files=files) as store, ThreadPoolExecutor(4) as pool:
        store.create_topic("t", config={"flush.messages": 1})
        log = store.partition("t")

        def wait(name: str, args: tuple) -> None:
            if name == "sync" and args[0].path.endswith(".log") and files.syncs < 2:
                number = files.syncs
                begun[number].set()
                assert go_on[number].wait(PATIENCE)

        files.syncs, files.seen = 0, wait
        try:
            first = pool.submit(log.append, b"first")
            assert begun[0].wait(PATIENCE)
            others = [pool.submit(log.append, b"other") for _ in range(3)]
            until(lambda: log.end_offset == 4)
            go_on[0].set()
            assert begun[1].wait(PATIENCE)
            assert first.result(PATIENCE) == 0
            assert not any(other.done() for other in others)
        finally:
            for gate in go_on:
                gate.set()
        assert sorted(other.result(PATIENCE) for other in others) == [1, 2, 3]
        assert files.syncs == 2


def test_what_is_acknowledged_is_synced(store_dir: Path) -> None:
    """With flush.messages=1 an append returns only when the recovery point is past it."""
    with segstore.open(store_dir, files=Watched(sync_seconds=0.001)) as store:
        store.create_topic("t", config={"flush.messages": 1, "segment.bytes": 1000})
        log = store.partition("t")

        def write(i: int) -> None:
            for _ in range(20):
                offset = log.append(bytes(50))
                assert log.source.recovery_point > offset

        at_once(4, write)


@pytest.fixture
def token_holders(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Threads that hold an append token now."""
    holders: set[int] = set()

    class Token:
        def __init__(self, token: Mutex) -> None:
            self._lock, self._taken = threading.RLock(), token.on_taken
            self._depth = 0

        def __enter__(self) -> None:
            self._lock.acquire()
            self._depth += 1
            holders.add(threading.get_ident())
            assert self._taken is not None
            self._taken()

        def __exit__(self, *_: object) -> None:
            self._depth -= 1
            if not self._depth:
                holders.discard(threading.get_ident())
            self._lock.release()

    original: Any = Partition.__init__

    def init(self: Partition, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        self.token = Token(self.token)

    monkeypatch.setattr(Partition, "__init__", init)
    return holders


def test_no_sync_and_no_compression_under_the_token(
    store_dir: Path, token_holders: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    files = Watched()
    files.seen = lambda name, args: seen.append((name, threading.get_ident() in token_holders))
    original = ENCODE.compress

    def compress(*args: object) -> object:
        seen.append(("compress", threading.get_ident() in token_holders))
        return original(*args)

    monkeypatch.setattr(ENCODE, "compress", compress)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"flush.messages": 1, "segment.bytes": 3000})
        log = store.partition("t")
        seen.clear()

        def write(i: int) -> None:
            for _ in range(10):
                log.append_batch([bytes(100)] * 5, compression="zstd" if i % 2 else "none", batch_bytes=200)

        at_once(4, write)
        log.delete_records(20)
        log.flush()
    names = {name for name, _ in seen}
    assert {"compress", "sync", "sync_dir", "pwrite"} <= names
    assert ("pwrite", True) in seen
    assert not [name for name, held in seen if held and (name in SYNCS or name == "compress")]


def test_a_slow_compression_does_not_hold_up_others(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compressing, go_on = threading.Event(), threading.Event()
    original = ENCODE.compress

    def compress(*args: object) -> object:
        compressing.set()
        assert go_on.wait(PATIENCE)
        return original(*args)

    monkeypatch.setattr(ENCODE, "compress", compress)
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t")
        log = store.partition("t")
        slow = threading.Thread(
            target=log.append_batch, args=([b"slow"] * 10,), kwargs={"compression": "zstd"}
        )
        slow.start()
        assert compressing.wait(PATIENCE)
        try:
            assert log.append(b"quick") == 0
            assert values(log) == [b"quick"]
        finally:
            go_on.set()
            slow.join()
        assert [r.value for r in records(log)] == [b"quick"] + [b"slow"] * 10


def test_an_interrupt_reaches_its_thread_and_no_append_is_lost_silently(store_dir: Path) -> None:
    files = Watched()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"before")
        armed = threading.Event()

        def interrupt(name: str, args: tuple) -> None:
            if name in ("pwrite", "pwritev") and args[0].path.endswith(".log") and armed.is_set():
                armed.clear()
                raise KeyboardInterrupt

        files.seen = interrupt
        told: list[tuple[bytes, object]] = []

        def append(value: bytes) -> None:
            try:
                told.append((value, log.append(value)))
            except BaseException as error:
                told.append((value, error))

        source = log.source
        assert isinstance(source, Partition)
        armed.set()
        held_until_all_wait(source.token, [partial(append, b"%d" % i) for i in range(5)])
        given = {offset: value for value, offset in told if isinstance(offset, int)}
        assert any(isinstance(error, KeyboardInterrupt) for _, error in told)
        assert {r.offset: r.value for r in records(log)} == {0: b"before", **given}
        assert log.append(b"after") == log.end_offset - 1
