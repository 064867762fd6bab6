"""Promise: the host of a shared log syncs it beside other processes: what one makes durable is so for all,
none syncs while another one does, and a sync that fails, or whose process has died, is known to all.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FailingFiles
from shared_log import GENERATION, Member, Process, made
from waiting import until

import segstore
from segstore import StorageError
from segstore._native import ffi, lib

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes share a store on Linux only")


class Hosted:
    """A log of a store whose tail has a shared log's host, and a member in another process. One record is
    durable, and one is not.
    """

    def __init__(self, path: Path) -> None:
        self.files = FailingFiles({"sync"}, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), nth=0)
        self.store = segstore.open(path / "store", files=self.files)
        self.store.create_topic("t", 1)
        self.log = self.store.partition("t")
        self.log.append(b"durable")
        self.log.flush()
        self.log.append(b"by C, whose tail is open from here on")
        self.partition = self.log.partition_for_write()
        self.flusher, self.native = self.partition.flusher, self.partition.tail.native
        self.segment = Path(self.partition.segments.active.segment.path)
        self.there = made(path)
        (path / "segment").unlink()
        (path / "segment").symlink_to(self.segment)
        self.host = Member(path, host=True)
        self.shared = self.host.log
        self.shared.synced = 1
        self.native.c.share = self.host.share
        self.flusher.names_changed()
        self.show()
        self.other = Process(path)

    def show(self) -> None:
        """Tell the other process where the log ends."""
        end = self.host.end.end
        end.next_offset, end.position = self.log.end_offset, self.segment.stat().st_size

    def append(self) -> None:
        self.log.append(b"value")
        self.show()

    @property
    def synced(self) -> int:
        assert self.flusher.recovery_point == self.shared.synced
        assert self.shared.sync_lock == 0
        return int(self.shared.synced)

    def by_log_only(self) -> None:
        """Have nothing but the active segment's log to be synced."""
        self.log.flush()
        assert self.shared.by_log_only == GENERATION
        self.append()

    def kill_within(self) -> None:
        """Have the other process sync, and kill it within that."""
        (self.there / "hold").touch()
        self.other.begin("member.flush()")
        until((self.there / "begun").exists)
        self.other.kill()
        (self.there / "hold").unlink()
        os.utime(self.segment, ns=(0, 0))

    @property
    def is_written_again(self) -> bool:
        return self.segment.stat().st_mtime_ns != 0

    def close(self) -> None:
        self.other.kill()
        synced = int(self.shared.synced)
        self.native.pause()
        self.native.c.share = ffi.NULL
        self.flusher.set_recovery_point(synced)
        self.host.__exit__(None, None, None)
        self.store.close()


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    made_here = Hosted(tmp_path)
    yield made_here
    made_here.close()


@pytest.fixture(params=["by C", "by Python"])
def by(request: pytest.FixtureRequest, hosted: Hosted) -> str:
    """Have the host's C sync, or leave it to Python, since more is to be synced."""
    if request.param == "by C":
        hosted.by_log_only()
    return str(request.param)


def test_S1_what_one_makes_durable_is_so_for_all(hosted: Hosted, by: str) -> None:
    hosted.log.flush()
    assert hosted.synced == hosted.log.end_offset
    assert hosted.other.ask("member.flush()") == 0
    assert not (hosted.there / "syncs").exists()
    hosted.append()
    assert hosted.other.ask("member.flush()") == 0
    assert hosted.synced == hosted.log.end_offset
    hosted.files.arm()  # no sync: it would fail
    hosted.log.flush()
    hosted.files.arm(nth=0)


def test_S1_more_to_be_synced_is_left_to_the_host(hosted: Hosted) -> None:
    assert hosted.other.ask("member.flush()") == lib.SEG_SLOW
    hosted.by_log_only()
    hosted.flusher.names_changed()
    assert hosted.other.ask("member.flush()") == lib.SEG_SLOW
    hosted.log.flush()
    assert hosted.other.ask("member.flush()") == 0


@pytest.mark.parametrize("raises", [False, True])
def test_S1_no_other_process_syncs_while_the_host_keeps_it(hosted: Hosted, raises: bool) -> None:
    hosted.by_log_only()
    before = hosted.synced

    def run() -> None:
        hosted.other.begin("member.flush()")
        until(lambda: hosted.shared.sync_waiting)
        hosted.other.has_looked()
        assert hosted.shared.synced == before
        if raises:
            raise KeyboardInterrupt

    try:
        hosted.flusher.without_syncs(run)
    except KeyboardInterrupt:
        assert raises
    assert hosted.other.answer() == 0
    assert hosted.synced == before + 1


def test_S2_a_sync_of_the_hosts_that_fails_fences_all(hosted: Hosted, by: str) -> None:
    before = hosted.synced
    hosted.files.arm()
    with pytest.raises(StorageError, match="sync failed"):
        hosted.log.flush()
    assert hosted.other.ask("member.flush()") == -errno.ENOSPC
    assert (hosted.synced, hosted.shared.failed) == (before, errno.ENOSPC)


def test_S2_a_sync_of_another_process_that_fails_fences_the_host(hosted: Hosted) -> None:
    hosted.by_log_only()
    (hosted.there / "fail").write_text(str(errno.EDQUOT))
    assert hosted.other.ask("member.flush()") == -errno.EDQUOT
    with pytest.raises(StorageError) as raised:
        hosted.log.flush()
    assert raised.value.errno == errno.EDQUOT
    with pytest.raises(StorageError, match="fenced"):
        hosted.log.append(b"no more")
    assert hosted.synced == 2


@pytest.mark.parametrize("damaged", [False, True])
def test_S3_the_host_writes_again_what_a_dead_process_has_synced(
    hosted: Hosted, by: str, damaged: bool
) -> None:
    if by == "by Python":
        hosted.by_log_only()
    hosted.kill_within()
    if by == "by Python":
        hosted.flusher.names_changed()
    data = hosted.segment.read_bytes()
    if damaged:
        with hosted.segment.open("r+b") as file:
            file.seek(len(data) - 1)
            file.write(bytes([data[-1] ^ 1]))
        with pytest.raises(StorageError) as raised:
            hosted.log.flush()
        assert (raised.value.errno, hosted.shared.failed, hosted.synced) == (errno.EIO, errno.EIO, 2)
        hosted.segment.write_bytes(data)
    else:
        hosted.log.flush()
        assert hosted.is_written_again
        assert hosted.segment.read_bytes() == data
        assert (hosted.synced, hosted.shared.sync_from) == (hosted.log.end_offset, -1)
        os.utime(hosted.segment, ns=(0, 0))
        hosted.log.flush()
        assert not hosted.is_written_again


def test_S3_an_interrupt_within_a_sync_of_the_hosts_is_as_a_death(hosted: Hosted) -> None:
    """Nobody knows what the kernel has told."""
    hosted.files.fault = KeyboardInterrupt()
    hosted.files.arm()
    with pytest.raises(KeyboardInterrupt):
        hosted.log.flush()
    assert (hosted.synced, hosted.shared.sync_from, hosted.shared.failed) == (1, 2, 0)
    os.utime(hosted.segment, ns=(0, 0))
    hosted.log.flush()
    assert hosted.is_written_again
    assert (hosted.synced, hosted.shared.sync_from) == (2, -1)
