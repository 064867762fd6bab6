"""Promise: what a guest asks of its host is asked with no lock held, is resolved once however often it is
asked, and outlives the host: rules V1 to V3.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_members import SMALL, MemberError, MemberProcess, SharedWords, members
from stores import logs, seen_values
from waiting import until

from segstore._native import lib

pytestmark = pytest.mark.kind("members of a shared store")

PATIENT = {"shared.stopped.ms": 60_000, "shared.answer.ms": 600_000}
TOPIC = {"segment.bytes": 1000}
LARGE = "log().append(b'%s' * 700)"
"""Two of these have no room in one segment."""


def state_of(words: SharedWords, member: MemberProcess) -> int:
    return int(words.file.member(member.slot).request) & 3


# --- V1 -------------------------------------------------------------------------------------------


def test_V1_whoever_asks_holds_no_lock(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", topic=TOPIC, config=PATIENT) as (host, asks, other):
        words = SharedWords(store_dir)
        asks.run(LARGE % "a")
        other.append("b")
        host.stop()
        asks.begin(LARGE % "c")
        until(lambda: state_of(words, asks) == lib.SEG_ASKED)
        assert words.log().owner == -1
        assert [other.append(str(n)) for n in range(2)] == [2, 3]  # these have room
        assert not asks.is_done()
        host.go_on()
        assert asks.result() == 4
        assert seen_values(store_dir) == [b"a" * 700, b"b", b"0", b"1", b"c" * 700]


def test_V1_a_roll_that_several_ask_for_is_made_once(store_dir: Path) -> None:
    kinds = [True, *["guest"] * 4]
    topic = {"segment.bytes": 1100}
    with members(store_dir, *kinds, topic=topic, config=PATIENT) as (host, *guests):
        words = SharedWords(store_dir)
        for each in guests:
            each.append("x")
        guests[0].run(LARGE % "a")
        host.stop()
        for n, each in enumerate(guests):
            each.begin(f"log().append(b'{n}' * 100)")
        until(lambda: all(state_of(words, each) == lib.SEG_ASKED for each in guests))
        host.go_on()
        assert sorted(each.result() for each in guests) == [5, 6, 7, 8]
        assert len(logs(store_dir)) == 2


TWICE = """
from types import SimpleNamespace
asked = side.host._members.shared.member({slot})
fields = ("log", "key", "generation", "size", "batches", "offsets", "timestamp", "word", "asks")
kept = SimpleNamespace(**{{name: getattr(asked, name) for name in fields}})
"""


def test_V1_a_request_that_was_resolved_is_resolved_again_by_doing_nothing(store_dir: Path) -> None:
    with members(store_dir, True, "guest", topic=TOPIC, config=PATIENT) as (host, guest):
        words = SharedWords(store_dir)
        guest.append("a")
        guest.run(LARGE % "b")
        guest.run(LARGE % "c")  # asks for a roll
        host.run(TWICE.format(slot=guest.slot))
        before = words.log()
        assert host.run("kept.asks") == lib.SEG_ASKS_READY
        host.run("[side.host._resolve(kept) for _ in range(3)] and 0")
        assert words.log() == before
        assert len(logs(store_dir)) == 2


# --- V2 -------------------------------------------------------------------------------------------


def test_V2_an_answer_means_look_again(store_dir: Path) -> None:
    """The host says three times that it is done, and has done nothing."""
    with members(store_dir, True, "guest", topic=TOPIC, config=PATIENT) as (host, guest):
        guest.append("a")
        guest.run(LARGE % "b")
        host.run(
            "told = []; resolve = side.host._resolve\n"
            "def lazy(asked):\n"
            "    told.append(asked.asks)\n"
            "    if len(told) > 3:\n"
            "        resolve(asked)\n"
            "side.host._resolve = lazy"
        )
        assert guest.run(LARGE % "c") == 2
        assert host.run("told") == [lib.SEG_ASKS_READY] * 4
        assert seen_values(store_dir) == [b"a", b"b" * 700, b"c" * 700]


def test_V2_an_answer_to_an_earlier_request_is_not_taken_for_this_one_s(store_dir: Path) -> None:
    """A host answers late: its guest was interrupted meanwhile, and asks for something else."""
    with members(store_dir, True, "guest", topic=TOPIC, config=PATIENT) as (host, guest):
        words = SharedWords(store_dir)
        guest.append("a")
        guest.run(LARGE % "b")
        host.run(
            "gate = [threading.Event(), threading.Event()]; resolve = side.host._resolve\n"
            "def late(asked):\n"
            "    side.host._resolve = resolve\n"
            "    gate[0].set()\n"
            "    gate[1].wait()\n"
            "side.host._resolve = late"
        )
        guest.begin(LARGE % "c")
        host.run("gate[0].wait()")
        assert state_of(words, guest) == lib.SEG_TAKEN
        guest.interrupt()
        with pytest.raises(MemberError, match="KeyboardInterrupt"):
            guest.result()
        assert words.log().end_offset == 2
        guest.begin(LARGE % "d")
        until(lambda: state_of(words, guest) == lib.SEG_ASKED)
        host.run("gate[1].set()")
        assert guest.result() == 2
        assert seen_values(store_dir) == [b"a", b"b" * 700, b"d" * 700]


# --- V3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["asked", "taken"])
@pytest.mark.parametrize("next_host", ["a member", "a process that comes"])
def test_V3_the_next_host_finds_what_was_asked_of_a_dead_one(
    state: str, next_host: str, store_dir: Path
) -> None:
    kinds = [True, "guest", *[True] * (next_host == "a member")]
    with members(store_dir, *kinds, topic=TOPIC, config=PATIENT) as (host, guest, *_):
        words = SharedWords(store_dir)
        guest.append("a")
        guest.run(LARGE % "b")
        if state == "asked":
            host.stop()
            guest.begin(LARGE % "c")
            until(lambda: state_of(words, guest) == lib.SEG_ASKED)
        else:
            host.run("side.host._resolve = lambda asked: threading.Event().wait()")
            guest.begin(LARGE % "c")
            until(lambda: state_of(words, guest) == lib.SEG_TAKEN)
        host.kill()
        if next_host == "a member":
            assert guest.result() == 2
        else:
            with MemberProcess(store_dir, True, PATIENT) as came:
                came.opened()
                assert guest.result() == 2
        assert seen_values(store_dir) == [b"a", b"b" * 700, b"c" * 700]


def test_V3_what_a_guest_has_asked_that_died_since_does_no_harm(store_dir: Path) -> None:
    with members(store_dir, True, "guest", "guest", topic=TOPIC, config=PATIENT) as (host, dies, other):
        words = SharedWords(store_dir)
        dies.append("a")
        other.run(LARGE % "b")
        host.stop()
        dies.begin(LARGE % "c")
        until(lambda: state_of(words, dies) == lib.SEG_ASKED)
        dies.kill()
        with MemberProcess(store_dir, "guest") as comes:  # into its slot
            host.go_on()
            assert comes.opened().slot == dies.slot
            assert comes.append("d") == 2
            assert other.append("e") == 3
        assert seen_values(store_dir) == [b"a", b"b" * 700, b"d", b"e"]


def test_V3_without_a_host_an_append_that_needs_one_raises_and_is_not_there(store_dir: Path) -> None:
    config = {**SMALL, "shared.answer.ms": 300}
    with members(store_dir, True, "guest", topic=TOPIC, config=config) as (host, guest):
        words = SharedWords(store_dir)
        guest.append("a")
        guest.run(LARGE % "b")
        host.kill()
        before = words.log()
        with pytest.raises(MemberError) as caught:
            guest.run(LARGE % "c")
        assert caught.value.kind == "HostUnavailableError"
        assert str(host.pid) in caught.value.text
        assert words.log() == before
        assert logs(store_dir)[-1].stat().st_size == before.position
        assert guest.append("d") == 2  # that has room
        assert state_of(words, guest) == lib.SEG_EMPTY
