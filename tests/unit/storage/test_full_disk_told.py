"""A full disk is reported once, and that there is room again once, in the log, in metrics and in a note for
other processes.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import cast

import pytest
from full_files import BLOCK, FullFiles
from full_stores import QUIET, filled, noted
from replica_logs import closed, opened, replica_of
from stores import killed, logs
from waiting import until

import segstore
from segstore import StorageError
from segstore.files.reserve import SIZE, Reserve
from segstore.storage import full_disk
from segstore.storage.scheduler import Scheduler


def test_it_is_told_once_and_once_that_there_is_room_again(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(full_disk, "LOOK", 0.05)
    files = FullFiles()
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"x")
        assert store.stats()[0].error is None
        files.fill()
        with pytest.raises(StorageError):
            log.append(b"x" * 5000)
        noted(store_dir)
        files.fill()  # the note may have left blocks of the reserve, which an append could take
        for _ in range(20):
            with pytest.raises(StorageError):
                log.append(b"x" * 5000)
        assert "No space left on device: appends fail since 20" in str(store.stats()[0].error)
        with segstore.open(store_dir, "r") as reader:  # as `segstore stats` beside the writer
            assert reader.stats()[0].error == store.stats()[0].error
        assert len(told(caplog)) == 1
        assert str(store_dir / "t-0" / "00000000000000000000.log") in told(caplog)[0]
        assert "No space left on device" in told(caplog)[0]
        files.make_room()
        assert log.append(b"y") == 1
        until(lambda: store.stats()[0].error is None, seconds=20)
        until(lambda: not (store_dir / ".segstore" / "full").exists())
        until(lambda: len(told(caplog)) == 2)
        assert "there is room again" in told(caplog)[1]


def test_checkpoints_that_find_no_room_are_the_same_full_disk(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FullFiles(greedy=True)
    often = {**QUIET, "log.flush.offset.checkpoint.interval.ms": 1}
    with segstore.open(store_dir, files=files, config=often) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
        files.fill()
        until(lambda: len(files.refused) >= 10, seconds=20)  # nobody appends
        noted(store_dir)
        assert len(told(caplog)) == 1
        files.make_room()
        until(lambda: len(told(caplog)) == 2, seconds=20)
        assert "there is room again" in told(caplog)[1]
        assert "background task failed" not in caplog.text


class ByHand:
    """A scheduler whose tasks run by `run`, and the store's clock, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tasks: list[tuple[float, Callable[[], object]]] = []

    def soon(self, task: Callable[[], object]) -> None:
        self.after(0.0, task)

    def after(self, seconds: float, task: Callable[[], object]) -> None:
        self.tasks.append((self.now + seconds, task))

    def run(self, seconds: float) -> None:
        """Go on by `seconds`."""
        end = self.now + seconds
        while due := sorted((each for each in self.tasks if each[0] <= end), key=itemgetter(0)):
            self.now = due[0][0]
            self.tasks.remove(due[0])
            due[0][1]()
        self.now = end


class Disk:
    """A `FullDisk` by a clock that is handed in; `failed` is an append that found no room."""

    def __init__(self, root: Path) -> None:
        self.files, self.time = FullFiles(), ByHand()
        (root / ".segstore").mkdir(parents=True)
        reserve = Reserve(self.files, str(root / ".segstore" / "reserve"))
        reserve.take(SIZE)
        clock, scheduler = (lambda: int(self.time.now * 1000)), cast("Scheduler", self.time)
        self.full = full_disk.FullDisk(self.files, str(root), clock, scheduler, reserve, lambda: None)

    def failed(self, need: int = 0) -> None:
        self.full.met(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "t-0/0.log"), need)


@pytest.fixture
def disk(store_dir: Path) -> Disk:
    return Disk(store_dir)


@pytest.mark.parametrize("pause", [0.5, 3, 30, 599])
def test_small_appends_beside_a_large_one_that_is_retried_repeat_no_line(
    disk: Disk, caplog: pytest.LogCaptureFixture, pause: float
) -> None:
    """There is room for small appends all the time, and never for the large one."""
    disk.files.free = 100
    for _ in range(20):
        disk.failed(200 * BLOCK)
        disk.time.run(pause)
        assert disk.full.note is not None
        assert disk.full.note.since_ms == 0
    assert len(told(caplog)) == 1
    disk.files.free = 240
    disk.time.run(4)
    assert (disk.full.note, len(told(caplog))) == (None, 2)


def test_an_append_that_no_disk_has_room_for_does_not_tell_it_full_for_ever(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.files.free = 100
    disk.failed(1 << 50)
    disk.time.run(590)
    assert (disk.full.note is None, len(told(caplog))) == (False, 1)
    disk.time.run(15)
    assert (disk.full.note is None, len(told(caplog))) == (True, 2)


def test_the_size_of_an_earlier_failure_counts_no_more_once_there_was_room(disk: Disk) -> None:
    disk.failed(200 * BLOCK)
    disk.time.run(5)
    assert disk.full.note is None
    disk.files.free = 100
    disk.failed(BLOCK)
    disk.time.run(5)
    assert disk.full.note is None


def test_appends_of_two_threads_that_fail_at_once_are_told_once(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """Both have seen that there is no note yet."""
    disk.failed()
    disk.full.note = None
    disk.failed()
    disk.time.run(1)
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("size", [5000, 300_000, 9_000_000])
@pytest.mark.parametrize("how", ["append", "append_batch"])
def test_the_size_of_the_append_that_failed_is_known(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, how: str, size: int
) -> None:
    needs: list[int] = []

    def met(self: full_disk.FullDisk, error: OSError, need: int = 0) -> None:
        needs.append(need)

    monkeypatch.setattr(full_disk.FullDisk, "met", met)
    files, large = FullFiles(), {"max.message.bytes": 10_000_000}
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        store.create_topic("t", config=large)
        log = store.partition("t")
        log.append(b"x")
        files.fill()
        value, n = b"x" * 1000, size // 1000
        with pytest.raises(StorageError):
            log.append(value * n) if how == "append" else log.append_batch([value] * n)
        assert needs
        # A long append is written by chunks, of which the first fails.
        assert min(size, 2_000_000) <= max(needs) <= size + size // 10 + 1000
        files.make_room()


def test_an_epoch_that_has_no_room_is_told(store_dir: Path) -> None:
    """The first append of a new leader epoch writes the file of epochs before the log."""
    files = FullFiles()
    log = opened(store_dir, files=files)
    log.append(b"x")
    replica_of(log).lead(5)
    files.fill()
    with pytest.raises(StorageError, match="leader-epoch"):
        log.append(b"y")
    assert log.partition_for_write().context.full.note is not None
    files.make_room()
    closed(log)


def test_an_epoch_that_a_follower_has_no_room_for_is_told(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(tmp_path / "leader") as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
        sent = bytearray(logs(tmp_path / "leader")[0].read_bytes())
    sent[12:16] = (7).to_bytes(4, "big")  # the batch's leader epoch, which its CRC leaves out
    files = FullFiles()
    log = opened(store_dir, files=files)
    replica = replica_of(log)
    replica.follow()
    files.fill()
    with pytest.raises(StorageError, match="leader-epoch"):
        replica.append_as_follower(bytes(sent))
    assert log.partition_for_write().context.full.note is not None
    files.make_room()
    closed(log)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in lines if "room" in line]


def test_metrics_say_it(store_dir: Path) -> None:
    pytest.importorskip("prometheus_client")
    files = FullFiles()
    with segstore.open(store_dir, files=files, config=QUIET) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
        assert "segstore_disk_full 0.0" in store.metrics_text()
        files.fill()
        with pytest.raises(StorageError):
            store.partition("t").append(b"x" * 5000)
        text = store.metrics_text()
        assert "segstore_disk_full 1.0" in text
        assert 'segstore_partition_failed{partition="0",topic="t"} 1.0' in text
        assert "segstore_disk_free_bytes " in text
        files.make_room()


def test_a_note_that_a_dead_writer_has_left_goes(store_dir: Path, tmp_path: Path) -> None:
    with filled(tmp_path / "live", FullFiles()) as store:
        noted(tmp_path / "live")
        killed(tmp_path / "live", store_dir)
        assert store.stats()[0].error
    with segstore.open(store_dir) as opened:
        assert opened.stats()[0].error is None
        assert not (store_dir / ".segstore" / "full").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 100])
def test_a_note_that_can_not_be_read_tells_nothing(store_dir: Path, content: bytes) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        (store_dir / ".segstore" / "full").write_bytes(content)
        with segstore.open(store_dir, "r") as reader:
            assert reader.stats()[0].error is None
