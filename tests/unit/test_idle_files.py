"""If the process has no descriptor left, pools close files of theirs for whatever else is to be opened."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from elsewhere import elsewhere
from stores import in_child

from segstore import idle_files
from segstore import listening as sockets
from segstore._native import descriptors
from segstore.files import Files
from segstore.files.given_files import in_memory, memory_file, read_given
from segstore.server.network.loop import Loop
from segstore.storage.handle_pool import HandlePool

KEPT = 12
FILES = Files()


Call = Callable[[Path], object]


def made(place: Path) -> None:
    FILES.open(place / "new", write=True, create=True).close()


def replaced(place: Path) -> None:
    FILES.write_atomic(place / "new", b"content")
    assert FILES.read_file(place / "new") == b"content"


def piped(_: Path) -> None:
    pipe = descriptors()
    FILES.make_pipe(pipe)
    FILES.close_pipe(pipe)


def in_memory_files(_: Path) -> None:
    with memory_file(b"secret") as path:
        assert os.stat(path).st_size == 6
    assert in_memory(b"secret").fd >= 0


def looped(_: Path) -> None:
    Loop().discard()


def listening(_: Path) -> None:
    for sock in sockets.listen("127.0.0.1", 0):
        sock.close()


CALLS: dict[str, Call] = {
    "a file is opened": lambda place: FILES.open(place / "0"),
    "a file is made": made,
    "a small file is written and read": replaced,
    "a lock is taken": lambda place: FILES.lock(place / "lock"),
    "a directory is synced": lambda place: FILES.sync_dir(place),
    "a directory is listed": lambda place: FILES.listdir(place),
    "directories are listed": lambda place: FILES.directories(place),
    "irregular files are listed": lambda place: FILES.irregular(place),
    "a user's file is read": lambda place: read_given(str(place / "0"), 1),
    "files in memory are made": in_memory_files,
    "a pipe is made": piped,
    "a server's loop is made": looped,
    "a server listens": listening,
}


def with_none_left(place: Path, kept: int, call: Call) -> None:
    """Call with `kept` files in a pool, and no descriptor left. Files in several pools would do as well."""
    for number in range(KEPT):
        (place / str(number)).touch()
    pools = [HandlePool(FILES, KEPT) for _ in range(2)]
    for number in range(kept):
        pools[number % 2].get(str(place / str(number)))
    socket.getaddrinfo("127.0.0.1", 0)  # what the resolver reads first
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with suppress(OSError):
        while True:
            os.open(os.devnull, os.O_RDONLY)
    call(place)


@pytest.mark.kind("kills")
@pytest.mark.parametrize("case", CALLS)
def test_files_of_pools_make_room(tmp_path: Path, case: str) -> None:
    assert in_child(lambda _: with_none_left(tmp_path, KEPT, CALLS[case])) == (0, [])


@pytest.mark.kind("kills")
@pytest.mark.parametrize("case", CALLS)
def test_without_such_files_it_is_the_system_s_error(tmp_path: Path, case: str) -> None:
    def run(_: object) -> None:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            with_none_left(tmp_path, 0, CALLS[case])

    assert in_child(run) == (0, [])


def test_a_file_that_is_in_use_stays_open(tmp_path: Path) -> None:
    (tmp_path / "used").write_bytes(b"content")
    pool = HandlePool(FILES, 1)
    used = pool.get(str(tmp_path / "used"))
    assert pool.close_some()
    assert os.fstat(used.fd).st_size == 7
    assert pool.get(str(tmp_path / "used")) is not used


def test_a_quarter_goes_at_a_time_the_oldest_first(tmp_path: Path) -> None:
    pool = HandlePool(FILES, 8)
    paths = [str(tmp_path / str(number)) for number in range(8)]
    for path in paths:
        Path(path).touch()
        pool.get(path)
    for kept in (6, 4, 3, 2, 1, 0):
        assert pool.close_some()
        assert [path for path in paths if pool.opened((path, False))] == paths[8 - kept :]
    assert not pool.close_some()


def test_a_pool_that_another_thread_makes_smaller_has_files_all_the_same(tmp_path: Path) -> None:
    """It does so while this thread waits for the lock, and has used the descriptors by now."""
    pool = HandlePool(FILES, 8)
    for number in range(8):
        (tmp_path / str(number)).touch()
        pool.get(str(tmp_path / str(number)))
    theirs = pool.lock

    class Contended:
        def __enter__(self) -> None:
            pool.lock = theirs
            elsewhere(pool.close_some)
            theirs.__enter__()

        def __exit__(self, *raised: object) -> None:
            theirs.__exit__(*raised)

    pool.lock = Contended()
    assert pool.close_some()


@pytest.mark.kind("kills")
def test_a_child_closes_none_of_its_parent_s(tmp_path: Path) -> None:
    """A thread of the parent's may have held the lock of the pool at the fork."""
    pool = HandlePool(FILES, 1)
    (tmp_path / "0").touch()
    pool.get(str(tmp_path / "0"))

    def run(tell: Callable[[str], object]) -> None:
        tell(str(idle_files.close_some()))

    assert in_child(run) == (0, ["False"])
    assert pool.opened((str(tmp_path / "0"), False))
