"""Promise: the kernel alone tells which process that shares a store is dead: killed, stopped, forked, in
other namespaces, without its descriptors. A full disk, missing rights and processes that come at once leave
no file that is believed, and one host.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from shlex import quote

import pytest
from mounts import mounting as mounting
from mounts import unshared
from places import IMPORTED
from sharing import GUEST, HOST, joined, made, made_root, member_process
from stores import in_child
from waiting import PATIENCE, until

from segstore._native import lib
from segstore.errors import HostUnavailableError, StorageError
from segstore.files import Files
from segstore.storage.meta.store_format import has_living_members
from segstore.storage.shared.coherence import HostLine
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile

pytestmark = pytest.mark.kind("members of a shared store")

files = Files()
HELPERS = os.pathsep.join(IMPORTED)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return made_root(tmp_path / "store")


@pytest.fixture
def mine(root: str) -> Iterator[Members]:
    members = Members(files, root, made(files, root), may_host=True)
    yield members
    members.close()


def is_dead(by: Members, slot: int) -> bool:
    return bool(lib.seg_member_is_dead(by.c, slot, by.shared.member(slot).incarnation))


def states(pid: int) -> set[str]:
    """Return the states of a process's threads: T is stopped, Z is dead and not waited for."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread ends
            found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


# --- L2: who is dead ----------------------------------------------------------------------------


def test_L2_a_killed_process_is_dead_before_anybody_waits_for_it(root: str, mine: Members) -> None:
    with member_process(GUEST, root) as process:
        assert not is_dead(mine, 1)
        process.kill()
        until(lambda: is_dead(mine, 1))
        until(lambda: states(process.pid) == {"Z"})
        assert [member.slot for member in mine.all()] == [0]


def test_L2_a_stopped_process_lives_and_dies_where_it_stands(root: str, mine: Members) -> None:
    with member_process(GUEST, root) as process:
        process.send_signal(signal.SIGSTOP)
        until(lambda: states(process.pid) == {"T"})
        assert not is_dead(mine, 1)
        assert mine.all()[1].pid == process.pid
        process.kill()
        until(lambda: is_dead(mine, 1))


def test_L2_a_child_of_fork_does_not_keep_its_parent_alive(root: str, mine: Members) -> None:
    forks = GUEST + "\nif not os.fork():\n    import signal; signal.pause()\n"
    with member_process(forks, root) as process:
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        try:
            until(lambda: not links(child, root))
            process.kill()
            until(lambda: is_dead(mine, 1))
            assert Path(f"/proc/{child}").exists()
        finally:
            os.kill(child, signal.SIGKILL)


def test_L2_a_child_of_a_bare_clone_makes_its_parent_seem_alive_until_it_ends(
    root: str, mine: Members
) -> None:
    clones = GUEST + "\nimport ctypes, time\nif not ctypes.CDLL(None).fork():\n    time.sleep(1e6)\n"
    with member_process(clones, root) as process:
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        process.kill()
        until(lambda: states(process.pid) == {"Z"})
        assert links(child, root)
        assert not is_dead(mine, 1)  # safe, and late
        os.kill(child, signal.SIGKILL)
        until(lambda: is_dead(mine, 1))


def links(pid: int, root: str) -> list[str]:
    """Return the descriptors of a process that lead into a store."""
    place = Path(f"/proc/{pid}/fd")
    return [each.name for each in place.iterdir() if str(each.readlink()).startswith(root)]


def test_L2_a_program_that_a_member_runs_has_none_of_its_descriptors(root: str, mine: Members) -> None:
    shown = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, check=True, close_fds=False)
    assert mine.fd > 2
    assert root not in shown.stdout.decode()


def test_closerange_in_a_member_frees_its_own_slot_only(root: str, mine: Members) -> None:
    closes = GUEST + "\nos.closerange(3, 1000); assert not lib.seg_member_is_dead(members.c, 0, the_other)"
    other = f"from segstore._native import lib\nthe_other = {mine.incarnation}\n"
    with member_process(other + closes, root) as process:
        assert is_dead(mine, 1)
        assert process.poll() is None
        assert [member.slot for member in mine.all()] == [0]
        next_one = joined(files, root)
        assert next_one.slot == 1
        next_one.close()


# --- namespaces ---------------------------------------------------------------------------------

APART = ("unshare", "-rpf", "--kill-child")
"""Runs a process as number 1 of a pid namespace of its own."""


@pytest.fixture
def namespaces() -> None:
    if not shutil.which("unshare") or subprocess.run([*APART, "true"], capture_output=True).returncode:
        pytest.skip("namespaces are not permitted here")


@pytest.mark.usefixtures("namespaces")
def test_L2_members_in_pid_namespaces_of_their_own_have_one_pid_and_their_own_lives(root: str) -> None:
    with member_process(HOST, root, *APART) as host, member_process(GUEST, root, *APART) as guest:
        mine = joined(files, root)
        assert [(member.slot, member.pid) for member in mine.all()] == [(0, 1), (1, 1), (2, os.getpid())]
        line = HostLine(files, root, mine, PATIENCE)
        guest.kill()
        until(lambda: is_dead(mine, 1))
        assert not is_dead(mine, 0)
        line.check()
        host.kill()
        until(lambda: is_dead(mine, 0))
        with pytest.raises(HostUnavailableError):
            line.check()
        line.close()
        mine.close()


# --- hosts --------------------------------------------------------------------------------------


def test_a_host_that_is_killed_hangs_up_and_one_that_is_stopped_does_not_answer(root: str) -> None:
    with member_process(HOST, root) as host:
        mine = joined(files, root)
        line = HostLine(files, root, mine, PATIENCE)
        line._socket.settimeout(0.2)
        host.send_signal(signal.SIGSTOP)
        until(lambda: states(host.pid) == {"T"})
        with pytest.raises(HostUnavailableError, match="is alive") as caught:
            line.check()
        assert (caught.value.pid, caught.value.alive) == (host.pid, True)
        line.close()
        host.send_signal(signal.SIGCONT)
        line = HostLine(files, root, mine, PATIENCE)
        host.kill()
        until(lambda: not mine.others_alive())
        with pytest.raises(HostUnavailableError):
            line.check()
        with pytest.raises(HostUnavailableError, match="is gone") as caught:
            HostLine(files, root, mine, 1e6)  # for which nobody is waited
        assert (caught.value.pid, caught.value.alive) == (host.pid, False)
        line.close()
        mine.close()


ONE_OF_MANY = """
from segstore.storage.store.waiting import until_unlocked
def attempt():
    try:
        return files.lock(root + "/.lock")
    except BlockingIOError:
        raise StoreLockedError(root, None) from None
lock = until_unlocked(attempt, 60)
shared = SharedFile.make(files, root, **SETTINGS)
shared.live = True
members = Members(files, root, shared, may_host=True)
lock.close()
print(int(shared.made), members.slot, flush=True)
"""


def test_F3_of_many_that_make_the_file_at_once_one_makes_it(root: str) -> None:
    found = []
    with ExitStack() as running:
        several = [running.enter_context(started(ONE_OF_MANY, root)) for _ in range(6)]
        for each in several:
            assert each.stdout is not None
            found.append(each.stdout.readline().split())
        assert sorted(made for made, _ in found) == ["0"] * 5 + ["1"]
        assert sorted(int(slot) for _, slot in found) == list(range(6))
        assert has_living_members(files, root)


def started(program: str, root: str) -> subprocess.Popen[str]:
    code = f"from sharing import *\nroot, files = {root!r}, Files()\n{program}\nsys.stdin.read()\n"
    path = os.pathsep.join(sys.path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONPATH": path}, **pipes
    )


def test_F3_a_maker_that_is_killed_leaves_no_file_that_is_believed(root: str) -> None:
    killed = """
import signal
from faults import HookedFiles
class Killing(HookedFiles):
    def before(self, name, args, kwargs):
        if name == "pwrite" and args[1:] == (b"segshare", 0):
            os.kill(os.getpid(), signal.SIGKILL)
files = Killing()
made(files, root)
"""
    with started(killed, root) as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert (Path(root) / ".segstore" / "shared").stat().st_size == 65536
    assert not SharedFile.is_live(files, root)
    assert made(files, root).made


# --- rights -------------------------------------------------------------------------------------

NOBODY = 65534


def as_nobody(run: Callable[[], None]) -> list[str]:
    """Return what `run`, in a child without rights, raises."""

    def child(tell: Callable[[str], None]) -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            run()
        except StorageError as error:
            tell(f"{error.errno} {error}")

    return in_child(child)[1]


@pytest.mark.parametrize("name", ["shared", "members"])
def test_who_may_not_write_the_files_is_no_member(
    root: str, mine: Members, name: str, tmp_path: Path
) -> None:
    for place in [*tmp_path.parents, tmp_path]:
        if not place.stat().st_mode & 0o001 and place.stat().st_uid == os.getuid():
            place.chmod(place.stat().st_mode | 0o055)
    Path(root).chmod(0o755)
    (Path(root) / ".segstore").chmod(0o755)
    for each in ("shared", "members"):
        (Path(root) / ".segstore" / each).chmod(0o444 if each == name else 0o666)
    try:
        lines = as_nobody(lambda: joined(files, root).close())
    finally:
        for each in ("shared", "members"):
            (Path(root) / ".segstore" / each).chmod(0o600)
    assert len(lines) == 1
    assert lines[0].startswith("13 ")
    assert f".segstore/{name}" in lines[0]
    assert 'mode="r"' in lines[0]
    assert len(mine.all()) == 1


# --- file systems -------------------------------------------------------------------------------

FULL = """
import os, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
from sharing import *
from segstore.errors import StorageError
root, files = sys.argv[1], Files()
filler = open(os.path.dirname(root) + "/filler", "ab", 0)

def fill():
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass

def refused(call):
    try:
        call()
    except StorageError as error:
        return error.errno

fill()
print(refused(lambda: made(files, root)), SharedFile.is_live(files, root), SharedFile.join(files, root))
os.truncate(filler.name, 0)
shared = made(files, root)
shared.log(3).key = 7
fill()
print(refused(lambda: shared.log(4, grow=True)), SharedFile.is_live(files, root), shared.log(3).key)
for number in range(4):  # each page was allocated: a store into it is no SIGBUS
    shared.log(number).seats[15] = shared.log(number).ends[31].spare[5] = 1
for slot in range(64):
    shared.member(slot).number = 1
os.truncate(filler.name, 0)
print(shared.log(4, grow=True).key, shared.log(3).key)
"""


@pytest.mark.usefixtures("mounting")
def test_F2_a_full_tmpfs_refuses_the_file_and_never_a_page_of_it(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    run = f"{quote(sys.executable)} {quote(str(tmp_path / 'full.py'))} /mnt/store {quote(HELPERS)}"
    done = unshared("mount -t tmpfs -o size=1m none /mnt", "mkdir -p /mnt/store/.segstore", f"{run}")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["28 False None", "28 True 7", "0 7"]), (
        done.stderr
    )


LOWER = "lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work"
OVERLAY = f"mount -t overlay overlay -o {LOWER} /mnt/merged"
LAYERS = """
import os, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
from sharing import *
files = Files()
host = Members(files, "/mnt/lower", made(files, "/mnt/lower"), may_host=True)
host.shared.log(0).key = 7
merged = "/mnt/merged"
os.system(sys.argv[2])
seen = os.path.exists(merged + "/.segstore/shared")
print(seen, SharedFile.view(files, merged), SharedFile.join(files, merged), host.shared.is_there())
"""


@pytest.mark.usefixtures("mounting")
def test_F3_a_file_of_a_lower_layer_of_an_overlay_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(LAYERS)
    done = unshared(
        "mount -t tmpfs none /mnt",
        "mkdir -p /mnt/lower/.segstore /mnt/upper /mnt/work /mnt/merged",
        f"{OVERLAY} || exit 7",
        "umount /mnt/merged",
        f"{quote(sys.executable)} {quote(str(tmp_path / 'layers.py'))} {quote(HELPERS)} {quote(OVERLAY)}",
    )
    if done.returncode == 7:
        pytest.skip("no overlay can be mounted here")
    assert (done.returncode, done.stdout.split()) == (0, ["True", "None", "None", "True"]), done.stderr
