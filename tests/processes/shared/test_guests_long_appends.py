"""Promise: an append of a guest of more than 4 MiB is the host's: it is visible all at once, and durable, and
whoever dies meanwhile, it is in the log once, or not at all if it raised.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from shared_members import SMALL, MemberError, MemberProcess, members
from waiting import until

import segstore
from segstore.storage.log.guest_partition import MOST_AT_ONCE

pytestmark = pytest.mark.kind("members of a shared store")

OVERHEAD = 72
"""Bytes of a batch with one record of some 64 KiB, but for its value."""
BATCH = 65536 - OVERHEAD
PATIENT = {**SMALL, "shared.answer.ms": 300}


def of(size: int) -> str:
    """Return a call that appends 64 batches of so many bytes in the log."""
    values = f"[bytes({BATCH})] * 63 + [bytes({size - 63 * 65536 - OVERHEAD})]"
    return f"log().append_batch({values}, batch_bytes={BATCH})"


def staged(path: Path) -> list[str]:
    """Return what lies in the store's inbox beside the directory of manifests, and the manifests."""
    inbox = path / ".segstore/inbox"
    return sorted(
        each.name for each in (*inbox.iterdir(), *(inbox / "sealed").iterdir()) if each.name != "sealed"
    )


def raised(member: MemberProcess, code: str) -> str:
    with pytest.raises(MemberError) as error:
        member.run(code)
    return error.value.kind


LENGTHS = {
    "a byte less than 4 MiB": (of(MOST_AT_ONCE - 1), 64, False),
    "4 MiB": (of(MOST_AT_ONCE), 64, False),
    "a byte more": (of(MOST_AT_ONCE + 1), 64, True),
    "50 MB": ("log().append_batch([bytes(100)] * 400_000)", 400_000, True),
    "compressed, 4 MiB of it": (
        "log().append_batch([os.urandom(1000) for _ in range(5000)], compression='zstd')",
        5000,
        True,
    ),
    "compressed to less": ("log().append_batch([bytes(1000)] * 5000, compression='lz4')", 5000, False),
    "more than a segment, as one append": (of(MOST_AT_ONCE - 1), 64, True),
}


COUNTS = """
import segstore.storage.inbox.stager as stager
begun, first = [], stager.Stager._begin
stager.Stager._begin = lambda self: (begun.append(1), first(self))
"""


@pytest.mark.parametrize("name", LENGTHS)
def test_appends_about_4_mib_are_visible_at_once(tmp_path: Path, name: str) -> None:
    code, n, is_staged = LENGTHS[name]
    path, topic = tmp_path / "s", {"segment.bytes": 3 << 20} if "segment" in name else {}
    with members(path, True, "guest", topic=topic) as (host, guest), watched(path) as ends:
        guest.append("before")
        guest.run(COUNTS)
        assert guest.run(f"{code}.start") == 1
        assert guest.run("len(begun)") == is_staged
        assert guest.append("after") == n + 1
        for each in (host, guest):
            assert each.run("[log().end_offset, sum(1 for _ in log())]") == [n + 2, n + 2]
        until(lambda: staged(path) == [])
        assert set(ends()) <= {0, 1, n + 1, n + 2}


@contextmanager
def watched(path: Path) -> Iterator[Any]:
    """Give a function that returns the ends that a reader has seen."""
    done, seen = threading.Event(), []

    def run() -> None:
        with segstore.open(path, mode="r") as store:
            while not done.is_set():
                seen.append(store.partition("t").end_offset)

    thread = threading.Thread(target=run)
    thread.start()

    def ends() -> list[int]:
        done.set()
        thread.join()
        return seen

    try:
        yield ends
    finally:
        ends()


def test_an_expected_offset_is_refused_by_name(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (_, guest):
        with pytest.raises(
            MemberError, match="append_batch with expected_offset and more than 4 MiB"
        ) as error:
            guest.run("log().append_batch([bytes(100)] * 60_000, expected_offset=0)")
        assert error.value.kind == "IllegalStateError"
        assert guest.run("log().end_offset") == 0
        assert staged(tmp_path / "s") == []


def test_a_record_that_is_too_large_is_refused_before_anything_is_staged(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (_, guest):
        assert raised(guest, "log().append_batch([bytes(5 << 20)])") == "RecordTooLargeError"
        assert staged(tmp_path / "s") == []


# --- the host does not answer -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopped", "dead"])
def test_nothing_is_appended_where_the_host_does_not_answer(tmp_path: Path, how: str) -> None:
    with members(tmp_path / "s", True, "guest", config=PATIENT) as (host, guest):
        guest.append("before")
        host.stop() if how == "stopped" else host.kill()
        assert raised(guest, "log().append_batch([bytes(100)] * 60_000)") == "HostUnavailableError"
        assert staged(tmp_path / "s") == []
        assert guest.append("after") == 1
        if how == "stopped":
            host.go_on()
            assert guest.run("log().append_batch([bytes(100)] * 60_000).start") == 2
            assert host.run("log().end_offset") == 60_002
            assert host.run("list(store.mended)") == []


BEGINS = """
import segstore.storage.inbox.adopt as adopt
write = adopt.write_intent
def {name}(*args):
    {body}
adopt.write_intent = {name}
"""
STOP = "signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)"
STOPS_BEFORE = BEGINS.format(name="stops", body=f"{STOP}; write(*args)")
STOPS_BEHIND = BEGINS.format(name="stops", body=f"write(*args); {STOP}")


def test_an_adoption_that_has_not_begun_is_taken_back(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest", config=PATIENT) as (host, guest):
        host.run(STOPS_BEFORE)
        assert raised(guest, "log().append_batch([bytes(100)] * 60_000)") == "HostUnavailableError"
        host.go_on()
        until(lambda: guest.append("later") >= 0)
        assert host.run("[log().end_offset, list(store.mended)]") == [1, []]
        assert staged(tmp_path / "s") == []


def test_an_adoption_that_has_begun_and_ends_late_is_told_as_unknown(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest", config=PATIENT) as (host, guest):
        host.run(STOPS_BEHIND)
        assert raised(guest, "log().append_batch([bytes(100)] * 60_000)") == "KafkaTimeoutError"
        host.go_on()
        assert guest.append("later") in (0, 60_000)
        assert host.run("list(store.mended)") == []


def test_ctrl_c_takes_back_what_is_staged(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (host, guest):
        host.stop()
        guest.begin("log().append_batch([bytes(100)] * 60_000)")
        until(lambda: (tmp_path / "s/.segstore/inbox/sealed").is_dir() and len(staged(tmp_path / "s")) == 2)
        guest.interrupt()
        with pytest.raises(MemberError) as error:
            guest.result()
        assert error.value.kind == "KeyboardInterrupt"
        assert staged(tmp_path / "s") == []
        host.go_on()
        assert guest.append("after") == 0


# --- deaths -------------------------------------------------------------------------------------

DIES = """
def dies(*args, **options): os.kill(os.getpid(), signal.SIGKILL)
from segstore.storage.{module} import {name}
{name}.{call} = dies
"""
HOST_DIES = {
    "before its intent": DIES.format(module="inbox.adopt", name="Adopter", call="_write"),
    "before it has copied": DIES.format(
        module="inbox.adopt_partition", name="PartitionAdoption", call="append"
    ),
    "before its sync": DIES.format(module="inbox.adopt_partition", name="PartitionAdoption", call="sync"),
    "before the id is recorded": DIES.format(module="inbox.adopted_ids", name="AdoptedIds", call="record"),
    "before it shows": DIES.format(module="log.visibility", name="Visible", call="show_all"),
    "behind that": DIES.format(module="inbox.inbox", name="Inbox", call="_clear"),
}
FORMS = {"copied": (60_000, {}), "segments": (60_000, {"segment.bytes": 1 << 20}), "linked": (150_000, {})}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("when", HOST_DIES)
def test_the_next_host_ends_what_a_dead_one_has_begun_to_adopt(tmp_path: Path, when: str, form: str) -> None:
    n, topic = FORMS[form]
    with members(tmp_path / "s", True, True, "guest", topic=topic) as (host, heir, guest):
        guest.append("before")
        host.run(HOST_DIES[when])
        assert guest.run(f"log().append_batch([bytes(100)] * {n}).start") == 1
        host.await_death()
        assert guest.append("after") == n + 1
        for each in (heir, guest):
            assert each.run("[sum(len(r.value) == 100 for r in log()), log().end_offset]") == [n, n + 2]
        until(lambda: heir.run("store.role") == "host")


GUEST_DIES = {
    "as it stages": (DIES.format(module="inbox.stager", name="Stager", call="finish"), False),
    "before it seals": (DIES.format(module="inbox.sealing", name="SealedManifest", call="begin"), False),
    "once it has sealed": (DIES.format(module="inbox.sealing", name="SealedManifest", call="outcome"), True),
}


@pytest.mark.parametrize("when", GUEST_DIES)
def test_what_a_dead_guest_has_sealed_is_appended_whole(tmp_path: Path, when: str) -> None:
    code, is_sealed = GUEST_DIES[when]
    with members(tmp_path / "s", True, "guest") as (host, guest):
        guest.run(code)
        guest.begin("log().append_batch([bytes(100)] * 60_000)")
        guest.await_death()
        until(lambda: host.run("log().end_offset") == (60_000 if is_sealed else 0))
        assert host.append("after") == (60_000 if is_sealed else 0)


def test_a_guest_that_becomes_the_host_meanwhile_adopts_by_itself(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, True) as (host, heir):
        heir.append("before")
        host.stop()
        heir.begin("log().append_batch([bytes(100)] * 60_000).start")
        until(lambda: len(staged(tmp_path / "s")) == 2)
        host.kill()
        assert heir.result() == 1
        assert heir.run("log().end_offset") == 60_001
        until(lambda: heir.run("store.role") == "host")


def test_ids_of_guests_do_not_push_out_those_of_sealers() -> None:
    from segstore.storage.inbox.known_ids import GUESTS, Adoption, KnownIds

    known = KnownIds(retention_ms=1 << 40, count=10_000)
    for number in range(3000):
        known.keep(Adoption(f"mine-{number}", number, {}))
        known.keep(Adoption(f"{GUESTS}/{number:032x}", number, {}))
        known.expire(number)
    assert sum(each.id.startswith("mine") for each in known.all()) == 3000
    assert len(known) == 4000
