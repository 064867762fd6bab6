"""segstore.storage.shared.coherence: a number that goes through the file and comes back over the socket."""

from __future__ import annotations

import errno
import os
import select
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

import pytest
from faults import FailingFiles
from sharing import joined, made, made_root
from stores import in_child
from waiting import PATIENCE, until

from segstore.errors import HostUnavailableError, IllegalStateError, NotShareableError, StorageError
from segstore.files import Files, sockets
from segstore.storage.shared import coherence
from segstore.storage.shared.coherence import HostLine, HostSocket
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile
from segstore.threads import Background

files = Files()


@pytest.fixture
def listening(root: str, host: Members) -> Iterator[HostSocket]:
    listening = HostSocket(files, root, host.shared)
    yield listening
    listening.close()
    assert [each.name for each in threading.enumerate() if each.name == "segstore-host"] == []


@pytest.fixture
def guest(root: str, host: Members) -> Iterator[Members]:
    members = joined(files, root)
    yield members
    members.close()


@pytest.fixture
def line(root: str, listening: HostSocket, guest: Members) -> Iterator[HostLine]:
    line = HostLine(files, root, guest, PATIENCE)
    yield line
    line.close()


def has_hung_up(fd: int, ms: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(ms))


# --- the number ---------------------------------------------------------------------------------


def test_a_guest_hears_its_number(line: HostLine, guest: Members) -> None:
    numbers = set()
    for _ in range(5):
        line.check()
        numbers.add(guest.shared.member(guest.slot).number)
    assert len(numbers) == 5
    assert not has_hung_up(line.fileno(), 0)


def test_many_guests_are_answered(root: str, listening: HostSocket, guest: Members) -> None:
    guests = [joined(files, root) for _ in range(40)]
    lines = [HostLine(files, root, each, PATIENCE) for each in guests]
    for each in reversed(lines):
        each.check()
    for number, each in enumerate(lines):
        if number % 2:
            each.close()
    for number, each in enumerate(lines):
        if not number % 2:
            each.check()
            each.close()


def test_a_host_that_has_other_memory(root: str, host: Members, guest: Members, tmp_path: Path) -> None:
    other = made_root(tmp_path / "other")
    shutil.copy(f"{root}/.segstore/shared", f"{other}/.segstore/shared")
    apart = SharedFile(files, other)
    apart.which = host.shared.which  # only the number can tell
    listening = HostSocket(files, root, apart)
    with pytest.raises(NotShareableError, match=r"other memory.*ext4"):
        HostLine(files, root, guest, PATIENCE)
    listening.close()


def test_a_host_that_has_another_file(root: str, host: Members, guest: Members) -> None:
    device, inode = host.shared.which
    for other in ((device + 1, inode), (device, inode + 1)):  # as of a lower layer of an overlay
        host.shared.which = other
        listening = HostSocket(files, root, host.shared)
        with pytest.raises(NotShareableError, match=f"{other[0]}, {other[1]}"):
            HostLine(files, root, guest, PATIENCE)
        listening.close()


# --- who is not there ---------------------------------------------------------------------------


def test_a_living_host_that_can_t_be_reached_is_on_another_kernel(root: str, guest: Members) -> None:
    with pytest.raises(NotShareableError, match=rf"process {os.getpid()}.*one kernel"):
        HostLine(files, root, guest, 0.05)


def test_no_host(root: str, host: Members, guest: Members) -> None:
    host.close()
    with pytest.raises(HostUnavailableError, match="is gone") as caught:
        HostLine(files, root, guest, 0.05)
    assert (caught.value.pid, caught.value.alive, caught.value.retriable) == (os.getpid(), False, True)


def test_no_host_has_ever_been(root: str) -> None:
    first = Members(files, root, made(files, root), may_host=False)
    with pytest.raises(HostUnavailableError) as caught:
        HostLine(files, root, first, 0.05)
    assert (caught.value.pid, caught.value.alive) == (0, False)
    first.close()


def test_a_host_that_listens_later_is_waited_for(root: str, host: Members, guest: Members) -> None:
    lines: list[HostLine] = []
    waits = threading.Thread(target=lambda: lines.append(HostLine(files, root, guest, PATIENCE)))
    waits.start()
    listening = HostSocket(files, root, host.shared)
    waits.join()
    lines[0].check()
    lines[0].close()
    listening.close()


def test_hosts_that_come_and_go_before_they_listen(
    root: str, host: Members, guest: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is there for a moment: that is no file system which two kernels share."""
    last = guest.host()
    assert last is not None
    first = last._replace(slot=last.slot + 1)
    hosts = chain([first], repeat(last))
    monkeypatch.setattr(guest, "host", lambda: next(hosts))
    with pytest.raises(HostUnavailableError, match="is alive"):
        HostLine(files, root, guest, 0.05)
    with pytest.raises(NotShareableError, match="can't reach"):  # the same one, all the time
        HostLine(files, root, guest, 0.05)


def test_a_host_that_does_not_answer(root: str, host: Members, guest: Members) -> None:
    listener = sockets.listen(files, coherence.path_of(root))  # and nobody accepts, as of a stopped process
    with pytest.raises(HostUnavailableError, match="is alive") as caught:
        HostLine(files, root, guest, 0.05)
    assert (caught.value.pid, caught.value.alive) == (os.getpid(), True)
    listener.close()


def test_a_host_that_has_accepted_none_of_many(root: str, host: Members, guest: Members) -> None:
    listener = sockets.listen(files, coherence.path_of(root))
    waiting = []
    with suppress(BlockingIOError):
        while True:
            waiting.append(sockets.connect(coherence.path_of(root), 0.001))
    assert waiting
    with pytest.raises(HostUnavailableError, match="is alive"):
        HostLine(files, root, guest, 0.05)
    for each in (*waiting, listener):
        each.close()


def test_a_host_that_closes_hangs_up(
    root: str, line: HostLine, host: Members, listening: HostSocket, guest: Members
) -> None:
    listening.unlink()
    listening.unlink()
    listening.close()
    assert has_hung_up(line.fileno(), int(PATIENCE * 1000))
    with pytest.raises(HostUnavailableError):
        line.check()
    assert not Path(coherence.path_of(root)).exists()
    next_one = HostSocket(files, root, guest.shared)
    guest.become_host()
    again = HostLine(files, root, host, PATIENCE)
    assert not has_hung_up(again.fileno(), 0)
    again.close()
    next_one.close()


# --- what a host hears --------------------------------------------------------------------------

NONSENSE: dict[str, bytes] = {
    "a slot below all": b"\xff\xff\xff\xff",
    "a slot above all": (64).to_bytes(4, "little"),
    "half a slot": b"\0\0",
    "a request of Kafka's": b"\0\0\0\x10GET / HTTP/1.1\r\n",
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_its_own_connection_only(root: str, line: HostLine, name: str) -> None:
    with socket.socket(socket.AF_UNIX) as mad:
        mad.settimeout(PATIENCE)
        mad.connect(coherence.path_of(root))
        mad.sendall(NONSENSE[name])
        mad.shutdown(socket.SHUT_WR)
        try:
            while mad.recv(100):
                pass
        except ConnectionResetError:
            pass
    line.check()


def test_a_host_without_descriptors_answers_later(
    root: str, line: HostLine, guest: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, refused = sockets.accept, list[int]()

    def accept_later(listener: socket.socket) -> socket.socket:
        if len(refused) < 3:
            refused.append(1)
            raise OSError(errno.EMFILE, "too many")
        return accept(listener)

    monkeypatch.setattr(sockets, "accept", accept_later)
    other = HostLine(files, root, guest, PATIENCE)
    assert len(refused) == 3
    line.check()
    other.close()


# --- the socket ---------------------------------------------------------------------------------


def test_a_path_of_more_bytes_than_a_socket_s_may_have(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("é" * 100) / "store"
    root = made_root(deep)
    assert len(os.fsencode(coherence.path_of(root))) > 300
    members = Members(files, root, made(files, root), may_host=True)
    members.become_host()
    listening = HostSocket(files, root, members.shared)
    line = HostLine(files, root, members, PATIENCE)
    line.check()
    assert stat.S_ISSOCK(os.stat(coherence.path_of(root)).st_mode)
    listening.unlink()
    for each in (line, listening, members):
        each.close()
    assert not os.path.lexists(coherence.path_of(root))


LEFT: dict[str, Callable[[str], object]] = {
    "a socket of a dead host": lambda path: socket.socket(socket.AF_UNIX).bind(path),
    "a file": lambda path: Path(path).write_bytes(b"x"),
    "a dangling link": lambda path: os.symlink("absent", path),
}


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_of_a_dead_host_makes_room(
    root: str, host: Members, guest: Members, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(f"{root}/.segstore")  # the path of a test may be long
    LEFT[name]("host")
    listening = HostSocket(files, root, host.shared)
    HostLine(files, root, guest, PATIENCE).close()
    listening.close()


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_who_may_write_the_files_may_connect(root: str, host: Members, mode: int) -> None:
    class Moded(Files):
        file_mode = mode

    listening = HostSocket(Moded(), root, host.shared)
    assert stat.S_IMODE(os.stat(coherence.path_of(root)).st_mode) == mode
    listening.close()


def test_a_socket_that_can_t_be_made(root: str, host: Members) -> None:
    os.mkdir(coherence.path_of(root))
    with pytest.raises(StorageError) as caught:
        HostSocket(files, root, host.shared)
    assert caught.value.filename == coherence.path_of(root)


def test_a_socket_whose_removal_fails_is_closed(root: str, host: Members, guest: Members) -> None:
    failing = FailingFiles(["unlink"], OSError(errno.EACCES, "no"))
    listening = HostSocket(failing, root, host.shared)
    listening.unlink()
    listening.close()
    assert failing.hits == 1
    with pytest.raises(NotShareableError):
        HostLine(files, root, guest, 0.05)


def test_a_thread_that_can_t_be_started(root: str, host: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Background) -> None:
        raise IllegalStateError("no more threads")

    monkeypatch.setattr(Background, "start", refuse)
    with pytest.raises(IllegalStateError):
        HostSocket(files, root, host.shared)
    assert not Path(coherence.path_of(root)).exists()


# --- fork ---------------------------------------------------------------------------------------


@pytest.mark.kind("kills")
def test_a_child_has_no_line_and_closes_nothing_of_its_parent_s(
    root: str, line: HostLine, listening: HostSocket, host: Members, guest: Members
) -> None:
    def child(tell: Callable[[str], None]) -> None:
        tell(str((line.fileno(), guest.fd, guest.c.members_fd, host.fd)))
        listening.unlink()
        for each in (line, listening, guest, host):
            each.close()
        tell("closed")

    assert in_child(child) == (0, ["(-1, -1, -1, -1)", "closed"])
    line.check()
    assert len(host.all()) == 2
    assert Path(coherence.path_of(root)).exists()


@pytest.mark.kind("programs")
def test_a_child_that_lives_on_keeps_no_line_open(
    root: str, line: HostLine, listening: HostSocket, host: Members, guest: Members
) -> None:
    until(lambda: not has_hung_up(line.fileno(), 0))
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    listening.close()
    host.close()
    assert has_hung_up(line.fileno(), int(PATIENCE * 1000))
    until(lambda: len(guest.all()) == 1)  # the child closes its copies once it runs
    os.close(reading)
    os.close(writing)
    os.waitpid(pid, 0)
