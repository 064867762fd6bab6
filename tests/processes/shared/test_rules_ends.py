"""Promise: the end of a shared log moves by one swap: a record is in the log whole or not at all, whatever
dies, stops or fails at which step: rules E1 to E4 (E5: tests of readers).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_members import SharedWords, members
from stores import logs, seen_values, values
from waiting import until

import segstore
from segstore._native import ffi, lib

pytestmark = pytest.mark.kind("members of a shared store")

PATIENT = {"shared.stopped.ms": 600_000, "shared.answer.ms": 600_000}
SOON = {"shared.stopped.ms": 200, "shared.answer.ms": 600_000}
RECORD = 69
"""Bytes of a batch of one record whose value is one byte."""


# --- E1 -------------------------------------------------------------------------------------------


def test_E1_all_of_an_end_changes_together(store_dir: Path) -> None:
    """Batches of one size: at each look position, offsets, base offset and generation belong together."""
    topic = {"segment.bytes": 100 * RECORD}
    with members(store_dir, True, "guest", "guest", topic=topic, config=PATIENT) as several:
        for each in several:
            each.append("x")
        words = SharedWords(store_dir)
        log, end = words.file.log(words.number()), ffi.new("seg_shared_end *")
        for each in several:
            each.begin("[log().append(b'x') for _ in range(1500)] and 0")
        looks, wrong, last, generations = 0, [], 0, {}
        while not all(each.is_done() for each in several):
            assert lib.seg_shared_now(log, end)
            now = end.end
            looks += 1
            if now.position != RECORD * (now.next_offset - now.base_offset) or now.next_offset < last:
                wrong.append((now.base_offset, now.position, now.next_offset))
            if generations.setdefault(end.generation, now.base_offset) != now.base_offset:
                wrong.append((end.generation, now.base_offset, generations[end.generation]))
            last = now.next_offset
        assert wrong == []
        assert looks > 100
        assert [each.result() for each in several] == [0] * 3
        assert words.log().end_offset == 3 + 3 * 1500
        assert len(logs(store_dir)) == -(-(3 + 3 * 1500) // 100)


def test_E1_each_member_fills_records_of_its_own(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", config=PATIENT) as several:
        words, seats = SharedWords(store_dir), {}
        for _ in range(3):
            for each in several:
                each.append("x")
                current = words.file.log(words.number()).current
                seat, which = current >> 8 & 0xFF, current & 0xFF
                seats.setdefault(each.pid, seat)
                assert seats[each.pid] == seat
                assert which in (0, 1)
                owner = words.file.log(words.number()).seats[seat]
                assert (owner - 1 & 0xFFFFFFFF) >> 2 == each.slot
        assert len(set(seats.values())) == len(several)


# --- E2: a death at each step -----------------------------------------------------------------------

STEPS = {
    "before the write": ("halt(WRITE, BEFORE, signal.SIGKILL)", False),
    "within the write": ("halt(WRITE, HALF, signal.SIGKILL)", False),
    "behind the write": ("halt(WRITE, BEHIND, signal.SIGKILL)", False),
    "with the lock, before a look": ("halt_at_records(signal.SIGKILL)", False),
    "stopped behind the write": ("halt(WRITE, BEHIND); 0", False),
    "behind the swap, before the wake": ("halt(WAKE, BEFORE, signal.SIGKILL)", True),
    "behind the wake": ("halt(WAKE, BEHIND, signal.SIGKILL)", True),
}


@pytest.mark.parametrize("kind", ["guest", True], ids=["of a guest", "of a host"])
@pytest.mark.parametrize("step", STEPS)
def test_E2_a_death_before_the_swap_has_changed_nothing_and_one_behind_it_has_appended(
    step: str, kind: bool | str, store_dir: Path, halting: Path
) -> None:
    code, is_there = STEPS[step]
    if kind is True and "halt_at_records" in code:
        pytest.skip("the host's first record lies in the log's first page")
    with members(store_dir, True, True, "guest", preload=halting, config=PATIENT) as (host, other, guest):
        words = SharedWords(store_dir)
        dies = host if kind is True else guest
        guest.run("high_seats()")
        other.append("a")
        dies.append("b")
        before = words.log()
        dies.run(code)
        dies.begin("log().append(b'S' * 100)")
        if code.endswith("; 0"):  # it is stopped there, and what follows is a store in memory
            dies.await_stop()
            dies.kill()
        dies.await_death()
        now = words.log()
        assert (now.end_offset, now.position > before.position) == (2 + is_there, is_there)
        assert now[5:8] == before[5:8]
        assert other.append("z") == 2 + is_there
        assert seen_values(store_dir) == [b"a", b"b", *[b"S" * 100] * is_there, b"z"]
        assert logs(store_dir)[-1].stat().st_size == words.log().position


# --- E3 -------------------------------------------------------------------------------------------


def test_E3_what_was_acknowledged_outlives_all_members(store_dir: Path) -> None:
    topic, acknowledged = {"segment.bytes": 3000}, []
    with members(store_dir, True, True, "guest", topic=topic, config=PATIENT) as several:
        for n in range(60):
            value = f"{n} {'x' * n}"
            assert several[n % 3].append(value) == n
            acknowledged.append(value.encode())
        for each in several:
            each.kill()
        assert seen_values(store_dir) == acknowledged
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == acknowledged


FAILS = {
    "a file that may grow no more": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({end} + 300, -1))",
        "log().append(b'S' * 1000)",
        "StorageError",
    ),
    "many batches, of which some have room": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({end} + 300, -1))",
        "log().append_batch([b'S' * 100] * 9, batch_bytes=120)",
        "StorageError",
    ),
    "another offset than was expected": ("0", "log().append(b'S', expected_offset=7)", "OffsetMismatchError"),
    "a batch behind another offset": (
        "0",
        "log().append_batch([b'S'] * 3, expected_offset=1)",
        "OffsetMismatchError",
    ),
    "a record that is too large": ("0", "log().append(b'S' * 2000000)", "RecordTooLargeError"),
}


@pytest.mark.parametrize("kind", ["guest", True], ids=["of a guest", "of a host"])
@pytest.mark.parametrize("case", FAILS)
def test_E3_an_append_that_raises_has_left_nothing(case: str, kind: bool | str, store_dir: Path) -> None:
    before, code, raises = FAILS[case]
    with members(store_dir, True, "guest", "guest", config=PATIENT) as (host, guest, other):
        words = SharedWords(store_dir)
        fails = host if kind is True else guest
        other.append("a")
        fails.append("b")
        end = words.log()
        fails.run(before.format(end=end.position))
        told = fails.run(
            f"try:\n  {code}\nexcept segstore.SegstoreError as error:\n  told = error\ntype(told).__name__"
        )
        assert told == raises
        assert logs(store_dir)[-1].stat().st_size == end.position
        now = words.log()
        assert (now.position, now.end_offset, now.torn, now.owner) == (end.position, 2, 0, -1)
        assert other.append("c") == 2
        if "import resource" in before:
            fails.run("resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))")
        assert fails.append("d") == 3
        assert seen_values(store_dir) == [b"a", b"b", b"c", b"d"]


# --- E4 -------------------------------------------------------------------------------------------


def test_E4_who_was_fenced_behind_the_lock_touches_nothing_of_what_came_since(
    store_dir: Path, halting: Path
) -> None:
    """Stopped between the lock and the look whose it is. Meanwhile bytes of a dead process lie behind the end
    of the next segment: whoever takes the mark of that for its own leaves them there.
    """
    kinds = [True, "guest", "guest", "guest"]
    with members(store_dir, *kinds, preload=halting, config=SOON) as (host, stopped, other, dies):
        words = SharedWords(store_dir)
        stopped.run("high_seats()")
        for each in (other, dies, stopped):
            each.append("a")
        stopped.run("halt_at_records()")
        stopped.begin("log().append(b'c')")
        stopped.await_stop()
        assert words.log().owner == stopped.slot
        first, size = logs(store_dir)[0], words.log().position
        assert other.append("o") == 3  # fenced: a new segment
        dies.append("d")
        end = words.log()
        # Bytes behind the end that nobody has cut, as a failed cut leaves them: the log is marked.
        with logs(store_dir)[-1].open("ab") as file:
            file.write(b"\0" * 1000)
        host.run(
            "of = side.partition('t', 0).tail.native.c.share; of.log.torn += 3 if not of.log.torn & 1 else 0"
        )
        torn = words.file.log(words.number()).torn
        assert torn & 1
        stopped.go_on()
        assert stopped.result() == 5
        assert first.stat().st_size == size
        assert logs(store_dir)[-1].stat().st_size == end.position + RECORD
        assert not words.log().torn
        assert seen_values(store_dir) == [b"a"] * 3 + [b"o", b"d", b"c"]
        until(lambda: words.log().sealed == ())


def test_E4_a_cut_that_comes_late_is_one_of_the_segment_that_has_ended(
    store_dir: Path, halting: Path
) -> None:
    """File and position were read together: the next segment, which has the same name here, is not cut."""
    kinds = [True, "guest", "guest", "guest"]
    with members(store_dir, *kinds, preload=halting, config=SOON) as (host, dies, cuts, other):
        words = SharedWords(store_dir)
        host.run("log() and 0")
        for each in (dies, cuts, other):
            each.run("share(); guest()._remove_obstacle; guest()._bind()")
        dies.run("halt(WRITE, BEHIND, signal.SIGKILL)")
        dies.begin("log().append(b'd' * 500)")
        dies.await_death()
        cuts.run("halt(CUT, BEFORE)")
        cuts.begin("log().append(b'c')")
        cuts.await_stop()
        assert words.log().end_offset == 0
        for n in range(20):
            assert other.append("o") == n
        assert words.log().base_offset == 0
        cuts.go_on()
        assert cuts.result() == 20
        assert seen_values(store_dir) == [b"o"] * 20 + [b"c"]
        assert logs(store_dir)[-1].stat().st_size == 21 * RECORD
