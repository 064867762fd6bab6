"""segstore.storage.shared.members: slots, who lives (L2), who finds members (H3), and requests in slots."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from sharing import joined, made
from waiting import until

from segstore._native import address, ffi, lib
from segstore.errors import NotShareableError, StorageError
from segstore.files import Files
from segstore.storage.meta.store_format import has_living_members
from segstore.storage.shared import member_locks
from segstore.storage.shared.members import Members, SharedMember, living
from segstore.storage.shared.shared_file import SharedFile
from segstore.version import VERSION

files = Files()


@pytest.fixture
def guest(root: str, host: Members) -> Iterator[Members]:
    members = joined(files, root)
    yield members
    members.close()


def is_dead(by: Members, slot: int, incarnation: int) -> bool:
    return bool(lib.seg_member_is_dead(by.c, slot, incarnation))


# --- L2 -----------------------------------------------------------------------------------------


def test_L2_a_member_lives_until_its_byte_is_free(host: Members, guest: Members) -> None:
    assert (host.slot, guest.slot) == (0, 1)
    assert not is_dead(host, 1, guest.incarnation)
    assert not is_dead(guest, 0, host.incarnation)
    guest.close()
    assert is_dead(host, 1, guest.incarnation)
    assert host.all() == [host.all()[0]]


def test_L2_a_slot_with_a_later_incarnation_has_a_dead_owner(
    root: str, host: Members, guest: Members
) -> None:
    first = guest.incarnation
    guest.close()
    again = joined(files, root)
    assert (again.slot, again.incarnation) == (1, first + 1)
    assert is_dead(host, 1, first)
    assert not is_dead(host, 1, again.incarnation)
    again.close()


def test_L2_nobody_is_his_own_judge(host: Members) -> None:
    assert not is_dead(host, 0, host.incarnation)
    assert is_dead(host, 0, host.incarnation - 1)


@pytest.mark.parametrize("slot", [-1, 64, 1 << 20])
def test_L2_a_slot_that_there_is_not_has_no_living_owner(host: Members, slot: int) -> None:
    assert is_dead(host, slot, 1)


def test_L2_a_descriptor_that_was_closed_or_is_another_file_s_tells_of_no_death(
    host: Members, guest: Members, tmp_path: Path
) -> None:
    fd, kept = guest.fd, os.dup(guest.fd)
    os.close(fd)  # as closerange does; `kept` has the lock
    assert not is_dead(guest, 0, host.incarnation)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    if other != fd:
        os.dup2(other, fd)
        os.close(other)
    assert not is_dead(guest, 0, host.incarnation)
    os.dup2(kept, fd)
    host.close()
    assert is_dead(guest, 0, host.incarnation)
    os.close(kept)


def test_L2_members_of_a_file_that_was_made_anew_are_never_those_of_before(root: str, host: Members) -> None:
    before = [host.shared.member(slot).incarnation for slot in range(64)]
    host.shared.live = False
    host.close()
    anew = made(files, root)
    assert anew.made
    after = [anew.member(slot).incarnation for slot in range(64)]
    assert sum(a == b for a, b in zip(before, after, strict=True)) < 3


# --- slots --------------------------------------------------------------------------------------


def test_members_are_listed_with_who_is_host(root: str, host: Members, guest: Members) -> None:
    rows = guest.all()
    assert rows == host.all() == living(files, root)
    since = [row.since_ms for row in rows]
    assert rows == [
        SharedMember(0, os.getpid(), VERSION, since[0], is_host=True, may_host=True),
        SharedMember(1, os.getpid(), VERSION, since[1], is_host=False, may_host=False),
    ]
    assert 0 < since[0] <= since[1]
    assert guest.host() == rows[0]
    host.close()
    assert guest.host() is None
    assert guest.last_host_pid() == os.getpid()
    assert guest.all() == rows[1:]


def test_the_next_owner_of_a_host_s_slot_is_no_host(root: str, host: Members, guest: Members) -> None:
    host.close()
    next_one = joined(files, root)
    assert next_one.slot == 0
    assert next_one.host() is None
    assert next_one.last_host_pid() == 0
    next_one.close()


def test_a_new_host_wakes_all_that_wait_for_one(guest: Members) -> None:
    hosts = ffi.addressof(guest.shared.header, "hosts")
    seen, codes = hosts[0], list[int]()
    waits = threading.Thread(target=lambda: codes.append(lib.seg_shared_wait(hosts, seen, 60_000)))
    waits.start()
    guest.become_host()
    waits.join()
    assert codes == [0]
    assert hosts[0] == seen + 1
    assert guest.c.is_host == 1


def test_no_store_is_shared(root: str) -> None:
    assert living(files, root) == []
    assert not has_living_members(files, root)


def test_all_slots_are_taken(root: str) -> None:
    shared = made(files, root, members=2)
    two = [Members(files, root, shared, may_host=False) for _ in range(2)]
    with pytest.raises(NotShareableError, match=r"shared\.members allows 2 .* up to 64"):
        joined(files, root)
    two[1].close()
    third = joined(files, root)
    assert third.slot == 1
    for each in (two[0], third):
        each.close()


def test_a_store_that_is_shared_no_more(root: str) -> None:
    shared = made(files, root)
    guest = SharedFile.join(files, root)
    assert guest is not None
    shared.live = False
    with pytest.raises(LookupError, match="not by now"):
        Members(files, root, guest, may_host=False)
    assert not has_living_members(files, root)


def test_a_store_whose_members_file_was_replaced(root: str, host: Members) -> None:
    class Replacing(Files):
        def open(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            handle = super().open(*args, **kwargs)  # type: ignore[arg-type]
            if str(args[0]).endswith("/members"):
                os.rename(str(args[0]), f"{args[0]}.old")
                super().open(args[0], write=True, create=True).close()  # type: ignore[arg-type]
            return handle

    guest = SharedFile.join(files, root)
    assert guest is not None
    with pytest.raises(LookupError):
        Members(Replacing(), root, guest, may_host=False)


REFUSED = {errno.EACCES: 'mode="r"', errno.EROFS: 'mode="r"', errno.EPERM: 'mode="r"', errno.EIO: "bad"}


@pytest.mark.parametrize("number", REFUSED)
def test_a_members_file_that_can_t_be_opened(root: str, host: Members, number: int) -> None:
    guest = SharedFile.join(files, root)
    assert guest is not None
    failing = FailingFiles(["open"], OSError(number, "bad", member_locks.path_of(root)))
    with pytest.raises(StorageError, match=REFUSED[number]) as caught:
        Members(failing, root, guest, may_host=False)
    assert (caught.value.errno, caught.value.filename) == (number, member_locks.path_of(root))
    assert len(host.all()) == 1


# --- H3 -----------------------------------------------------------------------------------------


def test_H3_who_is_no_member_finds_living_members(root: str, host: Members, guest: Members) -> None:
    assert has_living_members(files, root)
    host.close()
    assert has_living_members(files, root)
    guest.close()
    assert not has_living_members(files, root)


def test_H3_a_member_finds_the_others(root: str, host: Members) -> None:
    assert not host.others_alive()
    last = [joined(files, root) for _ in range(63)][-1]
    assert last.slot == 63
    assert host.others_alive()


def test_H3_the_byte_for_making_is_no_member_s(root: str) -> None:
    with member_locks.take_making(files, root):
        assert not has_living_members(files, root)


# --- requests -----------------------------------------------------------------------------------


def taken(host: Members) -> tuple[int, int]:
    number = ffi.new("uint32_t *")
    slot = int(lib.seg_request_next(host.c, 0, number))
    return slot, int(number[0])


def answer(host: Members, slot: int, number: int, code: int, text: bytes = b"") -> bool:
    return bool(lib.seg_request_answer(host.c, slot, number, code, 0, text))


FUTEX = {"x86_64": 202, "aarch64": 98}
"""The number of futex(2)."""


def wake(word: Any) -> int:
    """Wake a thread that waits at a word which has not changed for it."""
    number, at = FUTEX[platform.machine()], ctypes.c_void_p(address(word))
    return int(ctypes.CDLL(None).syscall(number, at, 1, 1, None, None, 0))


@pytest.mark.skipif(platform.machine() not in FUTEX, reason="futex(2) has another number on this machine")
def test_V1_a_request_waits_for_its_answer_and_not_for_the_host_s_note(host: Members, guest: Members) -> None:
    number, codes = lib.seg_request_post(guest.c, lib.SEG_ASKS_READY), list[int]()
    waits = threading.Thread(target=lambda: codes.append(lib.seg_request_await(guest.c, number, 60_000)))
    waits.start()
    task = f"/proc/self/task/{waits.native_id}/wchan"
    until(lambda: "futex" in Path(task).read_text())
    slot, word = taken(host)
    its = guest.shared.member(guest.slot)
    assert its.request == word == number | lib.SEG_TAKEN
    assert wake(ffi.addressof(its, "request")) == 1
    until(lambda: codes or "futex" in Path(task).read_text())
    assert not codes, "the note that the request is taken is no answer"
    assert answer(host, slot, word, 3, b"why")
    waits.join()
    assert codes == [0]
    assert (slot, its.answer, bytes(ffi.buffer(its.text))[:4]) == (1, 3, b"why\0")


def test_V3_a_new_host_takes_what_a_dead_one_had_taken(host: Members, guest: Members) -> None:
    assert taken(host)[0] == -1
    number = lib.seg_request_post(guest.c, lib.SEG_ASKS_SYNC)
    assert taken(host) == taken(host) == (1, number | lib.SEG_TAKEN)


def test_V3_an_answer_to_the_slot_s_last_process_is_none_to_the_next_one(root: str, host: Members) -> None:
    first = joined(files, root)
    number = lib.seg_request_post(first.c, lib.SEG_ASKS_READY)
    slot, word = taken(host)
    first.close()
    second = joined(files, root)
    assert second.slot == first.slot
    later = lib.seg_request_post(second.c, lib.SEG_ASKS_READY)
    assert later > number
    assert not answer(host, slot, word, 0)
    assert answer(host, *taken(host), 0)
    assert lib.seg_request_await(second.c, later, 0) == 0
    second.close()


def test_a_request_that_was_taken_back(host: Members, guest: Members) -> None:
    number = lib.seg_request_post(guest.c, lib.SEG_ASKS_READY)
    slot, word = taken(host)
    lib.seg_request_forget(guest.c, number)
    assert not answer(host, slot, word, 0)
    assert taken(host)[0] == -1
