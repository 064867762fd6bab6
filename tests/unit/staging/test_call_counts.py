"""What an adoption asks the system for, counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from faults import CountingFiles
from staging import PARTS, begin, staged_paths
from stores import values

import segstore
from segstore.files import Files, Handle
from segstore.storage.staging import Staged, Stager, seal

PART = PARTS[0]
BATCHES = 40


def staged(path: Path, first: int, batches: int, files: Files | None = None) -> Staged:
    """Stage batches of 100 KB, a value each."""
    with Stager(path, files=files) as stager:
        rows = [b"%d" % (first + i) * 20_000 for i in range(batches)]
        stager.append_batch(*PART, rows, batch_bytes=100_000)
        return stager.finish()


def _path(file: object) -> object:
    return getattr(file, "path", file)


def test_the_headers_of_a_large_file_are_read_by_one_call(store_dir: Path) -> None:
    begin(store_dir)
    files, message = CountingFiles(), staged(store_dir, 1000, BATCHES)
    with segstore.open(store_dir, config={"inbox.segment.bytes": 1 << 20}, files=files) as store:
        files.clear()
        seal(store_dir, "one", [message])
        calls = [name for name, args in files.calls if args and str(_path(args[0])).endswith(".batches")]
        assert calls.count("read_by") == 1
        assert not {"seek_batch", "pread", "pread_into"}.intersection(calls)
        log = store.partition(*PART)
        assert [int(v[:4]) for v in values(log) if v] == list(range(1000, 1000 + BATCHES))


class Watched(Files):
    """Notes how many threads at most have looked at staged files or copied them at once, and have looked."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.most = self.most_looked = 0

    @contextmanager
    def _during(self, what: str) -> Iterator[None]:
        self.now.append(what)
        time.sleep(0.002)  # so that another thread that may would come
        self.most = max(self.most, len(self.now))
        self.most_looked = max(self.most_looked, self.now.count("look"))
        try:
            yield
        finally:
            self.now.remove(what)

    def copy_range(self, source: Handle, position: int, target: Handle, at: int, count: int) -> int:
        with self._during("copy"):
            return super().copy_range(source, position, target, at, count)

    def read_by(self, handle: Handle, call: Callable[[int], int]) -> int:
        if handle.path.endswith(".batches") and "gathered" not in handle.path:
            with self._during("look"):
                return super().read_by(handle, call)
        return super().read_by(handle, call)


@pytest.mark.parametrize("processors", [1, 2])
def test_one_thread_looks_at_files_while_no_more_join_others_than_there_are_processors(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    """What waits for the interpreter would be in the way of what works in the kernel."""
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    files, messages = Watched(), []
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("u", 4)
        for first in range(0, 60, 10):
            with Stager(store_dir) as stager:
                for partition in range(4):
                    rows = [b"%d" % (1000 + first + i) * 20_000 for i in range(10)]
                    stager.append_batch("u", partition, rows, batch_bytes=100_000)
                messages.append(stager.finish())
        seal(store_dir, "one", messages)
        assert files.most == processors
        assert files.most_looked == 1
        for partition in range(4):
            found = values(store.partition("u", partition))
            assert [int(v[:4]) for v in found if v] == list(range(1000, 1060))


def test_small_files_are_on_their_way_to_the_disk_while_more_are_joined(store_dir: Path) -> None:
    """Where each append is synced, so that the joined file is too before it is adopted."""
    begin(store_dir, {"flush.messages": 1})
    files = CountingFiles()
    messages = [staged(store_dir, 1000 + 10 * n, 10) for n in range(12)]
    size = sum(message.bytes for message in messages)
    with segstore.open(store_dir, files=files) as store:
        files.clear()
        seal(store_dir, "one", messages)
        calls = [(name, args) for name, args in files.calls if name in ("copy_range", "start_sync")]
        begun = [args[1:] for name, args in calls if name == "start_sync" and "gathered" in args[0].path]
        assert [name for name, _ in calls] == [*["copy_range"] * 6, "start_sync"] * 2
        assert begun == [(0, size // 2), (size // 2, size // 2)]
        assert [int(v[:4]) for v in values(store.partition(*PART)) if v] == list(range(1000, 1120))


def test_who_seals_small_files_waits_for_no_sync_of_the_joined_one(store_dir: Path) -> None:
    """What the stager has synced is there until the joined file is."""
    begin(store_dir)
    files = CountingFiles()
    messages = [staged(store_dir, 1000 + 10 * n, 10) for n in range(12)]
    with segstore.open(store_dir, files=files) as store:
        store.engine.context.scheduler.soon = lambda task: None  # what a roll asks for, and nobody waits for
        unsynced = store.engine.inbox._unsynced
        settle, unsynced.settle = unsynced.settle, lambda: None
        files.clear()
        seal(store_dir, "one", messages)
        joined = str(store_dir / "t-1" / f"{0:020d}.log")
        synced = [_path(args[0]) for name, args in files.calls if name in ("sync", "start_sync")]
        assert not [path for path in synced if path == joined or "gathered" in str(path)]
        assert all(path.exists() for message in messages for path in staged_paths(store_dir, message))
        files.clear()
        unsynced.settle = settle
        store.engine.inbox.settle()
        order = [(name, str(_path(args[0]))) for name, args in files.calls if name in ("sync", "unlink")]
        order = [(name, path) for name, path in order if path == joined or path.endswith(".batches")]
        assert order[0] == ("sync", joined)
        assert [name for name, _ in order[1:]] == ["unlink"] * len(messages)
        assert not [
            path for message in messages for path in staged_paths(store_dir, message) if path.exists()
        ]
        assert [int(v[:4]) for v in values(store.partition(*PART)) if v] == list(range(1000, 1120))


def test_a_stager_writes_what_is_staged_once(store_dir: Path) -> None:
    begin(store_dir)
    files, rows = CountingFiles(), np.zeros((60_000, 100), np.uint8)
    with Stager(store_dir, files=files) as stager:
        stager.append_batch(*PART, rows)
        message = stager.finish()
    written = [len(args[1]) for name, args in files.calls if name == "pwrite" and ".batches" in args[0].path]
    assert sum(written) == message.bytes
    assert max(written) <= 2 << 20
