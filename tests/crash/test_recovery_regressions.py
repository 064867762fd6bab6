"""Regressions of opening, recovery, publication and topic changes that a review found."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from waiting import until

import segstore
from segstore.files import Files

PER_BATCH = 10


def fill(log: segstore.PartitionLog, batches: int) -> None:
    for _ in range(batches):
        log.append_batch([b"%06d" % i for i in range(log.end_offset, log.end_offset + PER_BATCH)])


def values(log: segstore.PartitionLog) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.value) for r in log.read(log.start_offset, 1 << 20)]


@pytest.fixture
def unclean(tmp_path: Path) -> Path:
    """Ten batches, the first five of them below the recovery point, as after a kill."""
    live, root = tmp_path / "live", tmp_path / "store"
    with segstore.open(live) as store:
        store.create_topic("t")
        log = store.partition("t")
        fill(log, 5)
        log.flush()
        fill(log, 5)
        shutil.copytree(live, root)
    return root


def set_base_offset(log: Path, batch: int, offset: int) -> None:
    data = bytearray(log.read_bytes())
    at = 0
    for _ in range(batch):
        at += struct.unpack_from(">i", data, at + 8)[0] + 12
    struct.pack_into(">q", data, at, offset)
    log.write_bytes(data)


@pytest.mark.parametrize(
    "offset", [57, 0, 3, 2**40, 45], ids=["above", "zero", "low", "far", "below the end"]
)
def test_a_base_offset_behind_the_recovery_point_must_follow(unclean: Path, offset: int) -> None:
    log_file = next((unclean / "t-0").glob("*.log"))
    set_base_offset(log_file, 5, offset)
    with segstore.open(unclean) as store:
        log = store.partition("t")
        assert log.end_offset == 50
        assert values(log) == [(i, b"%06d" % i) for i in range(50)]
        assert store.recovered[0].cut_bytes
        assert len(list((unclean / ".segstore/quarantine").iterdir())) == 1
    assert segstore.check(unclean) == []


def test_a_base_offset_below_the_segments_own(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "store"
    with segstore.open(live) as store:
        store.create_topic("t", config={"segment.bytes": 700})
        log = store.partition("t")
        fill(log, 5)
        log.flush()
        fill(log, 5)
        shutil.copytree(live, root)
    # What a roll flushed in the background may have come before the copy, or not.
    forget_end(root)
    last = sorted((root / "t-0").glob("*.log"))[-1]
    set_base_offset(last, 0, 0)
    with segstore.open(root) as store:
        assert store.partition("t").end_offset == int(last.stem)
    assert segstore.check(root) == []


def test_cuts_at_the_same_place_are_all_kept(unclean: Path) -> None:
    log_file = next((unclean / "t-0").glob("*.log"))
    for n in range(1, 4):
        data = bytearray(log_file.read_bytes())
        half = len(data) // 2
        data[half + 100] ^= 1
        log_file.write_bytes(data)
        with segstore.open(unclean) as store:
            log = store.partition("t")
            assert log.end_offset == 50
            kept = {p.read_bytes() for p in (unclean / ".segstore/quarantine").iterdir()}
            assert len(kept) == n
            for _ in range(5):
                log.append_batch([b"again %d" % n] * PER_BATCH)
        (unclean / ".kafka_cleanshutdown").unlink()
        forget_end(unclean)


def forget_end(root: Path) -> None:
    """A power cut: neither the published ends nor the checkpoint, nor its copy, know of what came last."""
    (root / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 50\n")
    (root / ".segstore/ends").unlink()
    (root / ".segstore/checkpoints").unlink(missing_ok=True)


def test_a_new_topic_begins_at_0_whatever_the_checkpoints_say(tmp_path: Path) -> None:
    root = tmp_path / "store"
    segstore.open(root).close()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (root / name).write_text("0\n2\nt 0 1000\nt 1 1000\n")
    with segstore.open(root) as store:
        store.create_topic("t")
        store.add_partitions("t", 2)
        assert [store.partition("t", p).append(b"x") for p in (0, 1)] == [0, 0]
    assert segstore.check(root) == []


def test_a_checkpoint_after_a_delete_leaves_no_line(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t")
        log = store.partition("t")
        fill(log, 10)
        store.flush()
        store.delete_topic("t")
        with pytest.raises(segstore.StoreClosedError):
            log.delete_records(50)
        store.flush()
        store.create_topic("t")
        assert store.partition("t").append(b"first") == 0
        assert store.partition("t").start_offset == 0


def test_a_log_start_behind_the_end_removes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with segstore.open(root) as store:
        store.create_topic("t", config={"segment.bytes": 700})
        fill(store.partition("t"), 10)
    (root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 5000\n")
    before = sorted(p.name for p in (root / "t-0").glob("*.log"))
    with segstore.open(root) as store:
        assert len(values(store.partition("t"))) == 100
    assert sorted(p.name for p in (root / "t-0").glob("*.log")) == before


def test_segments_below_the_log_start_need_not_follow_each_other(tmp_path: Path) -> None:
    """A power cut while they are removed may leave any of them, since names are removed in any order."""
    live, root = tmp_path / "live", tmp_path / "store"
    with segstore.open(live, config={"log.flush.offset.checkpoint.interval.ms": 3_600_000}) as store:
        store.create_topic("t", config={"segment.bytes": 200, "file.delete.delay.ms": 0})
        log = store.partition("t")
        fill(log, 6)
        first, second, *_ = sorted((live / "t-0").glob("*.log"))
        left = {first.name: first.read_bytes()}
        log.delete_records(35)
        expected = values(log)
        shutil.copytree(live, root)
    (root / segstore.names.OURS / segstore.names.ENDS).unlink()  # which a power cut takes
    for name, data in left.items():
        (root / "t-0" / name).write_bytes(data)
    assert not (root / "t-0" / second.name).exists()
    with segstore.open(root) as store:
        assert values(store.partition("t")) == expected
        assert store.partition("t").start_offset == 35
    assert segstore.check(root) == []


def test_ends_of_before_a_broker_stay_unbelieved_after_a_kill(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with segstore.open(root) as store:
        store.create_topic("t")
        fill(store.partition("t"), 10)
    # A broker that truncated to 50 and closed cleanly, then our open, killed.
    log_file = next((root / "t-0").glob("*.log"))
    os.truncate(log_file, log_file.stat().st_size // 2)
    (root / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 50\n")
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    killed = tmp_path / "killed"
    with segstore.open(root):
        shutil.copytree(root, killed)
    with segstore.open(killed) as store:
        assert store.partition("t").end_offset == 50


def test_what_waits_for_the_store_does_nothing_after_close(tmp_path: Path) -> None:
    store = segstore.open(tmp_path / "store")
    raised: list[BaseException] = []

    def late() -> None:
        try:
            store.engine.topic_admin.create("late", 1, {})
        except segstore.SegstoreError as error:
            raised.append(error)

    threads = [threading.Thread(target=late), threading.Thread(target=store.close)]
    with store.engine.partitions.lock:
        for thread in threads:
            thread.start()
        until(lambda: store.context.closed)
    for thread in threads:
        thread.join()
    assert isinstance(raised[0], segstore.StoreClosedError)
    assert not (tmp_path / "store" / "late-0").exists()


def test_an_end_that_was_published_is_never_taken_back(tmp_path: Path) -> None:
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t")
        log, done = store.partition("t"), threading.Event()
        with segstore.open(tmp_path / "store", mode="r") as other:
            follower, seen = other.partition("t"), 0

            def flush() -> None:
                while not done.is_set():
                    log.flush()

            thread = threading.Thread(target=flush)
            thread.start()
            for _ in range(300):
                log.append(b"x")
                end = follower.end_offset
                assert end >= seen
                seen = end
            done.set()
            thread.join()
            assert follower.end_offset == 300


def test_a_deleted_topics_flush_does_not_touch_its_slot(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("a")
        gone = store.engine.partition("a", 0)
        gone_log = store.partition("a")
        fill(gone_log, 1)
        store.delete_topic("a")
        store.create_topic("b")
        fill(store.partition("b"), 2)
        gone.visible.show()
        gone._flushed(0)
        with segstore.open(store_dir, mode="r") as other:
            assert other.partition("b").end_offset == 20
        with pytest.raises(segstore.StoreClosedError):
            gone_log.append(b"late")


def test_a_failed_sync_makes_the_next_open_write_the_bytes_again(tmp_path: Path) -> None:
    root, files = tmp_path / "store", FailingFiles({"sync"}, OSError(errno.EIO, "injected"), nth=0)
    store = segstore.open(root, files=files)
    store.create_topic("t")
    log = store.partition("t")
    fill(log, 3)
    files.arm(1)
    with pytest.raises(segstore.StorageError):
        log.flush()
    files.arm(0)
    store.close()
    assert not (root / ".kafka_cleanshutdown").exists()
    written: list[int] = []

    class Counting(Files):
        def pwrite(self, handle, data, position):  # type: ignore[no-untyped-def]
            if handle.path.endswith(".log"):
                written.append(len(data))
            return super().pwrite(handle, data, position)

    with segstore.open(root, files=Counting()) as store:
        assert store.partition("t").end_offset == 30
        size = next((root / "t-0").glob("*.log")).stat().st_size
        assert sum(written) == size
    with segstore.open(root, files=Counting()) as store:
        assert store.partition("t").end_offset == 30
        assert sum(written) == size


def test_flush_goes_on_past_a_fenced_partition(tmp_path: Path) -> None:
    root, files = tmp_path / "store", FailingFiles({"sync"}, OSError(errno.EIO, "injected"), nth=0)
    with segstore.open(root, files=files) as store:
        store.create_topic("t", partitions=3)
        for p in range(3):
            fill(store.partition("t", p), 1)
        files.arm(1)
        with pytest.raises(segstore.StorageError):
            store.flush()
        synced = [store.engine.partition("t", p).recovery_point for p in range(3)]
        assert sorted(synced) == [0, 10, 10]


def test_one_foreign_thing_leaves_the_other_topics_usable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with segstore.open(root) as store:
        store.create_topic("good")
        store.create_topic("bad")
        for name in ("good", "bad"):
            fill(store.partition(name), 1)
    log_file = next((root / "bad-0").glob("*.log"))
    log_file.unlink()
    os.mkfifo(log_file)
    (root / ".kafka_cleanshutdown").unlink()
    with segstore.open(root) as store:
        assert store.partition("good").end_offset == 10
        with pytest.raises(segstore.SegstoreError, match="bad-0"):
            store.partition("bad").end_offset  # noqa: B018
        store.partition("good").append(b"more")
    assert not (root / ".kafka_cleanshutdown").exists()


def test_a_log_keeps_its_store(tmp_path: Path) -> None:
    log = segstore.open(tmp_path / "store")
    log.create_topic("t", config={"flush.ms": 1})
    log = log.partition("t")
    log.append(b"x")
    until(lambda log=log: log.source.recovery_point == 1)
    del log
    gc.collect()  # nobody closed it


def test_a_segment_is_trimmed_before_the_next_one_has_a_name(tmp_path: Path) -> None:
    root, seen = tmp_path / "store", []

    class Watching(Files):
        def open(self, path, *, write=False, create=False):  # type: ignore[no-untyped-def]
            if create and str(path).endswith(".log") and not str(path).endswith("0" * 20 + ".log"):
                index, times = (root / "t-0" / ("0" * 20 + suffix) for suffix in (".index", ".timeindex"))
                seen.append((index.stat().st_size, times.stat().st_size))
            return super().open(path, write=write, create=create)

    with segstore.open(root, files=Watching()) as store:
        store.create_topic("t", config={"segment.bytes": 20_000, "index.interval.bytes": 512})
        store.partition("t").append_batch([b"x" * 100] * 300, batch_bytes=1000)
    sealed = [(root / "t-0" / ("0" * 20 + suffix)).stat().st_size for suffix in (".index", ".timeindex")]
    assert seen[0] == tuple(sealed)
    assert segstore.check(root) == []


class _Watched(FailingFiles):
    def __init__(self) -> None:
        super().__init__({"pwrite"}, OSError(errno.EDQUOT, "Disk quota exceeded"), 0)
        self.synced: list[str] = []

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "sync_dir":
            self.synced.append(os.path.basename(args[0]))
        super().before(name, args, kwargs)


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_segment_that_a_failed_append_made_is_gone_for_good(store_dir: Path, end: str) -> None:
    """A sync between the roll and the failing write had made the segment's name durable, and no later one its
    removal: a power cut behind a clean close brought the name back, and offsets before it were missing.
    """
    files = _Watched()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", config={"segment.bytes": 400})
        log = store.partition("t")
        log.append(b"first")
        log.flush()
        partition = log.partition_for_write()
        # Else the flush in the background may be the one that syncs.
        partition.flushing.soon = lambda upto: None  # type: ignore[method-assign]
        plain = partition.writer.rolled

        def rolled(base_offset: int) -> None:
            plain(base_offset)
            partition.flusher.flush(log.end_offset)  # as by another thread
            files.arm()

        partition.writer.rolled = rolled
        with pytest.raises(segstore.StorageError):
            log.append_batch([b"%06d" % i for i in range(100)], batch_bytes=200)
        partition.writer.rolled = plain
        files.arm(0)
        assert log.end_offset == 1
        files.synced.clear()
        if end == "flush":
            log.flush()
            assert files.synced == ["t-0"]
            log.flush()
            assert files.synced == ["t-0"]
    assert "t-0" in files.synced
