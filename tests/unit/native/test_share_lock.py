"""segstore._native.share_lock: a lock that processes share, and that only a dead owner loses: rules L1, L2,
L5 and L7.
"""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sharing import joined, made, made_root, member_process
from waiting import PATIENCE, until

from segstore._native import ffi, lib
from segstore.files import Files
from segstore.storage.shared.members import Members

pytestmark = pytest.mark.kind("members of a shared store")

files = Files()
WAITED = 1 << 31
LONG = int(PATIENCE * 1000)
WHO = {"a guest": lib.SEG_OF_GUEST, "appends of a host": lib.SEG_OF_APPENDS, "a host": lib.SEG_OF_HOST}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return made_root(tmp_path / "store")


@pytest.fixture
def mine(root: str) -> Iterator[Members]:
    members = Members(files, root, made(files, root), may_host=True)
    yield members
    members.close()


@pytest.fixture
def other(root: str, mine: Members) -> Iterator[Members]:
    members = joined(files, root)
    yield members
    members.close()


def lock_of(members: Members) -> Any:
    return ffi.addressof(members.shared.log(0), "lock")


def take(by: Members, who: int = 0, *, brief: bool = False, ms: int = LONG) -> tuple[int, int]:
    """Return what `seg_lock_take` says, and the word that it has seen."""
    seen = ffi.new("uint64_t *")
    return int(lib.seg_lock_take(by.c, lock_of(by), who, brief, ms, seen)), int(seen[0])


def leave(by: Members, who: int = 0) -> bool:
    return bool(lib.seg_lock_leave(by.c, lock_of(by), who))


def word(by: Members, who: int = 0) -> int:
    return int(lib.seg_lock_word(by.c, who))


def is_mine(by: Members, who: int = 0) -> bool:
    return bool(lib.seg_lock_is_mine(by.c, lock_of(by), who))


# --- L1 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHO)
def test_L1_the_word_says_slot_thread_and_incarnation(mine: Members, other: Members, name: str) -> None:
    who = WHO[name]
    assert take(other, who)[0] == 0
    assert lock_of(mine)[0] == word(other, who) == other.incarnation << 32 | (other.slot << 2 | who) + 1
    assert is_mine(other, who)
    assert not any(is_mine(mine, each) for each in WHO.values())
    assert not any(is_mine(other, each) for each in WHO.values() if each != who)
    assert leave(other, who)
    assert lock_of(mine)[0] == 0
    assert not leave(other, who)


def test_L1_who_waits_says_so_and_is_woken(mine: Members, other: Members) -> None:
    assert take(mine)[0] == 0
    codes: list[int] = []
    waits = threading.Thread(target=lambda: codes.append(take(other)[0]))
    waits.start()
    until(lambda: lock_of(mine)[0] == word(mine) | WAITED)
    assert is_mine(mine)
    assert leave(mine)
    waits.join()
    assert codes == [0]
    assert lock_of(mine)[0] == word(other) | WAITED  # another one may sleep behind it
    assert leave(other)


# --- L2 -----------------------------------------------------------------------------------------


def test_L2_a_living_owner_keeps_it_and_the_one_who_waits_is_told_whose_it_is(
    mine: Members, other: Members
) -> None:
    assert take(other)[0] == 0
    assert take(mine, ms=20) == (-errno.ETIMEDOUT, word(other) | WAITED)
    assert is_mine(other)
    assert leave(other)
    assert take(mine) == (0, 0)


DEATHS: dict[str, Callable[[Members], Members | None]] = {
    "its byte is free": lambda dead: dead.close(),
    "another process has its slot": lambda dead: (dead.close(), joined(files, rooted(dead)))[1],
}


def rooted(members: Members) -> str:
    return members._handle.path.rpartition("/.segstore/")[0]


@pytest.mark.parametrize("name", DEATHS)
def test_L2_a_dead_owner_loses_it(mine: Members, other: Members, name: str) -> None:
    assert take(other)[0] == 0
    assert not lib.seg_lock_is_dead(mine.c, word(other))
    dead = word(other)
    after = DEATHS[name](other)
    assert lib.seg_lock_is_dead(mine.c, dead)
    assert take(mine)[0] == 1
    assert is_mine(mine)
    assert leave(mine)
    if after is not None:
        after.close()


def test_L2_a_killed_process_loses_it_and_one_of_many_that_wait_has_it(root: str, mine: Members) -> None:
    holds = """
from segstore._native import ffi, lib
members = joined(files, root)
seen = ffi.new("uint64_t *")
assert lib.seg_lock_take(members.c, ffi.addressof(members.shared.log(0), "lock"), 0, 0, 0, seen) == 0
"""
    with member_process(holds, root) as process:
        several = [joined(files, root) for _ in range(4)]
        found: list[int] = []
        threads = [threading.Thread(target=lambda by=by: found.append(take(by)[0])) for by in several]
        for thread in threads:
            thread.start()
        until(lambda: lock_of(mine)[0] & WAITED)
        assert found == []
        process.kill()
        until(lambda: found)
        assert found == [1]
        for n in range(1, 5):  # each lets go, and the next one has it from a living owner
            owner = next(each for each in several if is_mine(each))
            assert leave(owner)
            until(lambda n=n: len(found) == min(n + 1, 4))
        for thread in threads:
            thread.join()
        assert found == [1, 0, 0, 0]
        assert lock_of(mine)[0] == 0
        for each in several:
            each.close()


def test_L2_an_owner_that_lets_go_and_has_it_again_is_not_one_that_keeps_it(
    mine: Members, other: Members
) -> None:
    assert take(other)[0] == 0
    until(lambda: not turned(mine, other))
    assert leave(other)


def turned(mine: Members, other: Members) -> bool:
    """Have the owner take turns for longer than `mine` waits for one of them; return whether the machine was
    too busy for that.
    """
    patience, codes = 0.4, list[int]()
    waits = threading.Thread(target=lambda: codes.append(take(mine, ms=int(patience * 1000))[0]))
    waits.start()
    began = last = time.monotonic()
    longest = 0.0
    while last < began + 2 * patience and not codes:
        # As if it let go of the lock, and had it again before the one that is woken could take it.
        lock_of(other)[0] = word(other)
        time.sleep(0.01)
        longest = max(longest, time.monotonic() - last)
        last = time.monotonic()
    is_busy = longest > patience / 2
    assert is_busy or not codes
    waits.join()
    assert codes == [-errno.ETIMEDOUT]
    return is_busy


def test_a_lock_that_was_taken_away_is_left_to_its_owner(mine: Members, other: Members) -> None:
    assert take(other)[0] == 0
    lock_of(mine)[0] = word(mine, lib.SEG_OF_HOST)  # as a host does that fences a stopped process
    assert not is_mine(other)
    assert not leave(other)
    assert is_mine(mine, lib.SEG_OF_HOST)


# --- L5 -----------------------------------------------------------------------------------------


def test_L5_who_may_not_sleep_is_told_at_once(mine: Members, other: Members) -> None:
    assert take(other)[0] == 0
    assert take(mine, brief=True)[0] == lib.SEG_BUSY
    assert lock_of(mine)[0] == word(other)  # without the bit: nobody waits
    assert leave(other)
    assert take(mine, brief=True)[0] == 0
    assert leave(mine)


def test_L5_a_signal_ends_the_wait_with_nothing_done(mine: Members, other: Members) -> None:
    assert take(other)[0] == 0
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    main, ended = threading.main_thread().ident, threading.Event()

    def interrupt() -> None:
        while not ended.wait(0.01):
            signal.pthread_kill(main or 0, signal.SIGUSR1)

    sends = threading.Thread(target=interrupt)
    sends.start()
    try:
        assert take(mine)[0] == -errno.EINTR
    finally:
        ended.set()
        sends.join()
        signal.signal(signal.SIGUSR1, before)
    assert lock_of(mine)[0] & ~WAITED == word(other)
    assert leave(other)


# --- L7 -----------------------------------------------------------------------------------------


def test_L7_what_a_host_has_begun_only_a_host_can_end(mine: Members, other: Members) -> None:
    mine.become_host()
    assert take(mine, lib.SEG_OF_HOST)[0] == 0
    dead = word(mine, lib.SEG_OF_HOST)
    mine.close()
    assert take(other, ms=20)[0] == -errno.ETIMEDOUT
    assert lock_of(other)[0] & ~WAITED == dead
    other.become_host()
    assert take(other, lib.SEG_OF_HOST)[0] == 1
    assert leave(other, lib.SEG_OF_HOST)


@pytest.mark.parametrize("who", [lib.SEG_OF_GUEST, lib.SEG_OF_APPENDS], ids=["a guest", "appends of a host"])
def test_L7_an_append_of_the_next_host_does_not_end_it(mine: Members, other: Members, who: int) -> None:
    """A guest's threads go on appending while its process becomes the host: the dead host may have taken the
    lock from a process that goes on, and not have sealed the segment yet.
    """
    mine.become_host()
    assert take(mine, lib.SEG_OF_HOST)[0] == 0
    dead = word(mine, lib.SEG_OF_HOST)
    mine.close()
    other.become_host()
    assert take(other, who, ms=20)[0] == -errno.ETIMEDOUT
    assert lock_of(other)[0] & ~WAITED == dead
    assert take(other, lib.SEG_OF_HOST)[0] == 1
    assert leave(other, lib.SEG_OF_HOST)


def test_L7_appends_of_a_host_are_taken_by_anybody(mine: Members, other: Members) -> None:
    mine.become_host()
    assert take(mine, lib.SEG_OF_APPENDS)[0] == 0
    mine.close()
    assert take(other)[0] == 1
    assert leave(other)


# --- of several processes -----------------------------------------------------------------------

COUNTS = """
import time
from segstore._native import ffi, lib
members = joined(files, root)
log, seen = members.shared.log(0), ffi.new("uint64_t *")
lock = ffi.addressof(log, "lock")
while not log.settings:
    code = lib.seg_lock_take(members.c, lock, 0, 0, -1, seen)
    assert code in (0, 1), code
    if code:
        log.by_log_only += 1
        log.young_ms = log.interval  # what the dead one had begun is put right
    assert log.young_ms == log.interval, "another one is within"
    log.young_ms += 1
    for _ in range(log.interval % 50):
        pass
    log.interval += 1
    assert lib.seg_lock_leave(members.c, lock, 0) == 1
"""


@pytest.mark.parametrize("rounds", [6])
def test_L2_one_process_at_a_time_is_within_also_while_others_are_killed(
    root: str, mine: Members, rounds: int
) -> None:
    log = mine.shared.log(0)
    with member_process(
        f"import threading\ndef run():\n{indented(COUNTS)}\nt = threading.Thread(target=run)\nt.start()", root
    ) as first:
        for _ in range(rounds):
            before = log.interval
            with member_process(
                f"import threading\ndef run():\n{indented(COUNTS)}\nthreading.Thread(target=run).start()",
                root,
            ) as second:
                until(lambda before=before: log.interval > before + 500)
                second.kill()
            until(lambda before=log.interval: log.interval > before + 100)
            assert first.poll() is None
        log.settings = 1
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait(PATIENCE) == 0, first.stderr and first.stderr.read()
    assert take(mine, ms=0)[0] == 0
    assert leave(mine)


def indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())
