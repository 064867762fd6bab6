"""Promise: Ctrl-C, wherever it comes, leaks no descriptor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
from descriptors import never_blocks
from struck import struck

import segstore
from segstore._native import descriptors, lib
from segstore.files import Files, Handle
from segstore.storage.inbox.inbox import RenameWatch

# A generator that is dropped is ended where an exception is told and passed over.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.kind("interrupts"),
]
OURS = os.path.dirname(segstore.__file__)


def open_now() -> dict[str, str]:
    """What each open descriptor is of, by its number; without those of `never_blocks`, and without sockets:
    nothing here opens one, and clients of Kafka and Spark, whose threads outlive their tests in this process,
    connect again meanwhile.
    """
    listed = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        numbers = [number for number in os.listdir(listed) if number != str(listed)]
        there = {number: os.readlink(number, dir_fd=listed) for number in numbers if is_there(number, listed)}
        return {number: what for number, what in there.items() if not what.startswith("socket:")}
    finally:
        os.close(listed)


def is_there(number: str, listed: int) -> bool:
    """Not the descriptor that `listdir` had itself, nor one of librdkafka's."""
    try:
        os.readlink(number, dir_fd=listed)
        return not never_blocks(number)
    except FileNotFoundError:
        return False


def opens(path: Path) -> None:
    with Files().open(path / "file", write=True, create=True) as handle:
        handle.fileno()


def drops(path: Path) -> None:
    Files().open(path / "file", write=True, create=True)


def locks(path: Path) -> None:
    Files().lock(path / "lock").close()


def syncs(path: Path) -> None:
    Files().sync_dir(path)


def watches(path: Path) -> None:
    RenameWatch(str(path)).close()


def pipes(_path: Path) -> None:
    pipe, files = descriptors(), Files()
    files.make_pipe(pipe)
    files.close_pipe(pipe)


@pytest.mark.parametrize("run", [opens, drops, locks, syncs, watches, pipes])
def test_at_each_place(tmp_path: Path, run: Callable[[Path], None]) -> None:
    before, place, raised = open_now(), 0, 1
    while raised:
        place += 1
        raised = struck(partial(run, tmp_path), place)
        assert open_now() == before, place
    assert place > 1


@pytest.mark.parametrize("method", ["sendfile", "splice", "mmap", "read", "auto"])
def test_at_each_place_of_a_transfer(store_dir: Path, tmp_path: Path, method: str) -> None:
    with segstore.open(store_dir) as store, (tmp_path / "out").open("wb") as out:
        store.create_topic("t")
        log = store.partition("t")
        log.append_batch([b"value"] * 100)
        log.transfer(out, 0, 10_000, method)
        before, place, raised = open_now(), 0, 1
        while raised:
            place += 1
            raised = struck(partial(log.transfer, out, 0, 10_000, method), place)
            assert open_now() == before, place
        assert place > 10


def test_what_is_dropped_is_closed_by_no_step_of_python(tmp_path: Path) -> None:
    """An interrupt comes between steps of Python's; within a destructor it is told, and passed over."""
    held: list[object] = [
        Files().open(tmp_path / "a", write=True, create=True),
        Files().lock(tmp_path / "b"),
        RenameWatch(str(tmp_path)),
        descriptors(),
    ]
    lib.seg_open_pipe(held[-1])
    before, seen = open_now(), []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            seen.append(frame.f_code)

    measured = sys.getprofile()
    sys.setprofile(profile)
    try:
        held.clear()
    finally:
        sys.setprofile(measured)
    assert not seen
    assert len(before) - len(open_now()) == 5


def test_a_close_that_was_interrupted_may_be_repeated(tmp_path: Path) -> None:
    """The next one that locks the file in this process is not kept out by an object that is closed."""
    files, place, raised = Files(), 0, 1
    while raised:
        place += 1
        handle: Handle = files.lock(tmp_path / "lock")
        raised = struck(handle.close, place)
        handle.close()
        assert handle.closed
        files.lock(tmp_path / "lock").close()
    assert place > 1
