"""Promise: members of a shared store may be closed in any order, or not at all: nothing appended is lost, and
no thread and no descriptor is left.
"""

from __future__ import annotations

import errno
import gc
import itertools
import os
import subprocess
import sys
import threading
from functools import partialmethod
from pathlib import Path

import pytest
from shared_members import MemberError, members
from waiting import PATIENCE, until

import segstore
from segstore.storage.store.host_writer import HostWriter
from segstore.storage.store.succession import Succession

pytestmark = pytest.mark.kind("members of a shared store")

ORDERS = list(itertools.permutations(range(3)))


def running() -> tuple[list[str], list[str]]:
    """Return the threads of the package in this process, and its open files."""
    numbers = os.listdir("/proc/self/fd")
    there = [f"/proc/self/fd/{number}" for number in numbers]
    files = [os.readlink(path) for path in there if os.path.lexists(path)]
    threads = [each.name for each in threading.enumerate() if each.name.startswith("segstore")]
    return sorted(threads), sorted(
        each for each in files if "/s/" in each or each.startswith(("socket", "anon"))
    )


def opened(path: Path) -> list[segstore.Store]:
    """Return a host, a member that may be host, and a guest, in this process."""
    stores = [segstore.open(path, shared=True), segstore.open(path, shared=True)]
    stores.append(segstore.open(path, shared="guest"))
    assert [each.role for each in stores] == ["host", "guest", "guest"]
    stores[0].ensure_topic("t")
    return stores


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_members_of_one_process_close_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    before, path, appended = running(), tmp_path / "s", 0
    stores = opened(path)
    for number in order:
        for each in stores:
            if not each.context.closed:
                each.partition("t").append(b"x")
                appended += 1
        stores[number].close()
    until(lambda: running() == before)
    with segstore.open(path) as store:
        assert len(list(store.partition("t"))) == appended == 6
        assert store.recovered == ()


def test_who_becomes_the_host_while_it_closes_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large store is recovered for longer than the close waits for it."""
    begins, goes_on, begin = threading.Event(), threading.Event(), HostWriter._begin

    def slowly(self: HostWriter) -> None:
        if self._guest is not None:
            begins.set()
            assert goes_on.wait(PATIENCE)
        begin(self)

    monkeypatch.setattr(HostWriter, "_begin", slowly)
    monkeypatch.setattr(Succession, "stop", partialmethod(Succession.stop, seconds=0.05))
    before, path = running(), tmp_path / "s"
    host, heir = segstore.open(path, shared=True), segstore.open(path, shared=True)
    host.create_topic("t")
    for each in (host, heir):
        each.partition("t").append(b"x")
    host.close()
    assert begins.wait(PATIENCE)
    heir.close()
    goes_on.set()
    until(lambda: running() == before)
    with segstore.open(path) as store:
        assert len(list(store.partition("t"))) == 2


def test_who_becomes_the_host_while_it_closes_tells_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, begin, close = threading.Event(), HostWriter._begin, HostWriter._close_cleanly

    def slowly(self: HostWriter) -> None:
        if self._guest is not None:
            begins.set()
            until(lambda: self._guest().context.closed)  # type: ignore[attr-defined, misc]
        begin(self)

    def failing(self: HostWriter, nonce: int) -> None:
        if self._guest is not None:
            raise segstore.StorageError(errno.EIO, "a sync has failed")
        close(self, nonce)

    monkeypatch.setattr(HostWriter, "_begin", slowly)
    monkeypatch.setattr(HostWriter, "_close_cleanly", failing)
    before, path = running(), tmp_path / "s"
    host, heir = segstore.open(path, shared=True), segstore.open(path, shared=True)
    host.create_topic("t")
    heir.partition("t").append(b"x")
    host.close()
    assert begins.wait(PATIENCE)
    with pytest.raises(segstore.StorageError, match="a sync has failed"):
        heir.close()
    until(lambda: running() == before)
    with segstore.open(path) as store:
        assert len(list(store.partition("t"))) == 1


@pytest.mark.parametrize("kept", [(), (1,), (2,)], ids=["nobody", "the next host", "the guest"])
def test_members_that_nothing_refers_to_end(tmp_path: Path, kept: tuple[int, ...]) -> None:
    before, path = running(), tmp_path / "s"
    stores = opened(path)
    for each in stores:
        each.partition("t").append(b"x")
    left = [stores[number] for number in kept]
    del each
    stores.clear()
    gc.collect()
    for each in left:
        assert each.partition("t").append(b"y") == 3
        each.close()
        del each
    left.clear()
    gc.collect()
    until(lambda: running() == before)
    with segstore.open(path) as store:
        assert len(list(store.partition("t"))) == 3 + len(kept)


def test_a_host_in_a_cycle_is_ended_by_its_own_thread(tmp_path: Path) -> None:
    """The collector may run in any thread, also in the one that is to be waited for."""
    path = tmp_path / "s"
    with members(path, True) as (host,):
        host.run("store.close(); mine = segstore.open(store.path, shared=True); 0")
        host.run("import gc; turn = type(mine.engine.host).turn; ran = []")
        host.run("type(mine.engine.host).turn = lambda self: (gc.collect(), ran.append(1), turn(self))")
        host.run("gc.disable(); mine.me = mine; begun = time.monotonic(); del mine")
        until(lambda: "segstore-host" not in host.run("[each.name for each in threading.enumerate()]"))
        assert host.run("time.monotonic() - begun") < 20
        host.run("gc.collect(); again = segstore.open(store.path, shared=True); again.close()")


ENDS = {
    "host and guest": "h = open(p, shared=True); h.ensure_topic('t'); g = open(p, shared='guest')",
    "host and heir": "h = open(p, shared=True); h.ensure_topic('t'); g = open(p, shared=True)",
    "a guest": "g = open(p, shared='guest')",
    "an heir": "g = open(p, shared=True)",
}
WORK = {
    "appended": "g.partition('t').append(b'x')",
    "with a producer": "pr = segstore.Producer(g); pr.send('t', b'x')",
    "with a consumer": "c = segstore.Consumer(g); c.assign([segstore.TopicPartition('t', 0)]); c.poll(10)",
    "in threads": """
def work():
    while True:
        g.partition('t').append(b'x')
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
until(lambda: g.partition('t').end_offset > 100)
""",
}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("end", ENDS)
def test_an_interpreter_ends_without_a_close(tmp_path: Path, end: str, work: str) -> None:
    path = tmp_path / "s"
    code = "import threading, segstore\nfrom segstore import open\nfrom waiting import until\n"
    code += f"p = {str(path)!r}\n"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run() -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", f"{code}{ENDS[end]}\n{WORK[work]}"]
        return subprocess.run(program, env=found, capture_output=True, text=True, timeout=60, check=False)

    if end.startswith("host"):
        done = run()
    else:
        with members(path, True) as (host,):
            done = run()
            until(lambda: host.run("len(store.members())") == 1)
            assert host.append("on") >= 0
    assert (done.returncode, done.stderr) == (0, "")
    assert segstore.check(path) == []


FORKED = (
    "log().append(b'y')",
    "log().append_batch([b'y'])",
    "store.flush()",
    "log().read(0)",
    "store.members()",
)


@pytest.mark.parametrize("member", [0, 1, 2], ids=["host", "heir", "guest"])
def test_a_fork_is_no_member_and_its_parent_goes_on(tmp_path: Path, member: int) -> None:
    child = f"""
out = []
if (pid := os.fork()) == 0:
    for code in {FORKED!r}:
        try:
            eval(code)
        except BaseException as error:
            out.append(type(error).__name__)
    store.close()
    os._exit(sum(each == 'ForkedError' for each in out))
os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    with members(tmp_path / "s", True, True, "guest") as all_:
        for each in all_:
            each.append("x")
        assert all_[member].run(child) == len(FORKED)
        for number, each in enumerate(all_):
            assert each.append("x") == 3 + number
            assert each.run("len(store.members())") == 3


def test_one_error_behind_a_close(tmp_path: Path) -> None:
    with members(tmp_path / "s", True, "guest") as (_, guest):
        guest.run("old = log(); old.append(b'x'); mine = segstore.open(store.path, shared='guest')")
        guest.run("log2 = mine.partition('t'); log2.append(b'x'); mine.close(); mine.close()")
        for code in (
            "log2.append(b'x')",
            "log2.append_batch([bytes(100)] * 60_000)",
            "log2.flush()",
            "mine.flush()",
        ):
            with pytest.raises(MemberError) as error:
                guest.run(code)
            assert error.value.kind == "StoreClosedError"
        assert guest.append("on") == 2
