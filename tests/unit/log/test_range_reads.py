"""Reads of many records: the short way and the long way give the same columns, over the same bytes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import batches, flip
from faults import CountingFiles, FailingFiles
from long_reads import long_reads
from mixed_logs import LOGS, headers, some
from stores import Clock

import segstore
from segstore import read_buffers
from segstore.errors import SegstoreError, StorageError
from segstore.storage.log import range_read

Log = segstore.PartitionLog


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small reads go the short way too; nothing is kept of other tests."""
    monkeypatch.setattr(read_buffers, "LEAST", 1)
    monkeypatch.setattr(read_buffers, "_bytes", read_buffers.Spare())
    monkeypatch.setattr(read_buffers, "_arrays", read_buffers.Spare())
    monkeypatch.setattr(range_read, "_unused", [])


@pytest.fixture(scope="module", params=LOGS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store"
    LOGS[request.param](path, random.Random(request.param))
    return path


def used(size: int) -> bytes:
    """Memory that an earlier read has left."""
    return bytes(bytearray(b"\xee") * size)


def read(log: Log, offset: int, size: int, **how: Any) -> object:
    """All that a read gives, or its error."""
    try:
        found = log.read(offset, size, **how)
    except SegstoreError as error:
        return type(error), str(error)
    return (
        *(found.arena, found._matrix.tolist(), found.next_offset, found.batches.tobytes()),
        *(found._with_headers, found.batches.dtype),
    )


def by_both_ways(log: Log, offset: int, size: int, **how: Any) -> tuple[object, object]:
    read_buffers.keep(size, used(size))
    short = read(log, offset, size, **how)
    with long_reads():
        return short, read(log, offset, size, **how)


class Told(CountingFiles):
    """Files that count how often the short way has found something."""

    found = 0

    def read_range(self, *arguments: Any) -> int:
        result: int = super().read_range(*arguments)
        self.found += result
        return result


SIZES = (61, 200, 700, 3_000, 20_000, 60_000)


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_both_ways_give_the_same(made: Path, store_dir: Path, mode: str, rng: random.Random) -> None:
    files = Told()
    with segstore.open(shutil.copytree(made, store_dir), mode, files=files) as store:
        log = store.partition("t")
        offsets = list(range(log.start_offset - 1, log.end_offset + 2))
        held = [record.offset for record in log.scan()]  # of a compacted log most offsets lie in gaps
        for offset in rng.choices(offsets, k=250) + rng.choices(held, k=250):
            how = {
                "isolation_level": rng.choice(["read_uncommitted", "read_committed"]),
                "check_crcs": rng.random() < 0.8,
            }
            for _ in range(2):
                size = rng.choice(SIZES) + rng.randrange(50)
                short, long = by_both_ways(log, offset, size, **how)
                assert short == long, (offset, size, how)
                if isinstance(short, tuple) and len(short) > 2:  # go on behind it, as a reader does
                    offset = short[2]
    assert files.found > 10


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_damage_gives_what_the_long_way_gives(
    made: Path, tmp_path: Path, mode: str, rng: random.Random
) -> None:
    for nth in range(8):
        path = Path(shutil.copytree(made, tmp_path / f"damaged-{nth}"))
        for _ in range(3):
            logs = [
                p for p in (path / "t-0").iterdir() if p.suffix in (".log", ".index") and p.stat().st_size
            ]
            file = rng.choice(logs)
            position, size, _ = rng.choice(batches(made / "t-0" / file.with_suffix(".log").name))
            at = (
                position + rng.randrange(8, size)
                if file.suffix == ".log"
                else rng.randrange(file.stat().st_size)
            )
            flip(file, at, rng.randrange(1, 256))
        with segstore.open(path, mode) as store:
            log = store.partition("t")
            for offset in rng.choices(range(log.start_offset, log.end_offset + 1), k=150):
                short, long = by_both_ways(log, offset, rng.choice(SIZES))
                assert short == long, (nth, offset)


@pytest.fixture
def log(store_dir: Path) -> Iterator[Log]:
    """Records of a hundred bytes and more, in batches of 4 KiB and of more."""
    with segstore.open(store_dir, files=Told(), clock=Clock(step=1)) as store:
        store.create_topic("t")
        log = store.partition("t")
        rng = random.Random(5)
        for n in (5_000, 14_000):
            log.append_batch(some(rng, n, 250), headers=headers(rng, n), batch_bytes=n)
        yield log


def files_of(log: Log) -> Any:
    return log.context.files


def test_one_call_for_each_read(log: Log) -> None:
    """No other call of files is made, and one pread for each 512 KiB: so much stays in a core's cache."""
    files, size, at = files_of(log), 700_000, 0
    for _ in range(2):
        at = log.read(0, size).next_offset
    files.clear()
    files.found = 0
    seen = log.read(at, size)
    assert seen.offsets[0] == at
    assert files.counts() == {"read_range": 1}
    assert files.found == 1
    (worked,) = range_read._unused
    before = worked.c.reads
    behind = seen.next_offset
    del seen
    files.clear()  # the calls that were counted have the memory, too
    assert log.read(behind, size // 2).offsets[0] == behind
    assert worked.c.reads == before + 1
    files.clear()
    assert log.read(at, size).offsets[0] == at
    assert worked.c.reads == before + 3


def test_the_end_of_a_log_is_one_call_too(log: Log) -> None:
    """Where the read before ended at its first byte: a reader's last read brings fewer bytes than it may."""
    files, size, starts = files_of(log), 700_000, [0]
    while starts[-1] < log.end_offset:
        last = log.read(starts[-1], size)
        starts.append(last.next_offset)
    wanted, arena = list(last), bytes(bytearray(last.arena))
    read_buffers.keep(size, used(size))
    assert log.read(starts[-3], size).next_offset == starts[-2]
    more = 2 * len(arena)
    read_buffers.keep(more, used(more))
    files.clear()
    files.found = 0
    found = log.read(starts[-2], more)
    assert files.counts() == {"read_range": 1}
    assert files.found == 1
    assert (list(found), found.arena, found.next_offset) == (wanted, arena, log.end_offset)


def test_records_become_smaller(store_dir: Path) -> None:
    """There is room for as many records as the last read had: where that is too little, they are all decoded
    anew.
    """
    with segstore.open(store_dir, files=Told()) as store:
        store.create_topic("t")
        log = store.partition("t")
        for size in (1000, 10, 1000, 10, 1):
            log.append_batch([b"%0*d" % (size, i) for i in range(40_000 // size)], batch_bytes=2000)
        for size in (5_000, 30_000):
            at = 0
            while at < log.end_offset:
                short, long = by_both_ways(log, at, size)
                assert short == long
                at = short[2]  # type: ignore[index]
        assert files_of(log).found > 20


def test_compressed_segments_are_left_alone(store_dir: Path) -> None:
    with segstore.open(store_dir, files=Told()) as store:
        store.create_topic("t")
        log = store.partition("t")
        for _ in range(20):
            log.append_batch([b"v%d" % i for i in range(500)], compression="zstd")
        for _ in range(5):
            short, long = by_both_ways(log, 700, 3000)
            assert short == long
        assert files_of(log).counts()["read_range"] == 1


def filled(store: segstore.Store) -> segstore.PartitionLog:
    store.create_topic("t")
    log = store.partition("t")
    log.append_batch([b"%0100d" % i for i in range(1000)], batch_bytes=3000)
    return log


def test_a_disk_that_refuses_to_read(store_dir: Path) -> None:
    files = FailingFiles({"read_range", "pread", "pread_into", "seek_batch"}, OSError(5, "I/O error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        log = filled(store)
        wanted = read(log, 30, 9000)
        read_buffers.keep(9000, used(9000))
        files.arm(1, 1)  # the short way alone fails: the long way reads
        assert read(log, 30, 9000) == wanted
        assert files.hits == 1
        read_buffers.keep(9000, used(9000))
        files.arm(1, 1000)
        with pytest.raises(StorageError, match="I/O error"):
            log.read(30, 9000)


@pytest.mark.parametrize("raised", [TimeoutError, KeyboardInterrupt])
def test_what_a_handler_raises_within_a_read_is_not_lost(
    store_dir: Path, raised: type[BaseException]
) -> None:
    files = FailingFiles({"read_range"}, raised(), nth=0)
    with segstore.open(store_dir, files=files) as store:
        log = filled(store)
        wanted = read(log, 30, 9000)
        read_buffers.keep(9000, used(9000))
        files.arm(1, 1)
        with pytest.raises(raised):
            log.read(30, 9000)
        assert by_both_ways(log, 30, 9000) == (wanted, wanted)


def test_a_handler_reads_within_a_read(store_dir: Path) -> None:
    """The call that is interrupted goes on with its own memory."""
    within: list[Callable[[], None]] = []

    class Interrupting(Told):
        def read_range(self, *arguments: Any) -> int:
            result = super().read_range(*arguments)
            if within:
                within.pop()()
            return result

    with segstore.open(store_dir, files=Interrupting()) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append_batch([b"%0100d" % i for i in range(1000)], batch_bytes=3000)
        outer, inner = read(log, 30, 9000), read(log, 500, 9000)
        read_buffers._bytes = read_buffers.Spare()
        for _ in range(2):
            read_buffers.keep(9000, used(9000))
        got: list[object] = []
        within.append(lambda: got.append(read(log, 500, 9000)))
        assert read(log, 30, 9000) == outer
        assert got == [inner]
        assert files_of(log).found == 2


def test_a_file_that_is_cut(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"%0100d" % i for i in range(1000)], batch_bytes=3000)
    (file,) = (store_dir / "t-0").glob("*.log")
    whole = file.read_bytes()
    with segstore.open(store_dir, "r", files=Told()) as store:
        log = store.partition("t")
        short, long = by_both_ways(log, 30, 9000)
        assert short == long
        assert files_of(log).found == 1
        for size in (len(whole) - 1, 12_000, 9_000, 4_000, 30, 0):
            os.truncate(file, size)
            short, long = by_both_ways(log, 30, 9000)
            assert short == long
        file.write_bytes(whole)


def test_records_outlive_the_next_reads(log: Log) -> None:
    """What a reader still has is not written again."""
    size = 50_000
    first = log.read(0, size)
    held = [log.read(at, size) for at in range(0, 3000, 250)]
    seen = [[tuple(r) for r in records] for records in held]
    for _ in range(3):
        for at in range(0, 9000, 333):
            log.read(at, size)
    assert [[tuple(r) for r in records] for records in held] == seen
    assert np.array_equal(first.offsets, held[0].offsets)
