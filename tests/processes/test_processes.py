"""One writer and readers in other processes: what readers see and must never see, and what a forked child may
not do.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from partitions import GOLDEN, read_expected
from stores import in_child, killed, raw_batches, records, stamps, tree, value_of, values, write_segment
from waiting import PATIENCE, until

import segstore
from segstore import ForkedError, ReadOnlyError, StoreLockedError, UnknownTopicOrPartitionError
from segstore.files import Files, Handle

Tell = Callable[[str], None]
Turns = Callable[[], AbstractContextManager[Callable[[], object]]]


@pytest.mark.kind("kills")
def test_a_second_writer_is_refused_with_the_pid(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")

        def second(tell: Tell) -> None:
            with pytest.raises(StoreLockedError) as caught:
                segstore.open(store_dir)
            tell(f"{caught.value.pid} {os.getppid()}")

        before = tree(store_dir)
        pid, parent = in_child(second)[1][0].split()
        assert pid == parent == str(os.getpid())
        assert tree(store_dir) == before
        with pytest.raises(StoreLockedError) as caught:
            segstore.open(store_dir)
        assert caught.value.pid == os.getpid()
        store.partition("t").append(b"still mine")


@pytest.mark.kind("kills")
def test_a_fork_of_the_writer_may_do_nothing(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    log = store.partition("t")
    log.append(b"x")
    before = tree(store_dir)

    def child(tell: Tell) -> None:
        for use in (
            lambda: log.append(b"y"), lambda: log.append_batch([b"y"]), log.flush, store.flush,
            lambda: store.create_topic("u"), lambda: store.delete_topic("t"), lambda: log.delete_records(1),
            lambda: store.partition("t"), lambda: log.read(0),
        ):  # fmt: skip
            with pytest.raises(ForkedError, match="fork"):
                use()
        with segstore.open(store_dir, "r") as reader:
            assert values(reader.partition("t")) == [b"x"]
        store.close()
        with store:
            pass

    assert in_child(child) == (0, [])
    assert tree(store_dir) == before
    assert log.append(b"z") == 1
    store.close()


@pytest.mark.kind("kills")
def test_a_fork_that_has_lost_the_store_is_refused(store_dir: Path) -> None:
    """It waited for ever for a thread of the writer, which is not in the fork."""
    held = [segstore.open(store_dir)]
    held[0].create_topic("t")

    def child(tell: Tell) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
        held.clear()
        with pytest.raises(StoreLockedError) as caught:
            segstore.open(store_dir)
        tell(str(caught.value.pid))

    assert in_child(child) == (0, [str(os.getpid())])
    held[0].partition("t").append(b"still mine")
    with pytest.raises(StoreLockedError):
        segstore.open(store_dir)
    held[0].close()


@pytest.mark.kind("kills")
def test_the_lock_ends_with_the_writer_although_its_child_lives(store_dir: Path) -> None:
    def writer(tell: Tell) -> None:
        store = segstore.open(store_dir)
        store.create_topic("t")
        if not os.fork():
            tell(str(os.getpid()))  # by now it has let go of what it inherited
            time.sleep(PATIENCE)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    reading, writing = os.pipe()
    # The grandchild must not keep the pipe of `in_child` open: it gets its own.
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            writer(lambda line: os.write(writing, line.encode()) and None)
        finally:
            os._exit(1)
    os.close(writing)
    grandchild = int(os.read(reading, 20))
    os.close(reading)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    try:
        os.kill(grandchild, 0)
        with segstore.open(store_dir) as store:
            assert list(store.topics()) == ["t"]
    finally:
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize("call", ["append", "flush", "create_topic", "delete_topic", "alter_topic"])
def test_a_reader_refuses_to_write(store_dir: Path, call: str) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    before = stamps(store_dir)
    with segstore.open(store_dir, "r") as store:
        log = store.partition("t")
        use = {
            "append": lambda: log.append(b""),
            "flush": log.flush,
            "create_topic": lambda: store.create_topic("u"),
            "delete_topic": lambda: store.delete_topic("t"),
            "alter_topic": lambda: store.alter_topic("t", {}),
        }[call]
        with pytest.raises(ReadOnlyError, match="rw"):
            use()
    assert stamps(store_dir) == before


class Child:
    """A fork that works turn by turn until it is told to stop. A context manager: none is left behind."""

    def __init__(self, work: Turns) -> None:
        reading, self._stopping = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._stopping)
            os._exit(_worked(work, reading))
        os.close(reading)
        self.status: int | None = None

    def ended(self) -> bool:
        """Whether it has; `status` is its exit code then."""
        self._wait(os.WNOHANG)
        return self.status is not None

    def _wait(self, options: int) -> None:
        done, status = os.waitpid(self.pid, options)
        if done:
            self.status = os.waitstatus_to_exitcode(status)

    def stop(self) -> None:
        """Tell it."""
        if self._stopping >= 0:
            os.close(self._stopping)
        self._stopping = -1

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._wait(0)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self.status is None:
            self.kill()


def _worked(work: Turns, told: int) -> int:
    try:
        stopped = select.poll()
        stopped.register(told, select.POLLHUP)
        with work() as turn:
            while not stopped.poll(0):
                turn()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def writer_child(path: Path, seed: float) -> Child:
    """A writer of topic "t", whose n-th value is `value_of(n)`; it makes and deletes topics too."""

    @contextmanager
    def write() -> Iterator[Callable[[], object]]:
        rng = random.Random(seed)
        with segstore.open(path) as store:
            yield lambda: write_some(store, rng)

    return Child(write)


def write_some(store: segstore.Store, rng: random.Random) -> None:
    log = store.partition("t")
    at, n = log.end_offset, rng.choice([1, 1, 5, 100])
    some = [value_of(i) for i in range(at, at + n)]
    codec = rng.choice(["none", "none", "lz4", "zstd"])
    at = log.append_batch(some, batch_bytes=rng.choice([100, 3000]), compression=codec).stop
    store.partition("t", 1).append(b"%d" % at)
    if rng.random() < 0.03:
        log.delete_records(rng.randrange(log.start_offset, at))
    if rng.random() < 0.05:
        store.create_topic("side", 2)
        store.partition("side", 1).append(b"s")
        store.delete_topic("side")


@pytest.mark.kind("kills")
def test_readers_follow_a_live_writer(store_dir: Path, rng: random.Random) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 2, {"segment.bytes": 20_000, "index.interval.bytes": 500})
    at, ends, reads, begun = 0, [0, 0], 0, time.monotonic()
    with segstore.open(store_dir, "r") as reader, writer_child(store_dir, rng.random()) as writer:
        log, second = reader.partition("t"), reader.partition("t", 1)
        while not writer.ended():
            if reads > 50 and at > 1000 and time.monotonic() > begun + 3:
                writer.stop()
            assert set(reader.topics()) <= {"t", "side"}
            end, end_second = log.end_offset, second.end_offset
            assert end >= ends[0]
            assert end_second >= ends[1]
            ends = [end, end_second]
            try:
                found = log.read(max(at, log.start_offset), rng.choice([1, 5000, 1 << 20]))
                start = log.start_offset
                middle = log.read(rng.randrange(start, max(start, end) + 1), 1000)
            except segstore.OffsetOutOfRangeError as gone:
                at = max(at, gone.start)
                continue
            for some in (found, middle):
                assert [r.value for r in some] == [value_of(o) for o in some.offsets.tolist()]
            assert found.next_offset <= log.end_offset
            at, reads = found.next_offset, reads + 1
            if reads % 20 == 0:
                assert [str(finding) for finding in segstore.check(store_dir)] == []
        assert writer.status == 0
        assert [r.value for r in records(log)] == [
            value_of(o) for o in range(log.start_offset, log.end_offset)
        ]


@pytest.mark.kind("kills")
def test_what_a_reader_saw_stays_when_the_writer_is_killed(store_dir: Path, rng: random.Random) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 2, {"segment.bytes": 20_000})
    with segstore.open(store_dir, "r") as reader:
        log = reader.partition("t")
        for _ in range(3):
            before = log.end_offset
            with writer_child(store_dir, rng.random()) as writer:
                until(lambda: log.end_offset > before)  # noqa: B023 - called in this turn
                time.sleep(rng.uniform(0.0, 0.25))
                seen = log.end_offset
                writer.kill()
            assert log.end_offset >= seen
            last = log.end_offset
            with segstore.open(store_dir) as store:
                assert store.partition("t").end_offset >= last
                start = store.partition("t").start_offset
            assert [r.value for r in records(log)] == [value_of(o) for o in range(start, log.end_offset)]


def test_a_writer_killed_within_a_publication_does_not_hang_readers(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    store.partition("t").append(b"x")
    reader = segstore.open(store_dir, "r")
    assert values(reader.partition("t")) == [b"x"]
    with (store_dir / ".segstore" / "ends").open("r+b") as file:
        sequence = struct.unpack("<q", file.read(8))[0]
        file.seek(0)
        file.write(struct.pack("<q", sequence | 1))
    for one in (reader, segstore.open(store_dir, "r")):
        assert values(one.partition("t")) == [b"x"]
        one.close()
    store.partition("t").append(b"y")  # the next publication mends it
    with segstore.open(store_dir, "r") as reader:
        assert values(reader.partition("t")) == [b"x", b"y"]
    store.close()


class Vanishing(Files):
    """Another process removes files with this ending, each just when it is to be looked at by `call`."""

    def __init__(self, call: str, ending: str) -> None:
        super().__init__()
        self.call, self.ending, self.gone = call, ending, 0

    def _take(self, call: str, path: object) -> None:
        wanted = call == self.call and isinstance(path, str) and path.endswith(self.ending)
        if wanted and os.path.exists(path):
            os.unlink(path)
            self.gone += 1

    def open(self, path: str, **options: bool) -> Handle:  # type: ignore[override]
        self._take("open", path)
        return super().open(path, **options)

    def size(self, file: str | Handle) -> int:  # type: ignore[override]
        self._take("size", file)
        return super().size(file)


@pytest.mark.parametrize(("call", "ending"), [("open", ".kafka_cleanshutdown"), ("size", ".index")])
def test_what_a_writer_removes_while_a_reader_looks(tmp_path: Path, call: str, ending: str) -> None:
    """The marker, when a store is opened; an index, when its segment is deleted."""
    with segstore.open(tmp_path) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
    files = Vanishing(call, ending)
    with segstore.open(tmp_path, "r", files=files) as reader:
        assert values(reader.partition("t")) == [b"x"]
        assert [one.end_offset for one in reader.stats()] == [1]
    assert files.gone


def test_a_reader_opened_before_the_topic_was_made(store_dir: Path) -> None:
    segstore.open(store_dir).close()
    with segstore.open(store_dir, "r") as reader:
        assert reader.topics() == {}
        with pytest.raises(UnknownTopicOrPartitionError):
            reader.partition("t")
        with segstore.open(store_dir) as store:
            store.create_topic("t")
            store.partition("t").append(b"x")
            assert values(reader.partition("t")) == [b"x"]
            store.add_partitions("t", 2)
            store.partition("t", 1).append(b"y")
            assert values(reader.partition("t", 1)) == [b"y"]


@pytest.mark.kind("kills")
def test_topics_that_come_and_go_under_a_reader(store_dir: Path) -> None:
    segstore.open(store_dir).close()

    @contextmanager
    def churn() -> Iterator[Callable[[], object]]:
        made = itertools.count()
        with segstore.open(store_dir) as store:
            yield lambda: come_and_go(store, f"t{next(made) % 3}")

    def come_and_go(store: segstore.Store, name: str) -> None:
        store.create_topic(name, 2)
        store.partition(name, 1).append(b"x")
        store.delete_topic(name)

    looks, seen = 0, set()
    with segstore.open(store_dir, "r") as reader, Child(churn) as writer:
        while not writer.ended():
            for name in reader.topics():
                try:
                    seen.add(tuple(values(reader.partition(name, 1))))
                except (UnknownTopicOrPartitionError, segstore.StoreClosedError):
                    continue
            looks += 1
            if looks > 200 and (b"x",) in seen:
                writer.stop()
    assert writer.status == 0
    assert seen <= {(), (b"x",)}


def test_a_read_only_open_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = segstore.open(tmp_path / "live")
    store.create_topic("t", config={"segment.bytes": 500})
    store.partition("t").append_batch([value_of(i) for i in range(100)], batch_bytes=200)
    killed(tmp_path / "live", path)  # not closed cleanly, indexes not trimmed
    store.close()
    for index in list((path / "t-0").glob("*index"))[::2]:
        index.unlink()
    before, held = stamps(path), tree(path)
    paths = [path, *path.rglob("*")]
    for one in paths:
        one.chmod(0o555 if one.is_dir() else 0o444)
    with segstore.open(path, "r") as reader:
        log = reader.partition("t")
        assert values(log) == [value_of(i) for i in range(100)]
        assert log.offset_for_time(0) == 0
        list(records(log, isolation_level="read_committed"))
    segstore.check(path)
    for one in paths:
        one.chmod(0o755)
    assert (stamps(path), tree(path)) == (before, held)


def test_a_broker_directory_is_followed_while_batches_are_appended(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    data = raw_batches(range(100))
    log_file = write_segment(directory, 0, b"")
    with segstore.open(tmp_path, "r") as reader, log_file.open("ab") as out:
        log = reader.partition("t")
        assert (log.end_offset, len(log.read(0))) == (0, 0)
        for at in range(0, len(data), 97):
            out.write(data[at : at + 97])
            out.flush()
            end = log.end_offset
            assert values(log) == [value_of(i) for i in range(end)]
            written = min(at + 97, len(data))
            assert (end == 100) == (written == len(data))
        write_segment(directory, 100, raw_batches(range(100, 110)))
        assert values(log) == [value_of(i) for i in range(110)]


def test_golden_partitions_in_place_are_left_as_they_are() -> None:
    before = stamps(GOLDEN)
    with segstore.open(GOLDEN / "clean", "r") as store:
        for name, topic in store.topics().items():
            for p in topic.partition_ids:
                expected = read_expected(GOLDEN / "records" / f"{name}-{p}.jsonl.gz")
                assert len(list(records(store.partition(name, p)))) == len(expected)
    assert stamps(GOLDEN) == before
