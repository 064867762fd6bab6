"""Promise: who has closed a shared store appends no more, and a host answers whatever a guest asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_members import MemberError, members

import segstore

pytestmark = pytest.mark.kind("members of a shared store")

APPENDING = """
def append():
    try:
        while True:
            log().append(b"x")
    except segstore.StoreClosedError:
        pass

running = [threading.Thread(target=append) for _ in range(3)]
for each in running:
    each.start()
of = guest()
until(lambda: log().log_end_offset > 50)
pause, opened = of.close, []
def closing():
    pause()
    until(lambda: of.tail.native.is_open or not any(each.is_alive() for each in running))
    opened.append(of.tail.native.is_open)
of.close = closing
store.close()
opened
"""


def test_no_thread_opens_a_tail_again_that_a_close_has_paused(store_dir: Path) -> None:
    """It would append as a member that all others take for dead."""
    with members(store_dir, True, "guest") as [_, guest]:
        assert guest.run(APPENDING) == [False]


def test_a_host_goes_on_behind_an_error_that_nobody_expects(store_dir: Path) -> None:
    with members(store_dir, True, "guest") as [host, guest]:
        host.run(
            "def fail(*_): raise RuntimeError('planted')\nfind, side.host._find = side.host._find, fail\nNone"
        )
        with pytest.raises(MemberError, match="planted"):
            guest.append("x")
        host.run("side.host._find = find\nNone")
        assert guest.append("x") == 0


def test_a_guest_that_has_become_the_host_flushes_what_it_wrote_as_the_host(store_dir: Path) -> None:
    with members(store_dir, True, True) as [host, guest]:
        host.append("0")
        host.kill()
        guest.run("until(lambda: store.role == 'host')")
        guest.run("store.create_topic('u'); store.partition('u').append(b'1')")
        guest.run("side._guests.clear(); store.flush()")  # what the host writes by itself is no guest's
        assert guest.run("[each.recovery_point for each in side.host.partitions.all_open()]") == [1]
    with segstore.open(store_dir, "r") as store:
        assert store.partition("t").log_end_offset == 1
