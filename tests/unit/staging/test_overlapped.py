"""A stager's thread writes the last bytes of a long call while the next rows are on their way to it."""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FailingFiles, HookedFiles
from numpy.typing import NDArray
from staging import PARTS, begin, inbox
from stores import values as values_of
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.storage.staging import Stager, seal

LONG = 60_000  # records of 100 bytes: several chunks, the last of which is written behind the call
TWO_CHUNKS = 30_000  # the thread writes one of them
PART = PARTS[0]


def column(first: int, n: int = LONG) -> NDArray[np.uint8]:
    """Distinct values, a row for each."""
    return np.frombuffer(b"".join(b"%0100d" % i for i in range(first, first + n)), np.uint8).reshape(n, 100)


class Held(HookedFiles):
    """Files that keep writes to staged files waiting, but for those of the thread that makes the calls, and
    note which threads write.
    """

    def __init__(self) -> None:
        self.go, self.writers = threading.Event(), set[int]()
        self._caller = threading.get_ident()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "pwrite" and args[0].path.endswith(".batches"):
            self.writers.add(threading.get_ident())
            if threading.get_ident() != self._caller:
                assert self.go.wait(PATIENCE)


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "segstore-append"]


def read_back(store_dir: Path) -> list[bytes | None]:
    with segstore.open(store_dir, "r") as store:
        return values_of(store.partition(*PART))


def test_what_is_under_way_when_a_call_returns_is_in_the_file_when_finish_returns(store_dir: Path) -> None:
    begin(store_dir)
    values, files = column(0, TWO_CHUNKS), Held()
    with Stager(store_dir, files=files) as stager:
        stager.append_batch(*PART, values)
        until(lambda: len(files.writers) == 1)  # the thread holds a write, and the call has returned
        written = values.tobytes()
        values = np.zeros_like(values)
        files.go.set()
        message = stager.finish()
    seal(store_dir, "one", [message])
    assert b"".join(v for v in read_back(store_dir) if v) == written
    until(lambda: not own_threads())


def test_all_long_calls_share_one_thread_and_short_ones_need_none(store_dir: Path) -> None:
    begin(store_dir)
    files = Held()
    with Stager(store_dir, files=files) as stager:
        for first in range(5):
            stager.append_batch(*PART, column(first, 10))
        assert files.writers == {threading.get_ident()}
        assert not own_threads()
        files.go.set()
        for first in range(3):
            stager.append_batch(*PART, column(LONG * first))
            assert len(own_threads()) == 1
        message = stager.finish()
    assert len(files.writers) <= 2
    assert message.records == 3 * LONG + 50
    seal(store_dir, "one", [message])
    wanted = [first + i for first in range(5) for i in range(10)]
    assert [int(v or b"") for v in read_back(store_dir)] == wanted + list(range(3 * LONG))


@pytest.mark.parametrize("then", ["append", "finish"])
def test_a_write_that_fails_behind_a_call_is_told_by_the_next_one(store_dir: Path, then: str) -> None:
    begin(store_dir)
    caller = threading.get_ident()

    def fail(name: str, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != caller:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[0].path)

    files = FailingFiles({"pwrite"}, fail, times=1 << 30)
    with Stager(store_dir, files=files) as stager:
        stager.append_batch(*PART, column(0, TWO_CHUNKS))
        with pytest.raises(segstore.StorageError, match="No space"):
            stager.finish() if then == "finish" else stager.append_batch(*PART, column(0))
        with pytest.raises(errors.IllegalStateError, match="closed"):
            stager.finish()
    assert inbox(store_dir) == []
    assert not own_threads()


def test_a_stager_that_nobody_closed_leaves_no_thread(store_dir: Path) -> None:
    begin(store_dir)
    stager = Stager(store_dir)
    stager.append_batch(*PART, column(0))
    assert len(own_threads()) == 1
    del stager

    def collected() -> bool:
        gc.collect()  # again: a write that is under way refers to its stager
        return not own_threads()

    until(collected)


@pytest.mark.kind("programs")
def test_the_child_of_a_fork_can_neither_use_nor_remove_it(store_dir: Path) -> None:
    begin(store_dir)
    with Stager(store_dir) as stager:
        stager.append_batch(*PART, column(0))
        pid = os.fork()
        if not pid:
            refused = 0
            try:
                with stager:
                    stager.append_batch(*PART, column(0))
            except errors.ForkedError:
                refused = 1
            os._exit(not refused)
        assert os.waitpid(pid, 0)[1] == 0
        message = stager.finish()
    seal(store_dir, "one", [message])
    assert [int(v or b"") for v in read_back(store_dir)] == list(range(LONG))
