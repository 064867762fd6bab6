"""Promise: a process that is stopped with a log's lock holds up the others for `shared.stopped.ms`, and what
it does when it goes on, or dies, changes nothing of what they have: rules A1 to A5.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from shared_members import SMALL, MemberProcess, SharedWords, members
from stores import logs, seen_values
from waiting import until

import segstore
from segstore._native import lib

pytestmark = pytest.mark.kind("members of a shared store")

RECORD = 69
"""Bytes of a batch of one record whose value is one byte."""
ONE = {
    "a record": "log().append(b'S' * 300)",
    "batches": "log().append_batch([b'S' * 9] * 9, batch_bytes=80)[0]",
}


def each_ends_where_the_next_begins(root: Path) -> None:
    """No byte lies behind the end of any segment: what a recovery or a broker finds is what was appended."""
    until(lambda: not SharedWords(root).log().sealed)
    words = SharedWords(root).log()
    files = logs(root)
    assert files[-1].stat().st_size == words.position
    assert int(files[-1].stem) == words.base_offset
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        assert sum(each.stat().st_size for each in files) == log.size


# --- A1 -------------------------------------------------------------------------------------------


def test_A1_without_a_host_nobody_is_fenced(store_dir: Path, halting: Path) -> None:
    with members(store_dir, True, "guest", "guest", preload=halting) as (host, stopped, waits):
        words = SharedWords(store_dir)
        stopped.append("a")
        waits.append("b")
        stopped.run("halt(WRITE)")
        stopped.begin("log().append(b'c')")
        stopped.await_stop()
        host.kill()
        waits.begin("log().append(b'd')")
        asks = words.file.member(waits.slot)
        until(lambda: asks.request & 3 == lib.SEG_ASKED and asks.asks == lib.SEG_ASKS_AWAY)
        assert words.log()[:5] == (stopped.slot, lib.SEG_OF_GUEST, True, 0, 0)
        with MemberProcess(store_dir, True, SMALL) as next_one:
            next_one.opened()
            assert waits.result() == 2
            assert words.log().aways == 1
            stopped.go_on()
            assert stopped.result() == 3
            each_ends_where_the_next_begins(store_dir)
    assert seen_values(store_dir) == [b"a", b"b", b"d", b"c"]


def test_A1_the_host_s_own_application_is_fenced_as_a_guest_is(store_dir: Path) -> None:
    with members(store_dir, True, "guest") as (host, guest):
        words = SharedWords(store_dir)
        host.append("a")
        host.run(
            "of = side.partition('t', 0).tail.native.c.share; at = ffi.addressof(of.log, 'lock');"
            "seen = ffi.new('uint64_t *');"
            "lib.seg_lock_take(of.member, at, lib.SEG_OF_APPENDS, 0, -1, seen)"
        )
        assert (words.log().owner, words.log().who) == (host.slot, lib.SEG_OF_APPENDS)
        assert guest.append("b") == 1
        assert words.log().aways == 1
        assert host.run("lib.seg_lock_leave(of.member, at, lib.SEG_OF_APPENDS)") == 0
        assert host.append("c") == 2
        assert guest.append("d") == 3
    assert seen_values(store_dir) == [b"a", b"b", b"c", b"d"]


def test_A1_a_host_is_never_fenced(store_dir: Path) -> None:
    config = {"shared.stopped.ms": 50, "shared.answer.ms": 700}
    with members(store_dir, True, True, "guest", config=config, partitions=2) as (host, other, guest):
        words = SharedWords(store_dir)
        for n in range(2):
            host.append("a", n)
            guest.append("b", n)
        host.run(
            "of = side.partition('t', 0).tail.native.c.share; at = ffi.addressof(of.log, 'lock');"
            "seen = ffi.new('uint64_t *');"
            "lib.seg_lock_take(of.member, at, lib.SEG_OF_HOST, 0, -1, seen)"
        )
        host.stop()
        told = guest.run(
            "try:\n  log().append(b'x')\nexcept segstore.HostUnavailableError as error:\n"
            "  told = [error.pid, error.alive]\ntold"
        )
        assert told == [host.pid, True]
        assert [words.log(n).aways for n in words.numbers()] == [0, 0]
        assert guest.append("c", 1) == 2  # of other logs nobody waits
        host.go_on()
        assert host.run("lib.seg_lock_leave(of.member, at, lib.SEG_OF_HOST)") == 1
        assert guest.append("c") == 2
        assert other.append("d") == 3


# --- A2: what a host that dies within a fence leaves ------------------------------------------------

BEGUN = """
of = side.partition("t", 0).tail.native.c.share
word = of.log.lock & ~0x80000000
assert word
note = of.log.sealed[0]
note.generation = (1 << 63) - 1
note.owner = word
"""
TAKEN = BEGUN + "of.log.lock = lib.seg_lock_word(of.member, lib.SEG_OF_HOST) | 0x80000000\n"
LEFT = {"noted": BEGUN, "noted and taken": TAKEN}
DIES = "os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.parametrize("then", ["goes on", "dies", "goes on before the next host comes"])
@pytest.mark.parametrize("at", ["BEFORE", "HALF", "BEHIND"])
@pytest.mark.parametrize("left", LEFT)
def test_A2_the_next_host_ends_what_a_dead_one_has_begun(
    left: str, at: str, then: str, store_dir: Path, halting: Path
) -> None:
    with members(store_dir, True, "guest", "guest", preload=halting) as (host, stopped, waits):
        words = SharedWords(store_dir)
        stopped.append("a")
        waits.append("b")
        stopped.run(f"halt(WRITE, {at})")
        stopped.begin("log().append(b'S' * 300)")
        stopped.await_stop()
        host.begin(LEFT[left] + DIES)
        host.await_death()
        waits.begin("log().append(b'w')")
        is_early = "before" in then
        if is_early:
            stopped.go_on()
            until(lambda: words.log().end_offset >= 3)  # once, from there
        with MemberProcess(store_dir, True, SMALL) as next_one:
            next_one.opened()
            if then == "goes on":
                assert waits.result() == 2
                assert words.log().aways >= 1
                stopped.go_on()
                assert stopped.result() == 3
            elif then == "dies":
                assert waits.result() == 2
                stopped.kill()
            else:
                assert sorted([waits.result(), stopped.result()]) == [2, 3]
                stopped.append("s")  # only with its next append it sees that it has a sealed end
            last = next_one.append("z")
            each_ends_where_the_next_begins(store_dir)
            found = seen_values(store_dir)
            assert last == len(found) - 1
            assert sorted(found) == sorted(
                [
                    *(b"a", b"b", b"w", b"z"),
                    *([b"S" * 300] if then != "dies" else []),
                    *([b"s"] if is_early else []),
                ]
            )


# --- A3, A4, A5 -------------------------------------------------------------------------------------

PLACES = {
    "behind the lock": "halt_at_records()",
    "before its write": "halt(WRITE, BEFORE)",
    "within its write": "halt(WRITE, HALF)",
    "behind its write": "halt(WRITE, BEHIND)",
}


@pytest.mark.parametrize("then", ["goes on", "dies"])
@pytest.mark.parametrize("what", ONE)
@pytest.mark.parametrize("place", PLACES)
def test_A4_A5_what_a_fenced_process_has_written_is_nobody_s(
    place: str, what: str, then: str, store_dir: Path, halting: Path
) -> None:
    with members(store_dir, True, "guest", "guest", preload=halting) as (_, stopped, waits):
        words = SharedWords(store_dir)
        stopped.run("high_seats()")
        before = [b"a", b"b"]
        waits.append("a")
        stopped.append("b")
        first = logs(store_dir)[-1]
        inode, position = first.stat().st_ino, words.log().position
        stopped.run(PLACES[place])
        stopped.begin(ONE[what])
        stopped.await_stop()
        assert words.log().owner == stopped.slot
        at = len(before)
        assert waits.append("w") == at
        assert words.log().sealed == (stopped.slot,)
        assert words.log().base_offset == at
        assert first.stat().st_ino == inode
        if then == "goes on":
            stopped.go_on()
            assert stopped.result() == at + 1
            again = [b"S" * 300] if what == "a record" else [b"S" * 9] * 9
        else:
            stopped.kill()
            again = []
        assert waits.append("z") == at + 1 + len(again)
        until(lambda: words.log().sealed == ())
        assert first.stat().st_size == position
        each_ends_where_the_next_begins(store_dir)
        assert seen_values(store_dir) == [*before, b"w", *again, b"z"]


@pytest.mark.parametrize("then", ["goes on", "dies"])
@pytest.mark.parametrize("place", PLACES)
def test_A3_an_empty_segment_is_replaced_by_other_files_of_the_same_name(
    place: str, then: str, store_dir: Path, halting: Path
) -> None:
    with members(store_dir, True, "guest", "guest", preload=halting) as (host, stopped, waits):
        words = SharedWords(store_dir)
        stopped.run("high_seats()")
        host.run("log()")
        stopped.run("share(); guest()._bind()")
        (file,) = logs(store_dir)
        inode = file.stat().st_ino
        stopped.run(PLACES[place] if place != "behind the lock" else "halt(WRITE, BEFORE)")
        stopped.begin("log().append(b'S' * 300)")
        stopped.await_stop()
        assert words.log().owner == stopped.slot
        assert words.log().end_offset == 0
        assert waits.append("w") == 0
        assert words.log().base_offset == 0
        assert file.stat().st_ino != inode
        if then == "goes on":
            stopped.go_on()
            assert stopped.result() == 1
        else:
            stopped.kill()
        again = [b"S" * 300] * (then == "goes on")
        assert waits.append("z") == 1 + len(again)
        each_ends_where_the_next_begins(store_dir)
        assert seen_values(store_dir) == [b"w", *again, b"z"]
        assert logs(store_dir) == [file]


def test_A4_two_fences_in_a_row(store_dir: Path, halting: Path) -> None:
    kinds = [True, "guest", "guest", "guest"]
    with members(store_dir, *kinds, preload=halting) as (_, one, two, three):
        words = SharedWords(store_dir)
        for each in (one, two, three):
            each.append("a")
        one.run("halt(WRITE, HALF)")
        one.begin("log().append(b'1' * 200)")
        one.await_stop()
        two.run("halt(WRITE, BEHIND, nth=1)")
        two.begin("log().append(b'2' * 200)")
        two.await_stop()
        assert words.log().sealed == (one.slot,)
        assert three.append("3") == 3
        assert sorted(words.log().sealed) == sorted((one.slot, two.slot))
        assert words.log().aways == 2
        one.go_on()
        assert one.result() == 4
        two.go_on()
        assert two.result() == 5
        assert three.append("z") == 6
        each_ends_where_the_next_begins(store_dir)
        assert seen_values(store_dir) == [b"a"] * 3 + [b"3", b"1" * 200, b"2" * 200, b"z"]


def test_A4_one_process_is_fenced_again_and_again(store_dir: Path, halting: Path) -> None:
    """More often than there are places on the list."""
    with members(store_dir, True, "guest", "guest", preload=halting) as (_, one, two):
        expected = []
        for _ in range(lib.SEG_SEALED + 2):
            one.append("a")
            one.run("halt(WRITE, HALF)")
            one.begin("log().append(b'1' * 200)")
            one.await_stop()
            two.append("b")
            one.go_on()
            one.result()
            expected += [b"a", b"b", b"1" * 200]
        assert SharedWords(store_dir).log().aways == lib.SEG_SEALED + 2
        each_ends_where_the_next_begins(store_dir)
        assert seen_values(store_dir) == expected


def test_A4_one_that_is_stopped_while_it_cuts_for_a_dead_one(store_dir: Path, halting: Path) -> None:
    """The trial's error: it took itself off the list without a cut, since it had not had that file open."""
    kinds = [True, "guest", "guest", "guest"]
    with members(store_dir, *kinds, preload=halting) as (_, dies, cuts, other):
        words = SharedWords(store_dir)
        for each in (dies, cuts, other):
            each.append("a")
        dies.run("halt(WRITE, BEHIND, signal.SIGKILL)")
        dies.begin("log().append_batch([bytes(100)] * 3, batch_bytes=80)")
        dies.await_death()
        cuts.run("halt(CUT, BEFORE)")
        cuts.begin("log().append(b'c')")
        cuts.await_stop()
        first, position = logs(store_dir)[0], words.log().position
        assert first.stat().st_size > position
        assert other.append("o") == 3
        cuts.go_on()
        assert cuts.result() == 4
        until(lambda: words.log().sealed == ())
        assert first.stat().st_size == position
        each_ends_where_the_next_begins(store_dir)
        assert seen_values(store_dir) == [b"a"] * 3 + [b"o", b"c"]


@pytest.mark.parametrize("place", ["behind the lock", "within its write"])
def test_A5_a_dead_one_s_file_is_cut_by_its_name_by_a_host_that_never_had_it(
    place: str, store_dir: Path, halting: Path
) -> None:
    kinds = [True, True, "guest", "guest"]
    with members(store_dir, *kinds, preload=halting) as (host, next_one, stopped, waits):
        words = SharedWords(store_dir)
        stopped.run("high_seats()")
        waits.append("a")
        stopped.append("b")
        stopped.run(PLACES[place])
        stopped.begin("log().append(b'S' * 300)")
        stopped.await_stop()
        waits.append("w")
        host.kill()
        first = logs(store_dir)[0]
        until(lambda: next_one.run("store.role") == "host")
        stopped.kill()
        assert next_one.run("log().append(b'n')") == 3
        until(lambda: words.log().sealed == ())
        assert first.stat().st_size == 2 * RECORD
        each_ends_where_the_next_begins(store_dir)
        assert seen_values(store_dir) == [b"a", b"b", b"w", b"n"]


def test_A5_a_sealed_segment_that_may_be_written_to_is_not_compacted(store_dir: Path, halting: Path) -> None:
    topic = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}
    with members(store_dir, True, "guest", "guest", preload=halting, topic=topic) as (host, stopped, waits):
        words = SharedWords(store_dir)
        keyed = "log().append(b'%s', key=b'k')"
        stopped.run(keyed % "a")
        waits.run(keyed % "b")
        stopped.run("halt(WRITE, HALF)")
        stopped.begin(keyed % ("S" * 300))
        stopped.await_stop()
        waits.run(keyed % "w")
        first = logs(store_dir)[0]
        inode = first.stat().st_ino
        host.run("store.sweep() and 0")
        assert words.log().sealed == (stopped.slot,)
        assert first.stat().st_ino == inode
        stopped.go_on()
        assert stopped.result() == 3
        host.run("store.sweep() and 0")
        each_ends_where_the_next_begins(store_dir)


# --- readers meanwhile ------------------------------------------------------------------------------


def test_A4_readers_see_nothing_vanish_and_nothing_of_what_is_cut(store_dir: Path, halting: Path) -> None:
    with members(store_dir, True, "guest", "guest", preload=halting) as (host, one, two):
        one.append("first")
        seen: list[bytes | None] = []
        wrong: list[object] = []
        done = threading.Event()

        def read() -> None:
            with segstore.open(store_dir, "r") as store:
                log = store.partition("t")
                while not done.is_set() or log.end_offset > len(seen):
                    found = [(each.offset, each.value) for each in log.read(len(seen))]
                    wrong.extend(o for n, (o, _) in enumerate(found) if o != len(seen) + n)
                    seen.extend(value for _, value in found)
                    again = [each.value for each in log.read(0)]
                    wrong.extend([again] if again[: len(seen)] != seen[: len(again)] else [])

        reading = threading.Thread(target=read)
        reading.start()
        try:
            for n, place in enumerate(["BEFORE", "HALF", "BEHIND"] * 2):
                one.run(f"halt(WRITE, {place})")
                one.begin(f"log().append(b'one {n}' * 50)")
                one.await_stop()
                two.append(f"two {n}")
                two.append(f"and {n}")
                host.append(f"host {n}")
                one.go_on()
                one.result()
        finally:
            done.set()
            reading.join()
        assert wrong == []
        assert seen == seen_values(store_dir)
        expected = [b"first"]
        for n in range(6):
            expected += [b"two %d" % n, b"and %d" % n, b"host %d" % n, b"one %d" % n * 50]
        assert [re.sub(rb"^(one \d)(\1)*$", rb"\1", each or b"") for each in seen] == [
            re.sub(rb"^(one \d)(\1)*$", rb"\1", each) for each in expected
        ]
