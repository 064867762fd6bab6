"""Promise: Ctrl-C in a guest's calls leaves members that can be opened and closed again, and no host to which
nothing refers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_members import MemberError, members
from waiting import until

pytestmark = pytest.mark.kind("members of a shared store")

# The code is compiled: CPython 3.11 takes an interrupt that has ended `exec` of a string for one that nobody
# catches, and the process would die of SIGINT at its end.
STORM = """
import random
def storm(code, times, most):
    def on(number, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, on)
    kinds, code = set(), compile(code, "<storm>", "exec")
    for _ in range(times):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + random.random() * most)
            try:
                exec(code, globals())
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:
            kinds.add(repr(error))
    return sorted(kinds)
"""


@pytest.mark.parametrize("shared", [True, "guest"])
def test_interrupted_opens_and_closes_leave_no_member(tmp_path: Path, shared: bool | str) -> None:
    code = (
        f"mine = segstore.open(store.path, shared={shared!r}); mine.partition('t').append(b'x'); mine.close()"
    )
    with members(tmp_path / "s", True, "guest") as (host, guest):
        guest.run(STORM)
        assert set(guest.run(f"storm({code!r}, 100, 0.03)")) <= {"KeyboardInterrupt()"}
        guest.run("import gc; mine = None; gc.collect()")
        until(lambda: len(host.run("store.members()")) == 2)
        assert guest.append("on") + 1 == host.run("sum(1 for _ in log())")


FAILING = """
from segstore.storage.store.guest import StoreGuest
def failed_opens(after):
    begin = StoreGuest.begin
    def failing(self):
        after and begin(self)
        raise KeyboardInterrupt
    StoreGuest.begin = failing
    for _ in range(3):
        try:
            segstore.open(store.path, shared=True)
        except KeyboardInterrupt:
            pass
    StoreGuest.begin = begin
    names = [each.name for each in threading.enumerate()]
    return len(os.listdir('/proc/self/fd')), names.count('segstore-succession')
"""


@pytest.mark.parametrize("after", [False, True])
def test_a_join_that_fails_leaves_no_thread_and_no_descriptor(tmp_path: Path, after: bool) -> None:
    """A thread that went on wrote into the slot of a later open of its process, which was refused for it."""
    with members(tmp_path / "s", True, "guest") as (_, guest):
        guest.run(FAILING)
        before = guest.run("len(os.listdir('/proc/self/fd'))")
        assert guest.run(f"failed_opens({after})") == [before, 0]


UNAVAILABLE = """
from segstore.errors import HostUnavailableError
from segstore.storage.store.guest import StoreGuest
begin, ran = StoreGuest.begin, threading.Event()
def ending(self):
    StoreGuest.begin = begin
    raise HostUnavailableError(store.path, 0, False)
StoreGuest.begin = ending
with segstore.open(store.path, shared='guest', timeout=30) as mine:
    mine.context.scheduler.after(0, ran.set)
    ran.wait(30)
"""


def test_an_open_that_meets_a_host_s_end_has_its_background_work(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (_, guest):
        guest.run(UNAVAILABLE)
        assert guest.run("ran.is_set()")


def test_a_host_whose_end_was_interrupted_is_let_go(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (host, guest):
        host.append("x")
        host.run("store.close(); mine = segstore.open(store.path, shared=True); 0")
        host.run("import gc; stop = type(mine.engine.host).stop; gone = []")
        host.run("def interrupted(self): gone.append(1); raise KeyboardInterrupt")
        host.run("type(mine.engine.host).stop = interrupted; mine = None; gc.collect()")
        host.run("type(side.host).stop = stop")
        assert host.run("[len(gone), 'segstore-host' in [t.name for t in threading.enumerate()]]") == [
            1,
            True,
        ]
        assert host.run("mine = segstore.open(store.path, shared=True); mine.role") == "host"
        assert host.run("mine.partition('t').append(b'y')") == 1
        assert guest.append("z") == 2
        host.run("mine.close()")


def test_a_thread_that_has_the_number_of_the_successor_s_ends_no_host(tmp_path: Path) -> None:
    again = """
told = []
def opens():
    try:
        segstore.open(store.path)
    except Exception as error:
        told.append(type(error).__name__)
for _ in range(20):
    thread = threading.Thread(target=opens)
    thread.start()
    thread.join()
sorted(set(told))
"""
    with members(tmp_path / "s", True, True) as (host, heir):
        heir.append("x")
        host.kill()
        until(lambda: heir.run("store.role") == "host")
        assert heir.run(again) == ["StoreLockedError"]
        assert heir.append("y") == 1
        assert heir.run("store.create_topic('u') and store.role") == "host"


def test_a_wait_for_the_host_can_be_interrupted(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest", topic={"segment.bytes": 2000}) as (host, guest):
        guest.append("x" * 1500)
        host.stop()
        for _ in range(3):
            guest.begin("log().append(bytes(1500))")
            until(guest.sleeps)
            guest.interrupt()
            with pytest.raises(MemberError) as error:
                guest.result()
            assert error.value.kind == "KeyboardInterrupt"
        host.go_on()
        assert guest.append("y" * 1500) == 1
