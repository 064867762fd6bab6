"""Promise: after a failed open nothing of the store goes on running, since the directory may be opened
again.
"""

from __future__ import annotations

import errno
import threading
from itertools import count
from pathlib import Path

import pytest
from faults import MUTATING, FailingFiles
from stores import Clock, write_topic
from waiting import until

import segstore

CALLS = MUTATING | {"open", "map", "pread", "listdir", "directories", "exists", "size", "modified", "inode"}


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("segstore")}


def test_whichever_call_fails_nothing_runs_in_the_background(store_dir: Path) -> None:
    """A sweeper that went on compacted the log of the store that was opened next, whose segments went."""
    write_topic(store_dir, [[b"a", b"b"]])
    before, failed = ours(), 0
    for nth in count(1):
        files = FailingFiles(CALLS, OSError(errno.EIO, "injected"), nth)
        try:
            store = segstore.open(store_dir, files=files, clock=Clock())
        except segstore.StorageError:
            failed += 1
            until(lambda: ours() <= before)  # the last lines of a thread, which runs no task any more
        else:
            met = files.hits
            files.arm(0)
            store.close()
            if not met:
                break
    assert failed > 20


def test_ctrl_c_while_a_thread_is_started(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was joined, which may not be done before it has begun: an error hid the interrupt."""
    write_topic(store_dir, [[b"a", b"b"]])
    start, begun, nth = threading.Thread.start, 0, 0

    def interrupted(thread: threading.Thread) -> None:
        nonlocal begun
        begun += thread.name.startswith("segstore")
        if begun == nth:
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    while True:
        nth, begun = nth + 1, 0
        try:
            store = segstore.open(store_dir)
        except KeyboardInterrupt:
            continue
        store.close()
        break
    assert nth > 2
