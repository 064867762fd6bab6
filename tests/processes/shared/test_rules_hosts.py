"""Promise: a shared store has one host at a time, who is excluded by every other writer and excludes each of
them; the first member that runs is the next one: rules H1 to H4.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from shared_members import SMALL, MemberProcess, SharedWords, members
from stores import seen_values, values
from waiting import until

import segstore
from segstore.errors import HostUnavailableError, StoreLockedError, UnsupportedFormatError
from segstore.storage.meta import store_format
from segstore.storage.store import writer

pytestmark = pytest.mark.kind("members of a shared store")


def hosts(several: list[MemberProcess]) -> list[MemberProcess]:
    return [each for each in several if each.run("store.role") == "host"]


def next_host(several: list[MemberProcess]) -> MemberProcess:
    """Wait until one of these is the host, and only one."""
    (found,) = until(lambda: hosts(several))
    return found


# --- H1 -------------------------------------------------------------------------------------------


@contextmanager
def locked_as_by_a_broker(path: Path) -> Iterator[None]:
    """Hold `.lock` as Kafka does: by a POSIX lock of another process."""
    reading, writing = os.pipe()
    telling, told = os.pipe()
    pid = os.fork()
    if not pid:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(told, b"x")
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    assert os.read(telling, 1)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(pid, 0)
        os.close(telling)
        os.close(told)


def test_H1_a_host_is_excluded_by_a_writer_and_by_a_broker_s_lock(store_dir: Path) -> None:
    with MemberProcess(store_dir, False) as plain:
        plain.opened()
        with pytest.raises(StoreLockedError):
            segstore.open(store_dir, shared=True)
        with pytest.raises(HostUnavailableError):
            segstore.open(store_dir, shared="guest")
    with locked_as_by_a_broker(store_dir / ".lock"), pytest.raises(StoreLockedError):
        segstore.open(store_dir, shared=True)
    with segstore.open(store_dir, shared=True) as store:
        assert store.role == "host"


def test_H1_a_host_excludes_writers_and_brokers_and_no_member(store_dir: Path) -> None:
    with members(store_dir, True, "guest") as (host, guest):
        with pytest.raises(StoreLockedError) as caught:
            segstore.open(store_dir)
        assert caught.value.pid == host.pid
        fd = os.open(store_dir / ".lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as a broker
        os.close(fd)
        assert host.append("a") == 0
        assert guest.append("b") == 1
        with segstore.open(store_dir, shared=True) as third:
            assert third.role == "guest"
            assert third.partition("t").append(b"c") == 2


def test_H1_a_member_that_has_become_host_excludes_writers_and_brokers_too(store_dir: Path) -> None:
    with members(store_dir, True, True) as (host, other):
        host.append("a")
        host.kill()
        assert next_host([other]) is other
        with pytest.raises(StoreLockedError):
            segstore.open(store_dir)
        fd = os.open(store_dir / ".lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
        assert other.append("b") == 1


# --- H2 -------------------------------------------------------------------------------------------

ENDS = {"is killed": MemberProcess.kill, "closes": MemberProcess.close}


@pytest.mark.parametrize("end", ENDS)
def test_H2_one_after_the_other_is_host_and_appends_go_on(end: str, store_dir: Path) -> None:
    with members(store_dir, True, True, True, True, "guest") as several:
        *left, guest = several
        at, host = 0, left[0]
        while True:
            assert hosts([*left, guest]) == [host]
            for each in [*left, guest]:
                assert each.append(str(at)) == at
                at += 1
            guest.run("[log().append(b'x' * 100) for _ in range(20)]")
            at += 20
            left.remove(host)
            ENDS[end](host)
            if not left:
                break
            host = next_host(left)
            assert guest.run("until(lambda: store.host_pid)") == host.pid
        found = seen_values(store_dir)
        assert len(found) == at
        assert [value for value in found if value != b"x" * 100] == [
            b"%d" % n for n in (0, 1, 2, 3, 4, 25, 26, 27, 28, 49, 50, 51, 72, 73)
        ]


def test_H2_a_stopped_member_holds_up_nobody_and_is_a_guest_when_it_goes_on(store_dir: Path) -> None:
    with members(store_dir, True, True, True) as (host, stopped, other):
        host.append("a")
        stopped.append("b")
        stopped.stop()
        host.kill()
        assert next_host([other]) is other
        assert other.append("c") == 2
        stopped.go_on()
        assert stopped.append("d") == 3
        assert stopped.run("(store.role, store.host_pid)") == ["guest", other.pid]
        other.kill()  # and it can be host still
        assert next_host([stopped]) is stopped
        assert stopped.append("e") == 4
        assert seen_values(store_dir) == [b"a", b"b", b"c", b"d", b"e"]


def test_H2_a_member_that_may_not_be_host_never_is(store_dir: Path) -> None:
    with members(store_dir, True, "guest") as (host, guest):
        words = SharedWords(store_dir)
        host.append("a")
        guest.append("b")
        host.kill()
        assert guest.append("c") == 2  # it needs nobody for that
        assert guest.run("store.role") == "guest"
        assert guest.run("(store.host_pid, threading.active_count())") == [0, 1]
        with segstore.open(store_dir, shared=True) as store:
            assert store.role == "host"
            assert store.partition("t").append(b"d") == 3
            assert guest.append("e") == 4
            assert words.header.hosts == 2


def test_H2_a_host_that_closes_leaves_a_guest_s_logs_open(store_dir: Path) -> None:
    """It was a crash in C: readers of the closing process looked at the end that it had just let go of."""
    with members(store_dir, True, "guest", partitions=3) as (host, guest):
        words = SharedWords(store_dir)
        for n in range(3):
            host.append("a", n)
            guest.append("b", n)
        host.close()
        assert [words.log(number).is_open for number in words.numbers()] == [True] * 3
        assert [guest.append("c", n) for n in range(3)] == [2] * 3


@pytest.mark.parametrize("needed", ["by nobody", "by itself", "by itself and then by a guest"])
def test_H2_a_host_that_was_a_guest_closes_the_store_with_all_that_is_in_it(
    needed: str, store_dir: Path
) -> None:
    """A log that the new host's Python had not needed was published with the end that the dead one knew."""
    with members(store_dir, True, True, partitions=3) as (host, other):
        host.append("a")
        for n in range(3):
            other.append("b", n)
        host.kill()
        assert next_host([other]) is other
        other.append("c")
        other.append("d", 1)
        if needed != "by nobody":
            other.run("store.flush()")
        if "guest" in needed:
            with MemberProcess(store_dir, "guest") as guest:
                guest.opened().append("e", 2)
    found = [[b"a", b"b", b"c"], [b"b", b"d"], [b"b"] + [b"e"] * ("guest" in needed)]
    assert list(segstore.check(store_dir)) == []
    for mode in ("r", "rw"):
        with segstore.open(store_dir, mode) as store:
            assert [values(store.partition("t", n)) for n in range(3)] == found
            assert store.recovered == ()


# --- H3 -------------------------------------------------------------------------------------------


def test_H3_who_does_not_share_gives_the_lock_back_while_a_member_lives(store_dir: Path) -> None:
    with members(store_dir, True, "guest") as (host, guest):
        host.append("a")
        guest.append("b")
        host.kill()
        before = {path: path.stat().st_mtime_ns for path in store_dir.rglob("*") if path.name != ".lock"}
        with pytest.raises(StoreLockedError) as caught:
            segstore.open(store_dir)
        assert "is shared by another process" in str(caught.value)
        assert caught.value.shared
        assert {path: path.stat().st_mtime_ns for path in before} == before
        fd = os.open(store_dir / ".lock", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it
        os.close(fd)
        assert guest.append("c") == 2
        with segstore.open(store_dir, shared=True) as host_again:
            assert host_again.partition("t").append(b"d") == 3
            assert guest.append("e") == 4
    with segstore.open(store_dir) as alone:
        assert values(alone.partition("t")) == [b"a", b"b", b"c", b"d", b"e"]


# --- H4 -------------------------------------------------------------------------------------------


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have this process know format 1 only, as segstore 0.2 does."""
    lines = {1: store_format._LINES[1]}

    @contextmanager
    def as_older() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(store_format, "SHARED_FORMAT", 1)
            patched.setattr(store_format, "_LINES", lines)
            patched.setattr(writer, "has_living_members", lambda *_: False)
            yield

    return as_older


def test_H4_an_older_segstore_refuses_a_store_as_long_as_it_is_shared(store_dir: Path, older: Any) -> None:
    with members(store_dir, True, True, "guest") as (host, other, guest):
        guest.append("a")
        refused(store_dir, older, "r")
        host.kill()
        next_host([other])
        refused(store_dir, older, "r")
        other.kill()
        refused(store_dir, older)  # between two hosts
        assert guest.append("b") == 1
    refused(store_dir, older)  # the last one was a guest, and no host has closed the store
    with MemberProcess(store_dir, True, SMALL) as last:
        last.opened().append("c")
    with older(), segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"a", b"b", b"c"]


def refused(root: Path, older: Any, *modes: str) -> None:
    """While a host lives, an older writer does not even get the lock."""
    for mode in modes or ("rw", "r"):
        with older(), pytest.raises(UnsupportedFormatError) as caught:
            segstore.open(root, mode)
        assert (caught.value.format, caught.value.needs) == (2, "0.3.0")


def test_H4_behind_a_kill_of_all_the_next_writer_alone_has_format_1_again(
    store_dir: Path, older: Any
) -> None:
    with members(store_dir, True, "guest") as several:
        several[1].append("a")
        for each in several:
            each.kill()
        refused(store_dir, older)
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"a"]
    with older(), segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"a"]


# --- what a takeover finds --------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["BEFORE", "HALF", "BEHIND"])
def test_H2_a_host_that_dies_within_its_python_s_write_leaves_nothing(
    at: str, store_dir: Path, halting: Path
) -> None:
    """Its Python writes while the log is closed: nobody but the next host cuts what it has left."""
    with members(store_dir, True, "guest", preload=halting) as (host, guest):
        words = SharedWords(store_dir)
        host.append("a")
        guest.append("b")
        before = words.log()
        host.run(f"halt(WRITE, {at}, signal.SIGKILL)")
        host.begin("log().append_batch([b'x' * 4000] * 2000)")  # more than C takes at once
        host.await_death()
        guest.begin("log().append(b'c')")
        with MemberProcess(store_dir, True, SMALL) as again:
            again.opened()
            assert guest.result() == 2
            assert words.log().position == before.position + 69
            assert again.append("d") == 3
            assert seen_values(store_dir) == [b"a", b"b", b"c", b"d"]
            size = (store_dir / "t-0" / f"{words.log().base_offset:020}.log").stat().st_size
            assert size == words.log().position
