"""Promise: the processes of a shared store sync a log together: what one makes durable is so for all, none
syncs while another one does, and a sync that fails, or whose process has died, is known to all (rules S1 to
S3 of docs/shared.md).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faults import FailingFiles
from hand_made_logs import WAITED
from shared_members import MemberError, MemberProcess, SharedWords, members
from waiting import until

import segstore
from segstore import StorageError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes share a store on Linux only"),
    pytest.mark.kind("members of a shared store"),
]

QUICK = {"shared.answer.ms": 500}
COUNT = "files.fault = lambda *_: None; files.arm(1, 1 << 30)"
"""Have a guest count its syncs of files, in `files.hits`."""
END = "log().end_offset"
SYNCED = "share().log.synced"


class Hosted:
    """A store of which this process is the host, and another process a guest. One record is durable, and one
    of the guest's is not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = FailingFiles({"sync"}, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), nth=0)
        self.store = segstore.open(path, shared=True, files=self.files)
        self.store.create_topic("t", 1)
        self.log = self.store.partition("t")
        self.log.append(b"durable")
        self.log.append(b"by C, whose tail is open from here on")
        self.log.flush()
        self.partition = self.log.partition_for_write()
        self.flusher = self.partition.flusher
        self.shared = self.partition.tail.native.c.share.log
        self.segment = Path(self.partition.segments.active.segment.path)
        self.running: list[MemberProcess] = []
        self.guest = self.joined()
        self.guest.append("by a guest")

    def joined(self) -> MemberProcess:
        """Return another guest."""
        self.running.append(MemberProcess(self.path, "guest", faulty=True).opened())
        return self.running[-1]

    @property
    def generation(self) -> int:
        """Return the generation of the log."""
        return SharedWords(self.path).log().generation

    @property
    def synced(self) -> int:
        """Return up to where the log is durable, which nobody syncs now."""
        assert self.flusher.recovery_point == self.shared.synced
        assert self.shared.sync_lock & ~WAITED == 0
        return int(self.shared.synced)

    def by_log_only(self) -> None:
        """Have nothing but the active segment's log to be synced, whose last record is not durable."""
        self.log.flush()
        self.guest.append("more")
        assert self.shared.by_log_only == self.generation

    def kill_within(self) -> None:
        """Have the guest sync, and die within that."""
        self.guest.begin("files.fault = lambda *_: os.kill(os.getpid(), 9); files.arm(); log().flush()")
        self.guest.await_death()
        assert self.shared.sync_from == self.log.end_offset
        os.utime(self.segment, ns=(0, 0))

    @property
    def is_written_again(self) -> bool:
        return self.segment.stat().st_mtime_ns != 0

    def close(self) -> None:
        self.files.arm(nth=0)
        for each in self.running:
            each.__exit__(AssertionError, None, None)
        with suppress(StorageError):  # a fence that the test has looked at
            self.store.close()


def errno_of(member: MemberProcess, code: str) -> int:
    """Return the errno of the StorageError that a command of a member raises; 0: it raises none."""
    told = f"try:\n  {code}\n  told = 0\nexcept segstore.StorageError as error:\n  told = error.errno\ntold"
    return int(member.run(told))


@pytest.fixture
def hosted(store_dir: Path) -> Iterator[Hosted]:
    made = Hosted(store_dir)
    yield made
    made.close()


@pytest.fixture(params=["by C", "by Python"])
def by(request: pytest.FixtureRequest, hosted: Hosted) -> str:
    """Have the host's C sync, or leave it to Python, since more is to be synced."""
    hosted.by_log_only()
    if request.param == "by Python":
        hosted.flusher.names_changed()
    return str(request.param)


# --- S1 -------------------------------------------------------------------------------------------


def test_S1_what_one_makes_durable_is_so_for_all(hosted: Hosted, by: str) -> None:
    hosted.guest.run(COUNT)
    hosted.log.flush()
    assert hosted.synced == hosted.log.end_offset == 4
    hosted.guest.run("log().flush(); store.flush()")
    assert hosted.guest.run("files.hits") == 0
    hosted.guest.append("more")
    hosted.guest.run("log().flush()")
    assert hosted.guest.run("files.hits") == 1
    assert hosted.synced == hosted.log.end_offset == 5
    hosted.files.arm()  # no sync: it would fail
    hosted.log.flush()
    assert hosted.files.hits == 0


def test_S1_a_flush_serves_what_others_have_appended(hosted: Hosted, by: str) -> None:
    other = hosted.joined()
    for flush, appends in (
        (hosted.log.flush, hosted.guest.append),
        (lambda: hosted.guest.run("log().flush()"), other.append),
        (lambda: other.run("store.flush()"), lambda _: hosted.log.append(b"by the host")),
    ):
        hosted.log.append(b"so that its tail is open")
        hosted.guest.append("and this one's")
        appends("of another process")
        flush()
        assert hosted.synced == hosted.log.end_offset


def test_S1_more_to_be_synced_is_left_to_the_host(hosted: Hosted) -> None:
    hosted.by_log_only()
    hosted.guest.run(COUNT)
    hosted.flusher.names_changed()
    hosted.guest.run("log().flush()")
    assert hosted.guest.run("files.hits") == 0
    assert hosted.synced == hosted.log.end_offset
    hosted.guest.append("more")
    hosted.guest.run("log().flush()")
    assert hosted.guest.run("files.hits") == 1
    assert hosted.synced == hosted.log.end_offset


@pytest.mark.parametrize("raises", [False, True])
def test_S1_no_other_process_syncs_while_the_host_keeps_it(hosted: Hosted, raises: bool) -> None:
    hosted.by_log_only()
    before = hosted.synced

    def run() -> None:
        hosted.guest.begin("log().flush()")
        until(lambda: hosted.shared.sync_waiting)
        assert not hosted.guest.is_done(0.05)
        assert hosted.shared.synced == before
        if raises:
            raise KeyboardInterrupt

    try:
        hosted.flusher.without_syncs(run)
    except KeyboardInterrupt:
        assert raises
    hosted.guest.result()
    assert hosted.synced == before + 1


# --- S2 -------------------------------------------------------------------------------------------


def test_S2_a_sync_of_the_hosts_that_fails_fences_all(hosted: Hosted, by: str) -> None:
    before, other = hosted.synced, hosted.joined()
    other.append("more")
    hosted.files.arm()
    with pytest.raises(StorageError, match="sync failed"):
        hosted.log.flush()
    for each in (hosted.guest, other, hosted.joined()):
        for code in ("log().append(b'x')", "log().flush()", "store.flush()", "log().append_batch([b'x'])"):
            assert errno_of(each, code) == errno.ENOSPC, code
    with pytest.raises(StorageError, match="fenced"):
        hosted.log.append(b"no more")
    assert (hosted.synced, hosted.shared.failed) == (before, errno.ENOSPC)


def test_S2_a_sync_of_another_process_that_fails_fences_the_host(hosted: Hosted) -> None:
    hosted.by_log_only()
    before, other = hosted.synced, hosted.joined()
    other.append("more")
    hosted.guest.run("files.arm()")
    assert errno_of(hosted.guest, "log().flush()") == errno.EDQUOT
    for each in (hosted.guest, other):
        assert errno_of(each, "log().append(b'x')") == errno.EDQUOT
        assert errno_of(each, "log().flush()") == errno.EDQUOT
    with pytest.raises(StorageError, match=os.strerror(errno.EDQUOT)):
        hosted.log.flush()
    with pytest.raises(StorageError, match=os.strerror(errno.EDQUOT)):
        hosted.log.append(b"no more")
    assert hosted.synced == before


@pytest.mark.parametrize("first", ["append", "append_batch", "flush"])
def test_S2_all_are_fenced_by_one_that_dies_before_it_tells(hosted: Hosted, first: str) -> None:
    """What the shared file says is enough."""
    hosted.by_log_only()
    hosted.log.append(b"so that the host's tail is open")
    before, other = hosted.synced, hosted.joined()
    other.append("more")
    end = hosted.log.end_offset
    hosted.guest.append("and the last one's")
    tail = "guest().tail.native"
    hosted.guest.run(
        f"files.arm(); from segstore._native import seg_tail_flush as f; f({tail}.address, {end})"
    )
    hosted.guest.kill()
    assert hosted.shared.failed == errno.EDQUOT
    assert errno_of(other, "log().append(b'x')") == errno.EDQUOT
    assert errno_of(other, "log().flush()") == errno.EDQUOT
    calls = {"append": hosted.log.append, "append_batch": lambda value: hosted.log.append_batch([value])}
    with pytest.raises(StorageError, match=os.strerror(errno.EDQUOT)):
        calls[first](b"no more") if first in calls else hosted.log.flush()
    assert hosted.log.end_offset == end + 1
    assert hosted.synced == before


def test_S2_a_fence_is_told_without_a_host(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", config=QUICK, faulty=True) as (host, guest, other):
        for each in (host, guest, other):
            each.append("x")
        host.run("log().flush()")
        guest.append("not durable")
        host.kill()
        guest.run("files.arm()")
        for each in (guest, other):
            for code in ("log().flush()", "log().append(b'x')", "log().append_batch([b'x'])"):
                assert errno_of(each, code) == errno.EDQUOT, code


def test_S2_the_fence_lasts_until_the_store_is_opened_anew(hosted: Hosted) -> None:
    hosted.by_log_only()
    hosted.guest.run("files.arm()")
    assert errno_of(hosted.guest, "log().flush()") == errno.EDQUOT
    with pytest.raises(StorageError):
        hosted.store.close()
    assert errno_of(hosted.guest, "log().append(b'x')") == errno.EDQUOT
    with MemberProcess(hosted.path, True) as heir:
        heir.opened()
        heir.run("log().append(b'more')")
        end = hosted.guest.append("more") + 1
        hosted.guest.run("log().flush()")
        assert hosted.guest.run(SYNCED) == end == heir.run(END)


# --- S3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("way", ["by C", "by Python"])
def test_S3_the_host_writes_again_what_a_dead_process_has_synced(
    hosted: Hosted, way: str, damaged: bool
) -> None:
    hosted.by_log_only()
    hosted.kill_within()
    if way == "by Python":
        hosted.flusher.names_changed()
    before, data = hosted.shared.synced, hosted.segment.read_bytes()
    if damaged:
        with hosted.segment.open("r+b") as file:
            file.seek(len(data) - 1)
            file.write(bytes([data[-1] ^ 1]))
        with pytest.raises(StorageError) as raised:
            hosted.log.flush()
        assert (raised.value.errno, hosted.shared.failed, hosted.synced) == (errno.EIO, errno.EIO, before)
        hosted.segment.write_bytes(data)
    else:
        hosted.log.flush()
        assert hosted.is_written_again
        assert hosted.segment.read_bytes() == data
        assert (hosted.synced, hosted.shared.sync_from) == (hosted.log.end_offset, -1)
        os.utime(hosted.segment, ns=(0, 0))
        hosted.log.flush()
        assert not hosted.is_written_again


def test_S3_a_guest_writes_again_what_a_dead_process_has_synced(hosted: Hosted) -> None:
    hosted.by_log_only()
    hosted.kill_within()
    other = hosted.joined()
    other.run("log().flush()")
    assert hosted.is_written_again
    assert (hosted.synced, hosted.shared.sync_from) == (hosted.log.end_offset, -1)


def test_S3_an_interrupt_within_a_sync_of_the_hosts_is_as_a_death(hosted: Hosted) -> None:
    """Nobody knows what the kernel has told."""
    hosted.by_log_only()
    hosted.flusher.names_changed()
    before, end = hosted.synced, hosted.log.end_offset
    hosted.files.fault = KeyboardInterrupt()
    hosted.files.arm()
    with pytest.raises(KeyboardInterrupt):
        hosted.log.flush()
    assert (hosted.synced, hosted.shared.sync_from, hosted.shared.failed) == (before, end, 0)
    os.utime(hosted.segment, ns=(0, 0))
    hosted.log.flush()
    assert hosted.is_written_again
    assert (hosted.synced, hosted.shared.sync_from) == (end, -1)


def test_S3_the_next_host_writes_again_what_the_last_one_has_synced(store_dir: Path) -> None:
    with members(store_dir, True, True, faulty=True) as (host, heir):
        host.append("x")
        heir.append("y")
        (segment,) = store_dir.glob("t-0/*.log")
        host.begin("files.fault = lambda *_: os.kill(os.getpid(), 9); files.arm(); log().flush()")
        host.await_death()
        os.utime(segment, ns=(0, 0))
        heir.run("log().flush()")
        assert heir.run("store.role") == "host"
        assert segment.stat().st_mtime_ns != 0
        assert heir.run(SYNCED) == 2


# --- flushes of guests ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["log().flush()", "store.flush()"])
def test_a_guest_flushes_a_log(hosted: Hosted, code: str) -> None:
    hosted.by_log_only()
    hosted.guest.run(code)
    assert hosted.synced == hosted.log.end_offset


def test_a_guest_that_has_never_appended_flushes_a_log(hosted: Hosted) -> None:
    hosted.by_log_only()
    other = hosted.joined()
    other.run(f"{COUNT}; log().flush()")
    assert other.run("files.hits") == 1
    assert hosted.synced == hosted.log.end_offset


APPENDS = {
    "a record": "log().append(b'x')",
    "a list": "log().append_batch([b'x'] * 3)",
    "compressed": "log().append_batch([b'x'] * 3, compression='gzip')",
    "of a producer": "p.send('t', b'x', partition=0).get(30)",
    "more than 4 MiB": "log().append_batch([bytes(100)] * 60_000)",
}


@pytest.mark.parametrize("how", APPENDS)
def test_flush_messages_of_a_guest(store_dir: Path, how: str) -> None:
    with members(store_dir, True, "guest", topic={"flush.messages": 1}, faulty=True) as (_, guest):
        guest.append("first")
        guest.run("p = segstore.Producer(store, linger_ms=0)")
        guest.run(COUNT)
        for n in range(1, 4):
            guest.run(APPENDS[how])
            assert guest.run(SYNCED) == guest.run(END) > n
            if how != "more than 4 MiB":  # which the host appends
                assert guest.run("files.hits") == n
        guest.run("p.close()")


def test_flush_messages_count_what_all_have_appended(store_dir: Path) -> None:
    with members(store_dir, True, "guest", topic={"flush.messages": 4}) as (host, guest):
        seen = []
        for member in (host, guest, host, guest, guest, host, guest):
            member.append("x")
            seen.append(guest.run(SYNCED))
        assert seen == [0, 0, 0, 4, 4, 4, 4]


def test_a_sync_that_fails_within_an_append_of_a_guest(store_dir: Path) -> None:
    with members(store_dir, True, "guest", topic={"flush.messages": 1}, faulty=True) as (host, guest):
        guest.append("x")
        guest.run("files.arm()")
        assert errno_of(guest, "log().append(b'y')") == errno.EDQUOT
        assert guest.run(SYNCED) == 1
        with pytest.raises(MemberError, match=os.strerror(errno.EDQUOT)):
            host.run("log().flush()")
        for each in (guest, host):
            each.kill()


def test_flush_ms_of_a_guest(store_dir: Path) -> None:
    with members(store_dir, True, "guest", topic={"flush.ms": 50}) as (_, guest):
        for n in range(1, 4):
            guest.append("x")
            until(lambda n=n: guest.run(SYNCED) == n)


def test_flush_ms_of_a_guest_waits_for_the_next_host(store_dir: Path) -> None:
    topic = {"flush.ms": 50, "segment.bytes": 1000}
    with members(store_dir, True, "guest", config=QUICK, topic=topic) as (host, guest):
        host.append("x")
        guest.run("log().end_offset")
        host.stop()  # no flush behind the roll
        guest.begin("log().append(b'y' * 920)")
        host.go_on()
        guest.result()
        host.run("side.partition('t', 0).flusher.names_changed()")
        guest.append("z")
        host.kill()
        guest.run("time.sleep(1)")
        with MemberProcess(store_dir, True) as heir:
            heir.opened()
            until(lambda: guest.run(SYNCED) == 3)
            guest.close()


def test_a_flush_of_a_guest_reaches_over_a_roll(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", topic={"segment.bytes": 1000}) as (host, guest, other):
        for n in range(1, 30):
            (guest, other)[n % 3 == 0].append("x" * 300)
            (guest, other)[n % 2].run("log().flush()")
            assert guest.run(SYNCED) == n
        assert len(list(store_dir.glob("t-0/*.log"))) > 8
        assert host.run("side.partition('t', 0).flusher._sealed == []")


def test_a_guest_needs_no_host_for_what_it_can_sync_itself(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", "guest", config=QUICK) as (host, guest, other, third):
        guest.append("x")
        other.append("x")
        host.run("log().flush()")
        guest.append("y")
        host.kill()
        other.run("log().flush()")
        assert other.run(SYNCED) == 3
        guest.append("z")
        third.run("log().flush()")  # it has not appended before
        assert guest.run(SYNCED) == 4
        guest.run("log().flush(); store.flush()")
        with MemberProcess(store_dir, True) as heir:
            heir.opened()
            guest.close()
            other.close()
            third.close()


@pytest.mark.parametrize("code", ["log().flush()", "store.flush()"])
def test_a_flush_that_needs_a_host_says_that_there_is_none(store_dir: Path, code: str) -> None:
    with members(store_dir, True, "guest", config=QUICK) as (host, guest):
        host.append("x")
        host.run("log().flush()")
        guest.append("y")
        host.run("side.partition('t', 0).flusher.names_changed()")
        host.kill()
        with pytest.raises(MemberError) as raised:
            guest.run(code)
        assert raised.value.kind == "HostUnavailableError"
        assert guest.run(SYNCED) == 1
        assert guest.append("z") == 2
        with MemberProcess(store_dir, True) as heir:
            heir.opened()
            guest.run(code)
            assert guest.run(SYNCED) == 3
            guest.close()


def test_a_guest_makes_durable_what_it_can_when_it_closes(hosted: Hosted) -> None:
    hosted.by_log_only()
    hosted.guest.close()
    assert hosted.synced == hosted.log.end_offset
    other = hosted.joined()
    other.append("more")
    hosted.flusher.names_changed()
    other.close()  # the host does the rest
    assert hosted.synced == hosted.log.end_offset - 1
    hosted.log.flush()
    assert hosted.synced == hosted.log.end_offset
