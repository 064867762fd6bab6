"""Promise: Ctrl-C in a guest's calls leaves members that can be opened and closed again, and no host to which
nothing refers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_members import MemberError, members
from waiting import until

pytestmark = pytest.mark.kind("members of a shared store")

STORM = """
import random
def storm(code, times, most):
    def on(number, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, on)
    kinds = set()
    for _ in range(times):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + random.random() * most)
            try:
                exec(code, globals())
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:
            kinds.add(type(error).__name__)
    return sorted(kinds)
"""


@pytest.mark.parametrize("shared", [True, "guest"])
def test_interrupted_opens_and_closes_leave_no_member(tmp_path: Path, shared: bool | str) -> None:
    code = (
        f"mine = segstore.open(store.path, shared={shared!r}); mine.partition('t').append(b'x'); mine.close()"
    )
    with members(tmp_path / "s", True, "guest") as (host, guest):
        guest.run(STORM)
        assert set(guest.run(f"storm({code!r}, 100, 0.03)")) <= {"KeyboardInterrupt"}
        guest.run("import gc; mine = None; gc.collect()")
        until(lambda: len(host.run("store.members()")) == 2)
        assert guest.append("on") + 1 == host.run("sum(1 for _ in log())")


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
