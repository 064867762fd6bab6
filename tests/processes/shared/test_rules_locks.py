"""Promise: the lock of a shared log is lost by a dead owner only, is held for a write and no longer, and
whoever waits for it can be interrupted: rules F4 and L1 to L7 (L2: tests of members, too).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_members import MemberError, MemberProcess, SharedWords, members
from stores import in_child, logs, seen_values
from waiting import until

import segstore
from segstore._native import ffi, lib

pytestmark = pytest.mark.kind("members of a shared store")

PATIENT = {"shared.stopped.ms": 600_000, "shared.answer.ms": 600_000}
"""Nobody is fenced."""
RECORD = 69
"""Bytes of a batch of one record whose value is one byte."""


def is_waited_for(words: SharedWords) -> bool:
    return bool(words.file.log(words.number()).lock & 0x80000000)


# --- F4 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o640])
def test_F4_the_mode_of_the_store_s_files_says_who_may_be_a_member(mode: int, store_dir: Path) -> None:
    """There is no other defence: who may write these files may write the logs."""
    before = os.umask(0o077)
    try:
        with segstore.open(store_dir, shared=True, file_mode=mode) as store:
            store.create_topic("t")
            store.partition("t").append(b"x")
            shared = [store_dir / ".segstore" / name for name in ("shared", "members", "ends")]
            for path in [*shared, *logs(store_dir)]:
                assert stat.S_IMODE(path.stat().st_mode) == mode, path
            assert as_stranger(*shared) == (["13"] * 3 if not mode & 0o007 else [])
    finally:
        os.umask(before)


def as_stranger(*paths: Path) -> list[str]:
    """Return the errnos with which a process of no group of the files' can't open them, to read."""
    if os.geteuid():
        pytest.skip("only root can be somebody else")
    for place in [*paths[0].parents][:-2]:
        place.chmod(stat.S_IMODE(place.stat().st_mode) | 0o011)

    def child(tell: Callable[[str], None]) -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for path in paths:
            try:
                os.close(os.open(path, os.O_RDONLY))
            except OSError as error:
                tell(str(error.errno))

    return in_child(child)[1]


# --- L1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [lib.SEG_OF_GUEST, lib.SEG_OF_APPENDS, lib.SEG_OF_HOST])
@pytest.mark.parametrize("slot", [0, 1, 63])
@pytest.mark.parametrize("incarnation", [0, 1, 0xFFFFFFFF])
def test_L1_the_word_has_the_owner_s_slot_thread_and_incarnation_and_a_bit_for_waiters(
    who: int, slot: int, incarnation: int
) -> None:
    member = ffi.new("seg_member *", {"slot": slot, "incarnation": incarnation})
    word = lib.seg_lock_word(member, who)
    assert word == incarnation << 32 | (slot << 2 | who) + 1
    assert not word & 0x80000000
    assert ((word & 0x7FFFFFFF) - 1) & 3 == who
    lock = ffi.new("uint64_t *", word | 0x80000000)
    assert lib.seg_lock_is_mine(member, lock, who)
    member.incarnation ^= 1
    assert not lib.seg_lock_is_mine(member, lock, who)
    assert lib.seg_lock_leave(member, lock, who) == 0
    assert lock[0] == word | 0x80000000  # another process had the slot before: its lock is not ours to leave


def test_L1_a_waiter_sleeps_at_the_low_half_and_is_woken_by_who_leaves(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", config=PATIENT) as (_, one, two):
        words = SharedWords(store_dir)
        one.append("a")
        two.append("b")
        two.run("side._members.c.look_ms = 3_600_000")  # it looks by itself in an hour
        assert one.run("lock()") == 0
        assert (words.log().owner, words.log().who, is_waited_for(words)) == (one.slot, 0, False)
        two.begin("log().append(b'c')")
        until(lambda: is_waited_for(words))
        until(two.sleeps)
        assert not two.is_done()
        assert one.run("unlock()") == 1
        assert two.result() == 2
        assert words.log().owner == -1


# --- L3 -------------------------------------------------------------------------------------------

KILLED = {
    "before its write": ("WRITE, BEFORE", 0),
    "within its write": ("WRITE, HALF", 1),
    "behind its write": ("WRITE, BEHIND", 1),
}


@pytest.mark.parametrize("appends", ["one", "two batches"])
@pytest.mark.parametrize("next_one", ["a guest", "a guest that has no files yet", "the host"])
@pytest.mark.parametrize("case", KILLED)
def test_L3_the_next_owner_cuts_what_a_dead_one_has_written(
    case: str, next_one: str, appends: str, store_dir: Path, halting: Path
) -> None:
    at, leaves = KILLED[case]
    with members(store_dir, True, "guest", "guest", preload=halting, config=PATIENT) as (host, dies, other):
        words = SharedWords(store_dir)
        dies.append("a")
        if next_one == "a guest":
            other.append("b")
        before = words.log()
        dies.run(f"halt({at}, signal.SIGKILL)")
        dies.begin(
            "log().append(bytes(1000))"
            if appends == "one"
            else "log().append_batch([bytes(300), bytes(300)], batch_bytes=200)"
        )
        dies.await_death()
        assert words.log()[4:] == before[4:]
        assert (words.log().owner, words.log().torn) == (dies.slot, 0)
        (file,) = logs(store_dir)
        assert (file.stat().st_size > before.position) == leaves
        assert (host if next_one == "the host" else other).append("z") == before.end_offset
        after = words.log()
        assert after.position == before.position + RECORD == file.stat().st_size
        assert (after.owner, after.torn, after.aways) == (-1, 0, 0)
        assert seen_values(store_dir) == [b"a", b"b", b"z"][: before.end_offset] + [b"z"] * (
            next_one != "a guest"
        ) or seen_values(store_dir) == [b"a", b"b", b"z"]


# --- L4 -------------------------------------------------------------------------------------------

STRACE = ("strace", "-f", "-qq", "-y", "-e", "trace=!getpid", "-o")
_CALL = re.compile(r"(?:\d+ +)?(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")


def between_marks(trace: Path) -> list[tuple[str, str]]:
    """Return the calls, and their arguments, of the thread that has asked for `getsid` twice, in between."""
    lines = trace.read_text(errors="replace").splitlines()
    marks = [at for at, line in enumerate(lines) if re.match(r"\d+ +getsid\(0\)", line)]
    thread = lines[marks[0]].split()[0]
    found = (
        _CALL.match(line)
        for line in lines[marks[0] + 1 : marks[1]]
        if line.split()[0] == thread and "resumed>" not in line
    )
    return [(call[2], call[3]) for call in found if call]


@needs_strace
@pytest.mark.parametrize("kind", ["guest", True])
def test_L4_an_append_is_a_write_and_a_wake_and_nothing_else(
    kind: bool | str, store_dir: Path, tmp_path: Path
) -> None:
    """No sync, no file that is opened, and no wait: with the log's lock, and without."""
    traced, trace = (*STRACE, str(tmp_path / "trace")), tmp_path / "trace"
    with MemberProcess(store_dir, True, PATIENT, before=traced if kind is True else ()) as host:
        host.opened().run("store.create_topic('t') and 0")
        with MemberProcess(store_dir, "guest", before=() if kind is True else traced) as guest:
            guest.opened()
            appends = host if kind is True else guest
            (guest if kind is True else host).append("before")
            appends.run("[log().append(b'x') for _ in range(3)]")
            appends.run("of = log(); os.getsid(0); [of.append(b'x') for _ in range(100)]; os.getsid(0)")
            appends.run("of = log(); [of.append_batch([b'x'] * 3) for _ in range(9)]")
    calls = between_marks(trace)
    counted = Counter(name for name, _ in calls)
    assert counted["pwrite64"] == 100
    assert set(counted) <= {"pwrite64", "futex"}, counted
    assert counted["futex"] <= 100
    assert {name for name, given in calls if name == "futex" and "FUTEX_WAKE" not in given} == set()


def test_L4_no_sync_is_made_with_the_lock(store_dir: Path, halting: Path) -> None:
    topic = {"flush.messages": 1}
    with members(store_dir, True, "guest", preload=halting, topic=topic, config=PATIENT) as (host, guest):
        words = SharedWords(store_dir)
        guest.append("a")
        guest.run("halt(SYNC)")
        guest.begin("log().append(b'b')")
        guest.await_stop()
        assert words.log().owner == -1
        assert words.log().end_offset == 2
        host.begin("log().append(b'c')")
        until(lambda: words.log().end_offset == 3)  # it need not be synced
        guest.go_on()
        assert guest.result() == 1
        assert host.result() == 2


# --- L5 -------------------------------------------------------------------------------------------

THREADS = """
def each(name):
    for i in range(50):
        log().append(b"%s %d" % (name, i))
threads = [threading.Thread(target=each, args=[b"%d-%d" % (os.getpid(), n)]) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_L5_threads_of_one_process_take_a_lock_of_their_own_first(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", config=PATIENT) as several:
        for each in several:
            each.begin(THREADS)
        for each in several:
            each.result()
        found = [value or b"" for value in seen_values(store_dir)]
        expected = [b"%d-%d %d" % (each.pid, n, i) for each in several for n in range(4) for i in range(50)]
        assert sorted(found) == sorted(expected)
        for each in several:
            for n in range(4):
                mine = [value for value in found if value.startswith(b"%d-%d " % (each.pid, n))]
                assert mine == [b"%d-%d %d" % (each.pid, n, i) for i in range(50)]


@pytest.mark.parametrize("kind", ["guest", True])
def test_L5_another_python_thread_runs_while_an_append_waits_for_a_stopped_process(
    kind: bool | str, store_dir: Path
) -> None:
    with members(store_dir, True, "guest", "guest", config=PATIENT, partitions=2) as (host, one, two):
        words, waits = SharedWords(store_dir), host if kind is True else two
        host.run("[log(n).append(b'a') for n in range(2)]")
        one.append("b")
        waits.append("c")
        waits.append("c", 1)
        first, second = words.numbers()
        number = first if words.log(first).end_offset == 3 else second
        other = first + second - number
        waits.run("threading.Thread(target=lambda: [log(1).append(b'x') for _ in range(200)]).start")
        one.run("lock()")
        one.stop()
        waits.begin(
            "threading.Timer(0, lambda: [(log(1).append(b'x'), time.sleep(0.001)) for _ in range(200)])"
            ".start(); log().append(b'd')"
        )
        until(lambda: bool(words.file.log(number).lock & 0x80000000))
        until(lambda: words.log(other).end_offset == 202)
        assert not waits.is_done()
        assert words.log(number).end_offset == 3
        one.go_on()
        assert one.run("unlock()") == 1
        assert waits.result() == 3


WAITERS = {
    "the first thread": "log().append(b'x')",
    "a thread behind another one": (
        "thread = threading.Thread(target=lambda: log().append(b'other'), daemon=True); thread.start();"
        "c = guest().tail.native.c; until(lambda: c.lock); log().append(b'x')"
    ),
    "an append of many": "log().append_batch([b'x'] * 5)",
    "an append with an expected offset": "log().append(b'x', expected_offset=2)",
}


@pytest.mark.parametrize("case", WAITERS)
def test_L5_a_signal_ends_the_wait_with_nothing_done(case: str, store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", config=PATIENT) as (_, one, two):
        words = SharedWords(store_dir)
        one.append("a")
        two.append("b")
        before = words.log()
        one.run("lock()")
        one.stop()
        two.begin(WAITERS[case])
        until(lambda: is_waited_for(words))
        until(two.sleeps)
        two.interrupt()
        with pytest.raises(MemberError) as caught:
            two.result()
        assert caught.value.kind == "KeyboardInterrupt"
        assert words.log()[2:] == before[2:]
        assert logs(store_dir)[-1].stat().st_size == before.position
        one.go_on()
        one.run("unlock()")
        others = 1 if "behind" in case else 0
        until(lambda: words.log().end_offset == 2 + others)
        assert two.append("c") == 2 + others
        assert one.append("d") == 3 + others
        assert seen_values(store_dir) == [b"a", b"b", *[b"other"] * others, b"c", b"d"]


# --- L6 -------------------------------------------------------------------------------------------


@needs_strace
def test_L6_no_member_writes_asynchronously(store_dir: Path, tmp_path: Path) -> None:
    """A dead process has no write under way. Everything that writes is tried: rolls, syncs, long appends."""
    trace = tmp_path / "trace"
    asynchronous = "trace=?io_uring_setup,?io_uring_enter,?io_setup,?io_submit,pwrite64,?pwritev"
    traced = ("strace", "-f", "-qq", "-e", asynchronous, "-o", f"{trace}.%d")
    topic, work = {"segment.bytes": 20_000, "flush.messages": 5}, []
    work += ["[log().append(b'x' * n) for n in range(300)]", "log().append_batch([b'x' * 100] * 50)"]
    work += ["store.flush()", "[log().append_batch([b'x'] * n) for n in range(1, 40)]"]
    host_s = tuple(part % 0 if "%d" in part else part for part in traced)
    with MemberProcess(store_dir, True, PATIENT, before=host_s) as host:
        host.opened().run(f"store.create_topic('t', config={topic!r}) and 0")
        guest_s = tuple(part % 1 if "%d" in part else part for part in traced)
        with MemberProcess(store_dir, "guest", before=guest_s) as guest:
            guest.opened()
            for each in work:
                for member in (host, guest):
                    member.run(f"{each} and 0")
    for number in range(2):
        seen = Counter(re.findall(r"^\d+ +(\w+)\(", Path(f"{trace}.{number}").read_text(), re.MULTILINE))
        assert seen["pwrite64"] > 300
        assert set(seen) <= {"pwrite64", "pwritev"}


# --- L7 -------------------------------------------------------------------------------------------

HOST_S_LOCK = """
of = side.partition("t", 0).tail.native.c.share
seen = ffi.new("uint64_t *")
lib.seg_lock_take(of.member, ffi.addressof(of.log, "lock"), lib.SEG_OF_HOST, 0, -1, seen)
"""


def test_L7_what_a_host_has_begun_only_the_next_host_ends(store_dir: Path) -> None:
    with members(store_dir, True, "guest") as (host, guest):
        words = SharedWords(store_dir)
        host.append("a")
        guest.append("b")
        host.run(HOST_S_LOCK)
        assert (words.log().owner, words.log().who) == (0, lib.SEG_OF_HOST)
        host.kill()
        guest.begin("log().append(b'c')")
        asks = words.file.member(1)
        until(lambda: asks.request & 3 == lib.SEG_ASKED)  # it leaves the lock to whoever is host
        assert (words.log().owner, words.log().who) == (0, lib.SEG_OF_HOST)
        assert not guest.is_done()
        with MemberProcess(store_dir, True) as next_host:
            next_host.opened()
            assert guest.result() == 2
            assert words.log().owner == -1
            assert next_host.append("d") == 3
            assert guest.append("e") == 4
    assert seen_values(store_dir) == [b"a", b"b", b"c", b"d", b"e"]


def test_L7_the_lock_of_a_dead_host_s_appends_is_taken_by_anybody(store_dir: Path, halting: Path) -> None:
    with members(store_dir, True, "guest", preload=halting) as (host, guest):
        words = SharedWords(store_dir)
        host.append("a")
        guest.append("b")
        host.run("halt(WRITE, HALF, signal.SIGKILL)")
        host.begin("log().append(b'c' * 100)")
        host.await_death()
        assert (words.log().owner, words.log().who) == (0, lib.SEG_OF_APPENDS)
        assert guest.append("c") == 2
        with MemberProcess(store_dir, True) as next_host:
            assert next_host.opened().append("d") == 3
