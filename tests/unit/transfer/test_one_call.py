"""A transfer as one call of C: it sends what the long way sends, whatever becomes of the log in between, and
leaves to Python what it can't do. What is remembered of a log is never used for other bytes.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compaction import clean, keyed, open_compacted, roll
from descriptors import opened
from replica_logs import closed, replica_of
from replica_logs import opened as opened_replica
from stores import Clock
from struck import struck
from transfers import sink_of
from waiting import PATIENCE

import segstore
from segstore._native import seg_transfer
from segstore.records import scan
from segstore.storage.store import partition_log

BATCH = 4096
STEPS, CALLS = 60, 12


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What C has answered: a pair where it has sent all."""
    seen: list[Any] = []

    def call(*arguments: Any) -> Any:
        seen.append(seg_transfer(*arguments))
        return seen[-1]

    monkeypatch.setattr(partition_log, "seg_transfer", call)
    return seen


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    """Batches of exactly BATCH bytes, a record each."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append_batch([b"x" * (BATCH - 61 - 9)] * 100, batch_bytes=BATCH)
        assert log.size == 100 * BATCH
        yield log


def outcome(send: Callable[..., Any], out: int, *arguments: Any) -> tuple[Any, bytes]:
    """What a transfer to a file gives, or raises; and the bytes that came."""
    os.ftruncate(out, 0)
    os.lseek(out, 0, os.SEEK_SET)
    try:
        told: Any = send(out, *arguments)
    except segstore.SegstoreError as error:
        told = type(error), str(error), getattr(error, "errno", None)
    return told, os.pread(out, 1 << 24, 0)


def warm(log: segstore.PartitionLog, sink: int, *arguments: Any) -> None:
    """Have the log remember what the next transfer needs: the first one opens the file."""
    for _ in range(2):
        log.transfer(sink, *arguments)


# --- one call against the long way -------------------------------------------------------------


def compare(log: segstore.PartitionLog, out: int, rng: random.Random, n: int = CALLS) -> None:
    """Few offsets and sizes, so that many calls are made again."""
    start, end = log.start_offset, log.end_offset
    offsets = [start - 1, start, end - 1, end, end + 1, *(rng.randrange(start, end + 1) for _ in range(4))]
    sizes = [0, 1, rng.randrange(3000), rng.randrange(3000), 1 << 20]
    for _ in range(n):
        where = rng.choice(offsets), rng.choice(sizes), "sendfile"
        expected = outcome(log._transfer, out, *where)
        assert [outcome(log.transfer, out, *where) for _ in range(2)] == [expected] * 2, where


def by_record(log: segstore.PartitionLog, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 6)):
        log.append(rng.randbytes(rng.choice([0, 10, 500])), key=b"k%d" % rng.randrange(9))


def by_batch(log: segstore.PartitionLog, rng: random.Random) -> None:
    values = [rng.randbytes(rng.choice([0, 10, 100, 1000])) for _ in range(rng.randrange(1, 30))]
    keys = [b"k%d" % rng.randrange(9) for _ in values]
    log.append_batch(values, keys, batch_bytes=rng.choice([1, 300, 4000]))


def by_deleting(log: segstore.PartitionLog, rng: random.Random) -> None:
    log.delete_records(rng.randrange(log.start_offset, log.end_offset + 1))


def test_while_a_log_grows_and_loses_records(
    store_dir: Path, out: int, rng: random.Random, answers: list[Any]
) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 9000, "index.interval.bytes": 500})
        log = store.partition("t")
        log.append(b"first")
        for _ in range(STEPS):
            rng.choice([by_record, by_record, by_batch, by_deleting])(log, rng)
            compare(log, out, rng)
    assert sum(type(answer) is tuple for answer in answers) > STEPS


def test_while_a_log_is_compacted(store_dir: Path, out: int, rng: random.Random, answers: list[Any]) -> None:
    """Segments are replaced by others of the same name, offsets are missing, and batches are empty."""
    with open_compacted(store_dir, segment_bytes=3000, index_interval_bytes=200) as store:
        log = store.partition("t")
        keyed(store, 100, keys=40)
        for _ in range(STEPS // 3):
            rng.choice([by_record, by_batch])(log, rng)
            compare(log, out, rng)
            roll(store)
            clean(store)
            compare(log, out, rng)
    assert sum(type(answer) is tuple for answer in answers) > STEPS


def test_while_a_replica_is_cut_and_written_anew(
    tmp_path: Path, out: int, rng: random.Random, answers: list[Any]
) -> None:
    """The same file gets other batches at the same offsets, of other sizes."""
    log = opened_replica(tmp_path / "store", config={"segment.bytes": 5000, "index.interval.bytes": 200})
    by_batch(log, rng)
    replica = replica_of(log)
    for _ in range(STEPS // 2):
        log.partition_for_write().visible.set_high_watermark(log.log_end_offset)
        compare(log, out, rng)
        replica.truncate_to(rng.randrange(log.start_offset, log.log_end_offset + 1))
        compare(log, out, rng, 3)
        for _ in range(3):
            by_batch(log, rng)
        high_watermark = rng.randrange(log.high_watermark, log.log_end_offset + 1)
        log.partition_for_write().visible.set_high_watermark(high_watermark)
        compare(log, out, rng)
    assert sum(type(answer) is tuple for answer in answers) > STEPS
    closed(log)
    findings = segstore.check(tmp_path / "store")  # a plain store's appends begin no epoch behind a cut
    assert [found for found in findings if "no epoch is in it" not in found.message] == []


def test_while_a_high_watermark_goes_back(tmp_path: Path, out: int) -> None:
    """What was sent before is sent only as far as it is still to be seen."""
    log = opened_replica(tmp_path / "store", config={})
    log.append_batch([b"x"] * 20, batch_bytes=1)
    size = log.size // 20
    visible = log.partition_for_write().visible
    for most in (size, 5 * size, 10 * size, 1 << 20):
        for high_watermark in (20, 7, 12, 20, 3):
            visible.set_high_watermark(high_watermark)
            for offset in (0, 2):
                expected = outcome(log._transfer, out, offset, most, "sendfile")
                assert expected[0][1] <= high_watermark
                assert [outcome(log.transfer, out, offset, most) for _ in range(2)] == [expected] * 2
    closed(log)


def test_logs_do_not_mix(store_dir: Path, out: int, rng: random.Random) -> None:
    """What is remembered of one log has offsets that another one has too, elsewhere."""
    with segstore.open(store_dir) as store:
        logs = []
        for name in ("a", "b", "c"):
            store.create_topic(name)
            logs.append(store.partition(name))
            by_batch(logs[-1], rng)
        for _ in range(STEPS):
            compare(rng.choice(logs), out, rng)
        store.delete_topic("a")
        store.create_topic("a")
        logs[0] = store.partition("a")
        by_batch(logs[0], rng)
        for _ in range(STEPS):
            compare(rng.choice(logs), out, rng)


def test_threads_send_while_a_log_grows(store_dir: Path, tmp_path: Path, rng: random.Random) -> None:
    """Each gets whole batches side by side, and in the end all bytes of the log."""
    got: dict[int, bytes] = {}
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log, last = store.partition("t"), 600

        def follow(number: int) -> None:
            with open(tmp_path / str(number), "w+b", buffering=0) as sink:
                at = 0
                while at < last:
                    before, (sent, at) = at, log.transfer(sink, at, 700)
                    assert (sent > 0) == (at > before)
                sink.seek(0)
                got[number] = sink.read()

        threads = [threading.Thread(target=follow, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        while log.end_offset < last:
            log.append(rng.randbytes(rng.randrange(200)))
        for thread in threads:
            thread.join(PATIENCE)
        data = Path(log.view.segments[0].path).read_bytes()
    ends = scan(data)[0][last - 1]
    assert got == {number: data[: int(ends["position"] + ends["size"])] for number in range(4)}


# --- what it takes -----------------------------------------------------------------------------


def functions(run: Callable[[], object]) -> list[str]:
    """The functions of this package that are called, of Python and of C, with the callers of the latter."""
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)
        elif event == "c_call" and argument.__name__.startswith("seg_"):
            seen.append(argument.__name__)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return [name for name in seen if name != "<lambda>"]


def test_a_small_range_is_one_call(log: segstore.PartitionLog, out: int) -> None:
    warm(log, out, 0, BATCH)
    for offset in (0, 40, 40, 99):
        assert functions(lambda at=offset: log.transfer(out, at, BATCH)) == ["transfer", "seg_transfer"]


def test_what_c_appends_takes_the_call_once_away(log: segstore.PartitionLog, out: int) -> None:
    log.append(b"the tail is lent behind it")
    warm(log, out, 0, BATCH)
    for _ in range(3):
        log.append(b"x")
        end = log.end_offset
        assert log.transfer(out, end - 1, BATCH)[1] == end
        assert functions(lambda: log.transfer(out, 0, BATCH)) == ["transfer", "seg_transfer"]


TRACED = """
import os, sys, segstore
with segstore.open(sys.argv[1]) as store, open(os.devnull, "wb", 0) as sink:
    log = store.partition("t")
    for _ in range(2):
        for at in (5, 50, 99):
            log.transfer(sink.fileno(), at, 4096)
        os.getsid(0)
    for at in (5, 50, 99, 5):
        log.transfer(sink.fileno(), at, 4096)
    os.getsid(0)
"""


@pytest.mark.kind("strace")
@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
def test_a_range_that_was_sent_before_is_one_system_call(
    log: segstore.PartitionLog, store_dir: Path, tmp_path: Path
) -> None:
    log.store.close()  # type: ignore[attr-defined]
    trace = tmp_path / "trace"
    script = [sys.executable, "-c", TRACED, store_dir]
    subprocess.run(["strace", "-ff", "-o", trace, *script], check=True, timeout=PATIENCE)
    (text,) = (t for p in tmp_path.glob("trace.*") if "getsid(" in (t := p.read_text()))
    calls = [
        line.partition("(")[0] for line in text.rpartition("getsid(")[0].split("getsid(")[2].splitlines()
    ]
    own = [name for name in calls if name in ("pread64", "sendfile", "fstat", "rt_sigaction", "read")]
    assert own == ["sendfile"] * 4


# --- what is left to Python --------------------------------------------------------------------


class Text(str):
    """A str that is not exactly one."""


@pytest.mark.parametrize(
    "arguments",
    [
        (True, BATCH),
        (-1, BATCH),
        (101, BATCH),
        (1 << 70, BATCH),
        ("5", BATCH),
        (5, -1),
        (5, 1 << 70),
        (5, True),
        (5, BATCH, "read"),
        (5, BATCH, Text("sendfile")),
        (5, BATCH, "sendfiles"),
        (5, BATCH, None),
    ],
)
def test_arguments_that_are_unusual(
    log: segstore.PartitionLog, out: int, arguments: Any, answers: Any
) -> None:
    warm(log, out, 5, BATCH)
    answers.clear()
    usual = outcome(log.transfer, out, *arguments)
    assert answers == [None]
    assert usual == outcome(log._transfer, out, *arguments, *["sendfile"][len(arguments) - 2 :])


def test_how_often_c_takes_its_arguments() -> None:
    with pytest.raises(TypeError, match="6 arguments, not 1"):
        seg_transfer(None)  # type: ignore[call-arg]


@pytest.mark.parametrize("sink", [-1, 1 << 31, 1 << 80])
def test_no_descriptor(log: segstore.PartitionLog, out: int, sink: int) -> None:
    warm(log, out, 5, BATCH)
    with pytest.raises(segstore.SinkError) as told:
        log.transfer(sink, 5, BATCH)
    assert told.value.errno == errno.EBADF


def test_a_sink_with_fileno(log: segstore.PartitionLog, tmp_path: Path, answers: list[Any]) -> None:
    with open(tmp_path / "sink", "w+b", buffering=0) as sink:
        warm(log, sink.fileno(), 5, BATCH)
        assert log.transfer(sink, 5, BATCH) == (BATCH, 6)
        assert answers[-1] == (BATCH, 6)
    with pytest.raises(segstore.SinkError, match="closed"):
        log.transfer(sink, 5, BATCH)


def test_a_closed_descriptor(log: segstore.PartitionLog, out: int) -> None:
    warm(log, out, 5, BATCH)
    closed = os.dup(out)
    os.close(closed)
    with pytest.raises(segstore.SinkError) as told:
        log.transfer(closed, 5, BATCH)
    assert (told.value.errno, told.value.filename) == (errno.EBADF, None)


def test_a_file_that_appends(log: segstore.PartitionLog, out: int, tmp_path: Path) -> None:
    warm(log, out, 5, BATCH)
    with (
        open(tmp_path / "appended", "ab", buffering=0) as sink,
        pytest.raises(segstore.InvalidArgumentError, match="O_APPEND"),
    ):
        log.transfer(sink, 5, BATCH)


@pytest.mark.parametrize("kind", ["non-blocking pipe", "non-blocking unix", "non-blocking tcp"])
def test_a_sink_that_is_full_gets_every_byte(
    log: segstore.PartitionLog, out: int, tmp_path: Path, kind: str, answers: list[Any]
) -> None:
    warm(log, out, 0, BATCH)
    with sink_of(kind, tmp_path) as sink:
        sink.start(waits=True)
        threading.Timer(0.1, sink.go.set).start()
        for _ in range(20):
            assert log.transfer(sink.fd, 0, 1 << 20) == (100 * BATCH, 100)
        assert sink.close() == Path(log.view.segments[0].path).read_bytes() * 20
    assert [answer for answer in answers if type(answer) is list]  # C sent a part, or nothing


def test_a_sink_without_a_reader(log: segstore.PartitionLog, out: int, tmp_path: Path) -> None:
    warm(log, out, 5, BATCH)
    with sink_of("pipe", tmp_path) as sink:
        sink.close_other()
        with pytest.raises(segstore.SinkClosedError):
            log.transfer(sink.fd, 5, BATCH)


def test_where_sigpipe_would_end_the_process(
    log: segstore.PartitionLog, out: int, tmp_path: Path, answers: list[Any]
) -> None:
    warm(log, out, 5, BATCH)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with sink_of("pipe", tmp_path) as sink:
            sink.close_other()
            with pytest.raises(segstore.SinkClosedError):
                log.transfer(sink.fd, 5, BATCH)
            assert answers[-1] is None
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_signal_handler_runs_while_it_waits(
    log: segstore.PartitionLog, out: int, tmp_path: Path, answers: list[Any]
) -> None:
    """The lock of the interpreter is not held meanwhile: another thread sends the signals."""
    warm(log, out, 0, 1 << 20)
    done = threading.Event()

    def raises(*_: object) -> None:
        if not done.is_set():
            done.set()
            raise KeyboardInterrupt

    def press() -> None:
        while not done.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raises)
    pressing = threading.Thread(target=press)
    try:
        with sink_of("pipe", tmp_path) as sink:  # takes 64 KiB
            pressing.start()
            with pytest.raises(KeyboardInterrupt):
                log.transfer(sink.fd, 0, 1 << 20)
        pressing.join(PATIENCE)
    finally:
        done.set()
        signal.signal(signal.SIGUSR1, before)


def test_a_closed_store(store_dir: Path, out: int) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"x")
        warm(log, out, 0)
    assert outcome(log.transfer, out, 0, 10)[0][0] is segstore.StoreClosedError


@pytest.mark.kind("programs")
def test_the_child_of_a_fork(log: segstore.PartitionLog, out: int) -> None:
    warm(log, out, 5, BATCH)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        told = outcome(log.transfer, out, 5, BATCH)
        os.write(writing, repr((told[0][0].__name__, told[1])).encode())
        os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 1000) == repr(("ForkedError", b"")).encode()
    os.close(reading)


def test_a_deleted_topic(store_dir: Path, out: int) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"x")
        warm(log, out, 0)
        store.delete_topic("t")
        assert outcome(log.transfer, out, 0, 10)[0][0] is segstore.StoreClosedError


def test_a_reader_of_another_store_remembers_nothing(store_dir: Path, out: int, answers: list[Any]) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
        with segstore.open(store_dir, "r") as reader:
            log = reader.partition("t")
            warm(log, out, 0)
            assert log.view.sendable.segment.remembers == 0
            assert answers == [None, None]


# --- files ---------------------------------------------------------------------------------------


def test_no_file_stays_open_for_it(log: segstore.PartitionLog, out: int, answers: list[Any]) -> None:
    warm(log, out, 5, BATCH)
    known = log._visible.current.at_once  # type: ignore[union-attr]
    log.context.pool.forget(log.view.segments[0].path)
    gc.collect()
    if known.handle() is None:  # else C still appends to the file
        assert log.transfer(out, 5, BATCH) == (BATCH, 6)
        assert answers[-1] is None
    warm(log, out, 5, BATCH)
    assert answers[-1] == (BATCH, 6)


def test_a_log_that_was_cut_by_somebody_is_told(tmp_path: Path, out: int) -> None:
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config={"index.interval.bytes": 1 << 30})
        log = store.partition("t")
        log.append_batch([b"x" * (BATCH - 61 - 9)] * 100, batch_bytes=BATCH)
        warm(log, out, 50, BATCH)
        path = Path(log.view.segments[0].path)
        for size in (50 * BATCH + 100, 50 * BATCH, 1000):
            os.truncate(path, size)
            with pytest.raises(segstore.StorageError) as told:
                log.transfer(out, 50, BATCH)
            assert told.value.filename == str(path)


def test_segments_that_retention_deletes_are_closed(store_dir: Path, out: int) -> None:
    clock = Clock()
    config = {"segment.bytes": 3000, "file.delete.delay.ms": 0}
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t", config=config)
        log = store.partition("t")
        log.append_batch([b"x" * 100] * 100, batch_bytes=1)
        warm(log, out, 0, 1)
        first = log.view.segments[0].path
        log.delete_records(log.view.segments[1].base_offset)
        assert outcome(log.transfer, out, 0, 1)[0][0] is segstore.OffsetOutOfRangeError
        log.context.pool.forget(first)
        gc.collect()
        assert first not in opened(store_dir)


def test_an_interrupt_at_each_place_leaves_it_usable(log: segstore.PartitionLog, out: int) -> None:
    """Also at the places where what C looks at is made anew."""
    expected = outcome(log.transfer, out, 5, BATCH)
    place, raised = 0, 1
    while raised:
        place += 1
        for view in (log.view, log._visible.current):  # type: ignore[union-attr]
            view.sendable = view.at_once = None  # type: ignore[union-attr]
        raised = struck(lambda: log.transfer(out, 5, BATCH), place)
        assert outcome(log.transfer, out, 5, BATCH) == expected
    assert place > 5
