"""`read_one` and `read_many`: the short way and the long way give the same records and the same errors."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from compaction import Writer, clean, open_compacted, roll
from damage import batches, flip
from faults import CountingFiles, FailingFiles
from long_reads import long_reads
from mixed_logs import LOGS
from stores import Clock, in_child, records, value_of, write_topic

import segstore
from segstore.errors import (
    CorruptRecordError,
    ForkedError,
    InvalidArgumentError,
    InvalidTypeError,
    OffsetOutOfRangeError,
    SegstoreError,
    StorageError,
    StoreClosedError,
)
from segstore.storage.log import point_read

Log = segstore.PartitionLog


def outcome(call: Callable[[int], object], offset: int) -> object:
    try:
        return call(offset)
    except SegstoreError as error:
        return type(error), str(error)


def batch_at(log: Log) -> Callable[[int], object]:
    def read(offset: int) -> object:
        found = log.read(offset, 1)
        return list(found), found.next_offset, found.batches.tolist()

    return read


def by_both_ways(
    log: Log, offsets: list[int], call: Callable[[int], object] | None = None
) -> list[tuple[object, object]]:
    """What the short way and the long way give for each offset, in any order of offsets."""
    short = [outcome(call or log.read_one, offset) for offset in offsets]
    with long_reads():
        long = [outcome(call or log.read_one, offset) for offset in offsets]
    return list(zip(short, long, strict=True))


# --- logs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=LOGS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store"
    LOGS[request.param](path, random.Random(request.param))
    return path


@pytest.fixture
def path(made: Path, store_dir: Path) -> Path:
    return Path(shutil.copytree(made, store_dir))


def everywhere(log: Log, rng: random.Random) -> list[int]:
    """All offsets and some beyond, some of them twice, in an order that goes on, back and anywhere."""
    offsets = list(range(log.start_offset - 2, log.end_offset + 3))
    return offsets + offsets[::-1] + rng.choices(offsets, k=len(offsets))


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_both_ways_give_the_same_record_or_error(path: Path, mode: str, rng: random.Random) -> None:
    with segstore.open(path, mode) as store:
        log = store.partition("t")
        there = {record.offset: record for record in records(log)}
        assert len(there) > 50
        offsets = everywhere(log, rng)
        for offset, (short, long) in zip(offsets, by_both_ways(log, offsets), strict=True):
            assert short == long, offset
            assert offset not in there or short == there[offset]
        some = rng.sample(offsets, 300)
        for offset, (short, long) in zip(some, by_both_ways(log, some, batch_at(log)), strict=True):
            assert short == long, offset


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_many_are_as_one_each(path: Path, mode: str, rng: random.Random) -> None:
    with segstore.open(path, mode) as store:
        log = store.partition("t")
        (*_, last) = records(log)
        offsets = rng.choices(range(log.start_offset, last.offset + 1), k=500)
        wanted = [log.read_one(offset) for offset in offsets]
        for asked in (offsets, np.array(offsets), np.array(offsets, np.uint16), iter(offsets)):
            found = log.read_many(asked)
            assert list(found) == wanted
            assert found.offsets.tolist() == [record.offset for record in wanted]
            assert found.next_offset == max(record.offset for record in wanted) + 1
        # What belongs to batches is that of the record's own batch.
        batches = [log.read(record.offset, 1)[:1] for record in wanted[:20]]
        for column in ("leader_epochs", "timestamp_types"):
            alone = [getattr(batch, column)[0] for batch in batches]
            assert getattr(found, column)[:20].tolist() == alone
        with long_reads():
            assert list(log.read_many(offsets)) == wanted


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_committed_records_alone(path: Path, mode: str) -> None:
    with segstore.open(path, mode) as store:
        log, committed = store.partition("t"), {"isolation_level": "read_committed"}
        there, at = [], log.start_offset
        while at < log.last_stable_offset:
            found = log.read(at, **committed)
            there += list(found)
            at = found.next_offset
        for offset in range(log.start_offset, log.end_offset):
            wanted = next((record for record in there if record.offset >= offset), None)
            if wanted is not None:
                assert log.read_one(offset, **committed) == wanted
            else:
                with pytest.raises(OffsetOutOfRangeError):
                    log.read_one(offset, **committed)
        offsets = [record.offset for record in there[::-1]]
        assert list(log.read_many(offsets, **committed)) == there[::-1]


def damage(whole: Path, partition: Path, rng: random.Random) -> int:
    """Changes a byte of a log or an index, but none of a base offset, which no checksum covers. Returns the
    base offset of a batch, the changed one's where it is one.
    """
    file = rng.choice([p for p in whole.iterdir() if p.suffix in (".log", ".index") and p.stat().st_size])
    position, size, base = rng.choice(batches(file.with_suffix(".log")))
    at = position + rng.randrange(8, size) if file.suffix == ".log" else rng.randrange(file.stat().st_size)
    flip(partition / file.name, at, rng.randrange(1, 256))
    return base


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_damage_gives_what_was_written_or_the_error_of_the_long_way(
    made: Path, tmp_path: Path, mode: str, rng: random.Random
) -> None:
    with segstore.open(made, "r") as store:
        log = store.partition("t")
        written = {
            offset: outcome(log.read_one, offset) for offset in range(log.start_offset, log.end_offset)
        }
    told = 0
    for nth in range(12):
        path = Path(shutil.copytree(made, tmp_path / f"damaged-{nth}"))
        bases = [damage(made / "t-0", path / "t-0", rng) for _ in range(3)]
        with segstore.open(path, mode) as store:
            log = store.partition("t")
            offsets = [
                *rng.sample(sorted(written), min(len(written), 100)),
                *(o for o in bases if o in written),
            ]
            for offset, (short, long) in zip(offsets, by_both_ways(log, offsets), strict=True):
                assert short in (written[offset], long), offset
                told += short != written[offset]
    assert told


# --- arguments and errors ---------------------------------------------------------------------


def test_at_and_behind_the_end(store_dir: Path) -> None:
    with write_topic(store_dir, [[b"a", b"b"]], close=False) as store:
        log = store.partition("t")
        for offset in (-1, 2, 3, 1 << 62):
            with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} of t-0 .* the log ends at 2"):
                log.read_one(offset)
            with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} of t-0"):
                log.read_many([0, offset, 5, -7])
        log.delete_records(2)
        with pytest.raises(OffsetOutOfRangeError, match="begins and ends at 2"):
            log.read_one(1)


def test_only_a_marker_follows(store_dir: Path) -> None:
    clock = Clock(step=1)
    with segstore.open(store_dir, clock=clock) as store:
        store.create_topic("t")
        log = store.partition("t")
        Writer(log, 7, clock).transaction(True, (b"k", b"v"))
        assert log.end_offset == 2
        for call in (log.read_one, lambda offset: log.read_many([0, offset])):
            with pytest.raises(OffsetOutOfRangeError, match="offset 1 "):
                call(1)


WRONG = {
    "text": ("0", InvalidTypeError),
    "a float": (0.0, InvalidTypeError),
    "bool": (True, InvalidTypeError),
    "none": (None, InvalidTypeError),
    "above int64": (1 << 63, InvalidArgumentError),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_offsets(store_dir: Path, name: str) -> None:
    offset, error = WRONG[name]
    with write_topic(store_dir, [[b"a", b"b"]], close=False) as store:
        log = store.partition("t")
        with pytest.raises(error, match="offset"):
            log.read_one(offset)  # type: ignore[arg-type]
        with pytest.raises(error, match="offset"):
            log.read_many([0, offset])


@pytest.mark.parametrize(
    "asked",
    [
        np.zeros(2),
        np.zeros((2, 2), int),
        np.array([True]),
        np.array(["0"]),
        "0",
        b"0",
        7,
        np.array([1 << 63], np.uint64),
    ],
    ids=repr,
)
def test_wrong_columns_of_offsets(store_dir: Path, asked: object) -> None:
    with write_topic(store_dir, [[b"a", b"b"]], close=False) as store:
        with pytest.raises((InvalidTypeError, InvalidArgumentError), match="offset"):
            store.partition("t").read_many(asked)
        with pytest.raises(InvalidArgumentError, match="isolation_level='none'"):
            store.partition("t").read_one(0, isolation_level="none")


def test_no_offsets_give_no_records(store_dir: Path) -> None:
    with write_topic(store_dir, [[b"a"]], close=False) as store:
        for asked in ([], np.empty(0, np.int64)):
            assert len(store.partition("t").read_many(asked)) == 0


@pytest.mark.kind("kills")
def test_what_is_closed_deleted_or_forked(store_dir: Path) -> None:
    with write_topic(store_dir, [[b"a", b"b"]], close=False) as store:
        log = store.partition("t")
        assert log.read_one(1).value == b"b"

        def child(tell: Callable[[str], None]) -> None:
            for call in (log.read_one, lambda offset: log.read_many([offset])):
                with pytest.raises(ForkedError):
                    call(1)
            with segstore.open(store_dir, "r") as mine:
                tell(mine.partition("t").read_one(1).value.decode())

        assert in_child(child) == (0, ["b"])
        with segstore.open(store_dir, "r") as reading:
            follower = reading.partition("t")
            assert follower.read_one(1).value == b"b"
            store.delete_topic("t")
            for each in (log, follower):
                with pytest.raises(StoreClosedError):
                    each.read_one(1)
            store.create_topic("t")
            store.partition("t").append_batch([b"x", b"y", b"z"])
            assert store.partition("t").read_one(1).value == b"y"
            for each in (log, follower):
                with pytest.raises(StoreClosedError):
                    each.read_one(1)
                with pytest.raises(StoreClosedError):
                    each.read_many([1])
    for call in (log.read_one, lambda offset: log.read_many([offset])):
        with pytest.raises(StoreClosedError):
            call(1)


def test_records_of_all_sizes(store_dir: Path, rng: random.Random) -> None:
    """Batches around the room of the short way, and more bytes than one call of C gives."""
    sizes = [0, 1, point_read.ROOM - 100, point_read.ROOM, 900_000, 60_000, *[50_000] * 60]
    values = [rng.randbytes(size) for size in sizes]
    with write_topic(store_dir, [[value] for value in values], close=False) as store:
        log = store.partition("t")
        assert [log.read_one(offset).value for offset in range(len(values))] == values
        order = rng.sample(range(len(values)), len(values))
        assert log.read_many(order).values == [values[offset] for offset in order]


def test_more_offsets_than_one_call_finds(store_dir: Path, rng: random.Random) -> None:
    values = [b"%d" % i for i in range(20_000)]
    with write_topic(store_dir, [values], close=False) as store:
        asked = np.array(rng.choices(range(20_000), k=30_000))
        assert store.partition("t").read_many(asked).values == [values[offset] for offset in asked.tolist()]


# --- counted ----------------------------------------------------------------------------------


def reads_of_this_thread() -> int:
    with open("/proc/thread-self/io", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("syscr")).split()[1])


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("batch_bytes", [1, 4096, 65536])
def test_one_call_and_one_pread_each(
    store_dir: Path, mode: str, batch_bytes: int, rng: random.Random
) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"%09d" % i for i in range(20_000)], batch_bytes=batch_bytes)
    files = CountingFiles()
    with segstore.open(store_dir, mode, files=files) as store:
        log = store.partition("t")
        for offset in rng.choices(range(15_000), k=20):  # opens files, and learns how large batches are
            log.read_one(offset)
        for offsets in (rng.choices(range(15_000), k=200), range(100, 300)):
            between = reads_of_this_thread()
            between = reads_of_this_thread() - between
            files.clear()
            before = reads_of_this_thread()
            for offset in offsets:
                assert log.read_one(offset).value == b"%09d" % offset
            reads = reads_of_this_thread() - before - between
            told = files.counts()
            assert told.pop("read_one") == 200
            assert told.total() <= 60  # a reader looks at the marker of a clean close ten times a second
            assert 200 <= reads <= 200 + told.total()


def test_many_in_one_call(store_dir: Path) -> None:
    with segstore.open(store_dir, files=CountingFiles()) as store:
        files = store.context.files
        store.create_topic("t")
        log = store.partition("t")
        log.append_batch([b"v%d" % i for i in range(3000)], batch_bytes=4096)
        log.read_one(0)
        files.clear()
        assert log.read_many(range(2999, -1, -1)).values == [b"v%d" % i for i in range(2999, -1, -1)]
        assert files.counts() == {"read_many": 1}


# --- faults -----------------------------------------------------------------------------------


def test_a_disk_that_refuses_to_read(store_dir: Path) -> None:
    files = FailingFiles(
        {"read_one", "read_many", "pread", "seek_batch"}, OSError(5, "Input/output error"), nth=0
    )
    with write_topic(store_dir, [[b"a", b"b"]], close=False, files=files) as store:
        log = store.partition("t")
        for call in (log.read_one, lambda offset: log.read_many([offset])[0]):
            assert call(1).value == b"b"
            files.arm(1, 1)  # the short way alone fails: the long way reads
            assert call(1).value == b"b"
            assert files.hits == 1
            files.arm(1, 1000)
            with pytest.raises(StorageError, match="Input/output error"):
                call(1)
            files.arm(nth=0)
            assert call(1).value == b"b"


def test_a_file_that_is_cut(store_dir: Path) -> None:
    """As by a writer in another process that takes back what it wrote, or by a disk that lost it."""
    with write_topic(store_dir, [[b"%d" % i for i in range(500)] for _ in range(4)], close=True) as store:
        pass
    (file,) = (store_dir / "t-0").glob("*.log")
    whole = file.read_bytes()
    with segstore.open(store_dir, "r") as store:
        log = store.partition("t")
        assert log.read_one(1999).value == b"499"
        for size in (len(whole) - 1, len(whole) // 2, 30, 0):
            os.truncate(file, size)
            for call in (log.read_one, lambda offset: log.read_many([0, offset])):
                with pytest.raises((CorruptRecordError, StorageError)):
                    call(1999)
        file.write_bytes(whole)


def test_what_lies_behind_the_end_is_never_given(store_dir: Path) -> None:
    """A follower sees the offsets that are published, whatever the file holds behind them."""
    with (
        write_topic(store_dir, [[b"a", b"b"]], close=False) as store,
        segstore.open(store_dir, "r") as reading,
    ):
        log, follower = store.partition("t"), reading.partition("t")
        assert follower.read_one(1).value == b"b"
        for i in range(50):
            with pytest.raises(OffsetOutOfRangeError):
                follower.read_one(2 + i)
            log.append(b"%d" % i)
            assert follower.read_one(2 + i).value == log.read_one(2 + i).value == b"%d" % i


@pytest.mark.kind("kills")
def test_a_log_that_was_cut_and_written_on(store_dir: Path) -> None:
    """What a reader remembers of batches that a power cut took is not taken for what lies there by now."""

    def write(first: int, last: int, size: int) -> None:
        def run(tell: Callable[[str], None]) -> None:
            store = segstore.open(store_dir)
            if not store.topics():
                store.create_topic("t", config={"index.interval.bytes": 200})
            for i in range(first, last):
                store.partition("t").append(value_of(i, size))
            tell("killed, as the store is not closed")

        assert in_child(run)[0] == 0

    write(0, 60, 30)
    with segstore.open(store_dir, "r") as reading:
        follower = reading.partition("t")
        for offset in (59, 30, 31, 58):
            assert follower.read_one(offset).value == value_of(offset, 30)
        (file,) = (store_dir / "t-0").glob("*.log")
        os.truncate(file, file.stat().st_size // 2)
        write(30, 90, 77)
        with segstore.open(store_dir, "r") as anew:
            there = list(records(anew.partition("t")))
            assert len(there) > 80
            assert [follower.read_one(record.offset) for record in there[::-1]] == there[::-1]
            assert list(follower.read_many([record.offset for record in there])) == there
    segstore.open(store_dir).close()


# --- at the same time -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_while_others_append_compact_and_remove(store_dir: Path, mode: str, rng: random.Random) -> None:
    """Each record that is given is the one that was appended there, or one behind it."""
    values: list[bytes] = []
    done, wrong = threading.Event(), list[object]()
    settings = {"segment_bytes": 4000, "index_interval_bytes": 300}
    with open_compacted(store_dir, **settings) as store, segstore.open(store_dir, "r") as reading:
        log = store.partition("t")
        seen = log if mode == "rw" else reading.partition("t")

        def append() -> None:
            n = rng.randrange(1, 30)
            new = [b"%d." % (len(values) + i) * rng.randrange(1, 20) for i in range(n)]
            values.extend(new)
            log.append_batch(new, keys=[value.split(b".")[0][-2:] for value in new], batch_bytes=500)

        def read(seed: int) -> None:
            mine = random.Random(seed)
            try:
                while not done.is_set():
                    start, end = seen.start_offset, seen.end_offset
                    offset = mine.randrange(start, end)
                    many = sorted(mine.choices(range(start, end), k=20))
                    try:
                        for asked, record in (
                            (offset, seen.read_one(offset)),
                            *zip(many, seen.read_many(many), strict=True),
                        ):
                            assert record.offset >= asked
                            assert record.value == values[record.offset]
                    except OffsetOutOfRangeError:
                        assert seen.start_offset > start
            except BaseException as error:  # is raised by the test
                wrong.append(error)

        append()
        threads = [threading.Thread(target=read, args=(rng.random(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for step in range(60):
                append()
                if step % 10 == 9:
                    roll(store)
                    clean(store)
                if step % 20 == 19:
                    log.delete_records(log.end_offset // 3)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert not wrong, wrong[0]


def test_a_handler_reads_within_a_read(store_dir: Path) -> None:
    """The call that is interrupted goes on with its own memory."""
    within: list[Callable[[], None]] = []

    class Interrupting(CountingFiles):
        def read_one(self, *arguments: object) -> int:
            found = super().read_one(*arguments)
            if within:
                within.pop()()
            return found

    with write_topic(store_dir, [[b"a"], [b"b"]], close=False, files=Interrupting()) as store:
        log = store.partition("t")
        inner: list[segstore.Record] = []
        within.append(lambda: inner.append(log.read_one(0)))
        assert log.read_one(1).value == b"b"
        assert [record.value for record in inner] == [b"a"]


@pytest.mark.parametrize("raised", [TimeoutError, KeyboardInterrupt, ZeroDivisionError])
def test_what_a_handler_raises_within_a_read_is_not_lost(
    store_dir: Path, raised: type[BaseException]
) -> None:
    files = FailingFiles({"read_one", "read_many"}, raised(), nth=0)
    with write_topic(store_dir, [[b"a"], [b"b"]], close=False, files=files) as store:
        log = store.partition("t")
        for call in (
            log.read_one,
            lambda offset: log.read_many([offset])[0],
            lambda offset: log.read(offset, 1)[0],
        ):
            assert call(1).value == b"b"
            files.arm(1, 1)
            with pytest.raises(raised):
                call(1)
            assert call(1).value == b"b"


def test_memory_is_used_again(store_dir: Path) -> None:
    with write_topic(store_dir, [[b"a"]], close=False) as store:
        log = store.partition("t")
        log.read_one(0)
        before = len(point_read._unused)
        for _ in range(100):
            log.read_one(0)
            with pytest.raises(OffsetOutOfRangeError):
                log.read_one(1)
            log.read_many([0])
        assert len(point_read._unused) == before
