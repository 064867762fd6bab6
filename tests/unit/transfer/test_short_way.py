"""The short way of a transfer: it is taken where nothing is unusual, it is one native call, and it sends what
the long way sends.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compaction import clean, keyed, open_compacted
from damage import flip
from stores import logs
from transfers import sink_of

import segstore
from segstore._native import lib
from segstore.bench.zero_copy.counted_files import CountedFiles
from segstore.files import Files
from segstore.records import scan
from segstore.sending import SentFile

STEPS, RANGES = 25, 60
BATCH = 4096


class Switched(Files):
    """Files whose short way can be turned off; `taken` counts the calls of it that have sent something."""

    def __init__(self, short: bool = True) -> None:
        super().__init__()
        self.short, self.taken = short, 0

    def send_stretch(self, sink: int, source: SentFile, segment: Any, offset: int, max_bytes: int) -> int:
        if not self.short:
            return int(lib.SEG_SLOW)
        result = super().send_stretch(sink, source, segment, offset, max_bytes)
        self.taken += result != lib.SEG_SLOW
        return result


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def outcome(log: segstore.PartitionLog, out: int, *arguments: Any) -> tuple[Any, bytes]:
    """What a transfer to a file gives, or raises; and the bytes that came."""
    os.ftruncate(out, 0)
    os.lseek(out, 0, os.SEEK_SET)
    try:
        told: Any = log.transfer(out, *arguments)
    except segstore.SegstoreError as error:
        told = type(error), str(error), getattr(error, "next_offset", None), getattr(error, "errno", None)
    return told, os.pread(out, 1 << 24, 0)


def some_range(log: segstore.PartitionLog, rng: random.Random) -> tuple[int, int]:
    offset = rng.randrange(log.start_offset - 1, log.end_offset + 2)
    return offset, rng.choice([0, 1, 100, BATCH, rng.randrange(20_000), 1 << 20])


# --- short against long ------------------------------------------------------------------------


def alike(log: segstore.PartitionLog, files: Switched, out: int, rng: random.Random) -> None:
    """Both ways, in any order, do the same for a range."""
    where, first = some_range(log, rng), rng.random() < 0.5
    found = []
    for files.short in (first, not first):
        found.append(outcome(log, out, *where))
    files.short = True
    assert found[0] == found[1], where


def grow(log: segstore.PartitionLog, rng: random.Random) -> None:
    if rng.random() < 0.1:
        log.delete_records(rng.randrange(log.start_offset, log.end_offset + 1))
    values = [rng.randbytes(rng.choice([0, 10, 100, 1000])) for _ in range(rng.randrange(1, 30))]
    log.append_batch(values, batch_bytes=rng.choice([1, 300, 4000]), compression=rng.choice(["none", "lz4"]))


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_while_a_log_grows(store_dir: Path, out: int, rng: random.Random, mode: str) -> None:
    files = Switched()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"segment.bytes": 9000, "index.interval.bytes": 500})
        writer = store.partition("t")
        writer.append(b"first")
        with segstore.open(store_dir, "r", files=files) as reader:
            log = writer if mode == "rw" else reader.partition("t")
            for _ in range(STEPS):
                grow(writer, rng)
                for _ in range(8):
                    alike(log, files, out, rng)
    assert files.taken > STEPS


def test_of_a_compacted_log(store_dir: Path, out: int, rng: random.Random) -> None:
    """Offsets are missing, and batches are empty."""
    files = Switched()
    with open_compacted(store_dir, files=files) as store:
        keyed(store, 300, keys=40)
        clean(store)
        log = store.partition("t")
        for _ in range(RANGES):
            alike(log, files, out, rng)
        files.taken = 0
        for offset in range(log.start_offset, log.end_offset):
            log.transfer(out, offset, BATCH)
    assert files.taken


def of_a_header(store: Path, rng: random.Random) -> None:
    path = rng.choice(logs(store))
    flip(path, rng.randrange(min(61, path.stat().st_size)))


def somewhere(store: Path, rng: random.Random) -> None:
    path = rng.choice(logs(store))
    flip(path, rng.randrange(path.stat().st_size))


def cut(store: Path, rng: random.Random) -> None:
    path = rng.choice(logs(store))
    os.truncate(path, rng.randrange(path.stat().st_size))


def of_an_index(store: Path, rng: random.Random) -> None:
    path = rng.choice([p for p in store.glob("t-0/*.index") if p.stat().st_size])
    flip(path, rng.randrange(path.stat().st_size))


@pytest.mark.parametrize("damage", [of_a_header, somewhere, cut, of_an_index])
def test_of_a_damaged_log(tmp_path: Path, out: int, rng: random.Random, damage: Any) -> None:
    path, files = tmp_path / "store", (Switched(), Switched(short=False))
    with segstore.open(path) as store:
        store.create_topic("t", config={"segment.bytes": 9000, "index.interval.bytes": 500})
        log = store.partition("t")
        while len(logs(path)) < 4:
            log.append_batch([rng.randbytes(200) for _ in range(10)], batch_bytes=900)
    damage(path, rng)
    with segstore.open(path, "r", files=files[0]) as a, segstore.open(path, "r", files=files[1]) as b:
        short, long = a.partition("t"), b.partition("t")
        for _ in range(RANGES):
            where = some_range(long, rng)
            assert outcome(short, out, *where) == outcome(long, out, *where), where
    assert files[0].taken
    assert not files[1].taken


# --- what it takes -----------------------------------------------------------------------------


@pytest.fixture
def counted(store_dir: Path) -> Iterator[tuple[segstore.PartitionLog, CountedFiles]]:
    """Batches of exactly BATCH bytes; every other one has an index entry."""
    files = CountedFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append_batch([b"x" * (BATCH - 61 - 9)] * 100, batch_bytes=BATCH)
        assert log.size == 100 * BATCH
        yield log, files


@contextlib.contextmanager
def profiled() -> Iterator[list[str]]:
    """The functions of Python that are called, and those of the C helper."""
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)
        elif event == "c_call" and argument.__name__.startswith("seg_"):
            seen.append(argument.__name__)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def test_a_small_range_is_one_native_call(
    counted: tuple[segstore.PartitionLog, CountedFiles], out: int
) -> None:
    log, files = counted
    log.transfer(out, 40, BATCH)  # opens the file
    log.transfer(out, 40, BATCH)  # finds out where its index is
    files.clear()
    assert log.transfer(out, 40, BATCH) == (BATCH, 41)  # as before: nothing is read
    assert log.transfer(out, 41, BATCH) == (BATCH, 42)  # goes on where the last one ended
    assert files.calls == {"pread64": 1, "sendfile": 2}
    files.clear()
    assert log.transfer(out, 61, BATCH) == (BATCH, 62)  # the batch before has the index entry
    assert files.calls == {"pread64": 1, "sendfile": 1}  # one read gets the headers of both
    with profiled() as seen:
        log.transfer(out, 40, BATCH)
    by_python = ["transfer", "seg_transfer", "view", "send_at_once", "send_stretch", "seg_send_stretch"]
    assert [name for name in seen if name in by_python] == by_python


@pytest.mark.parametrize(
    ("size", "reads"),
    [
        (BATCH - 1, 1),
        (BATCH, 1),
        (BATCH + 2, 1),  # the last size whose next header lies whole within what is read
        (BATCH + 4, 2),
        (2 * BATCH, 2),
    ],
)
def test_the_header_behind_an_index_entry_comes_by_the_same_read(
    store_dir: Path, out: int, size: int, reads: int
) -> None:
    files = CountedFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"index.interval.bytes": size})
        log = store.partition("t")
        log.append_batch([b"x" * (size - 61 - 9)] * 40, batch_bytes=size)
        assert log.size == 40 * size
        log.transfer(out, 0, 1)
        log.transfer(out, 0, 1)
        taken = set()
        for offset in range(20, 30):
            files.clear()
            assert log.transfer(out, offset, 1) == (size, offset + 1)
            log.transfer(out, 0, 1)
            taken.add(files.calls["pread64"])
        assert taken == {1, reads}


def test_small_batches_are_walked_by_few_reads(store_dir: Path, out: int) -> None:
    files = CountedFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        for _ in range(500):
            log.append(b"x" * 33)
        assert log.size == 50_500
        log.transfer(out, 0, 1)
        for offset in range(0, 400, 7):
            files.clear()
            assert log.transfer(out, offset, 4040) == (4040, offset + 40)
            assert files.calls["pread64"] <= 5


# --- where it is not taken ---------------------------------------------------------------------


@pytest.fixture
def switched(store_dir: Path) -> Iterator[tuple[segstore.PartitionLog, Switched]]:
    files = Switched()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"segment.bytes": 9000})
        log = store.partition("t")
        for _ in range(6):
            log.append_batch([b"x" * 3000] * 1)
        yield log, files


def test_no_other_method_takes_it(switched: tuple[segstore.PartitionLog, Switched], out: int) -> None:
    log, files = switched
    for method in ("splice", "mmap", "read", "auto"):
        with contextlib.suppress(segstore.InvalidArgumentError):
            log.transfer(out, 0, 10, method)
    assert not files.taken


def test_a_range_of_two_segments(switched: tuple[segstore.PartitionLog, Switched], out: int) -> None:
    log, files = switched
    assert len(log.view.segments) == 3
    log.transfer(out, 0, 1 << 20)
    assert log.transfer(out, 0, 1 << 20) == (log.size, 6)
    assert not files.taken
    log.transfer(out, 4, 1 << 20)
    assert files.taken


@pytest.mark.parametrize("error", [InterruptedError(errno.EINTR, "x"), BlockingIOError(errno.EAGAIN, "x")])
def test_what_sends_nothing_for_now_is_sent_the_long_way(
    switched: tuple[segstore.PartitionLog, Switched], out: int, error: OSError, monkeypatch: Any
) -> None:
    log, files = switched
    expected = outcome(log, out, 0, 10)

    def refuses(*_: Any) -> int:
        raise error

    monkeypatch.setattr(files, "send_stretch", refuses)
    assert outcome(log, out, 0, 10) == expected


def test_a_part_that_was_sent_is_not_sent_again(
    switched: tuple[segstore.PartitionLog, Switched], out: int, monkeypatch: Any
) -> None:
    log, files = switched
    expected = outcome(log, out, 0, 5000)
    send, results = files.send_stretch, []

    def some(sink: int, *others: Any) -> int:
        results.append(send(sink, *others))
        os.ftruncate(sink, 1000)
        os.lseek(sink, 1000, os.SEEK_SET)
        return int(lib.SEG_PART) - 1000

    monkeypatch.setattr(files, "send_stretch", some)
    assert outcome(log, out, 0, 5000) == expected
    assert results == [expected[0][0] << 32 | 1]


@pytest.mark.parametrize("short", [True, False])
def test_a_sink_without_a_reader_ends_no_process(store_dir: Path, tmp_path: Path, short: bool) -> None:
    """Where SIGPIPE is not ignored, the long way keeps it off."""
    files = Switched(short)
    with segstore.open(store_dir, files=files) as store, sink_of("pipe", tmp_path) as sink:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"x")
        with open(tmp_path / "warm", "wb") as warm:
            log.transfer(warm, 0)
        taken = files.taken
        sink.close_other()
        before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            with pytest.raises(segstore.SinkClosedError):
                log.transfer(sink.fd, 0)
            assert files.taken == taken
        finally:
            signal.signal(signal.SIGPIPE, before)
        with pytest.raises(segstore.SinkClosedError) as told:
            log.transfer(sink.fd, 0)
    assert told.value.errno == errno.EPIPE


def test_a_closed_store_sends_nothing(store_dir: Path, out: int) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"x")
        log.transfer(out, 0)
        log.transfer(out, 0)
    assert outcome(log, out, 0, 10)[0][0] is segstore.StoreClosedError


@pytest.mark.kind("programs")
def test_the_child_of_a_fork_sends_nothing(
    switched: tuple[segstore.PartitionLog, Switched], out: int
) -> None:
    log, files = switched
    log.transfer(out, 4)
    log.transfer(out, 4)
    assert files.taken
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        told = outcome(log, out, 4, 10)
        os.write(writing, repr((told[0][0].__name__, told[1])).encode())
        os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 1000) == repr(("ForkedError", b"")).encode()
    os.close(reading)


def test_no_file_stays_open_for_it(switched: tuple[segstore.PartitionLog, Switched], out: int) -> None:
    log, files = switched
    log.transfer(out, 0, 10)
    log.transfer(out, 0, 10)
    taken, known = files.taken, log.view.sendable
    assert taken
    log.context.pool.forget(log.view.segments[0].path)
    gc.collect()
    assert known.handle() is None
    assert log.transfer(out, 0, 10)[1] == 1
    assert files.taken == taken  # the long way has opened it again
    log.transfer(out, 0, 10)
    assert files.taken == taken + 1


def test_threads_send_at_once(store_dir: Path, tmp_path: Path) -> None:
    """They share what is remembered of the last range."""
    files, got = Switched(), {}
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append_batch([b"%d" % i * 20 for i in range(300)], batch_bytes=1)

        def send(number: int) -> None:
            with open(tmp_path / str(number), "w+b", buffering=0) as sink:
                at = number
                while at < log.end_offset:
                    at = log.transfer(sink, at, 100 + 100 * number)[1]
                sink.seek(0)
                got[number] = sink.read()

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        data = Path(log.view.segments[0].path).read_bytes()
    begins = scan(data)[0]["position"].tolist()
    assert got == {number: data[begins[number] :] for number in range(4)}
    assert files.taken > 300
