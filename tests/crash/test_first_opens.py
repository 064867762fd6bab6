"""Where the first open of a store fails, at whichever call to the disk, nothing is left of a store that never
was: neither a lock, nor a part of it, nor a directory that was made for it. What others keep there stays.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, CountingFiles, FailingFiles
from stores import tree

import segstore

CALLS = MUTATING | {"open", "listdir", "map", "exists", "inode"}
APART = 41
"""Of the calls of a replicated open one fails of so many: each costs two opens."""


def _missing(base: Path) -> None:
    """The directories are made by the open."""


def _empty(base: Path) -> None:
    for name in ("s", "a", "b", "c"):
        (base / name).mkdir()


def _others(base: Path) -> None:
    _empty(base)
    for name in ("s", "b"):
        (base / name / "notes.txt").write_bytes(b"not ours")
        (base / name / "folder").mkdir()


def _left(base: Path) -> None:
    """A lock file, as a process leaves it that was killed at its first call."""
    _empty(base)
    for name in ("s", "b"):
        (base / name / ".lock").write_bytes(b"1234")


BEFORE: dict[str, Callable[[Path], None]] = {
    "no directory": _missing,
    "an empty directory": _empty,
    "somebody else's files": _others,
    "the lock of one that was killed": _left,
}


def plain(base: Path, files: Any = None) -> Any:
    return segstore.open(base / "s", files=files)


def replicated(base: Path, files: Any = None) -> Any:
    return segstore.open_replicated([base / name for name in ("a", "b", "c")], files=files)


def _kept(base: Path, before: dict[str, bytes | None]) -> bool:
    """Whether all is as before, but for a lock that a killed process has left, which may go or stay."""

    def seen(found: dict[str, bytes | None]) -> dict[str, bytes | None]:
        return {path: data for path, data in found.items() if not (path.endswith(".lock") and path in before)}

    return seen(tree(base)) == seen(before)


def _fails(base: Path, open_: Callable[..., Any], begin: Callable[[Path], None], nth: int) -> bool:
    """Let the nth call fail; return whether the open did. What is there then is what was there before, and a
    later open makes the store.
    """
    base.mkdir()
    begin(base)
    before = tree(base)
    files = FailingFiles(CALLS, OSError(errno.EIO, os.strerror(errno.EIO)), nth)
    failed = False
    try:
        opened = open_(base, files)
    except segstore.SegstoreError:
        failed = True
    if not failed:  # the call may be one of the close, or of a thread: then the store was
        with suppress(segstore.SegstoreError):
            opened.close()
    else:
        assert _kept(base, before), f"call {nth}: {sorted(set(tree(base)) - set(before))}"
    with open_(base) as store:
        store.create_topic("t")
        store.partition("t", 0).append(b"x")
    shutil.rmtree(base)
    return failed


@pytest.mark.parametrize("there", BEFORE)
def test_a_plain_store(tmp_path: Path, there: str) -> None:
    files = CountingFiles()
    plain(tmp_path, files).close()
    calls = files.count(*CALLS)
    failed = [_fails(tmp_path / "x", plain, BEFORE[there], nth) for nth in range(1, calls + 1)]
    assert sum(failed) > calls / 4


@pytest.mark.parametrize("there", BEFORE)
def test_a_replicated_store(tmp_path: Path, there: str) -> None:
    files = CountingFiles()
    replicated(tmp_path, files).close()
    calls = files.count(*CALLS)
    tried = range(1 + list(BEFORE).index(there), calls + 1, APART)
    failed = [_fails(tmp_path / "x", replicated, BEFORE[there], nth) for nth in tried]
    assert sum(failed) > len(failed) / 4


def test_a_store_that_others_have_open_stays(tmp_path: Path) -> None:
    with plain(tmp_path) as store:
        store.create_topic("t")
        before = tree(tmp_path / "s")
        with pytest.raises(segstore.StoreLockedError):
            plain(tmp_path)
        assert tree(tmp_path / "s") == before
    with plain(tmp_path) as store:
        assert [*store.topics()] == ["t"]


def test_a_store_that_was_is_never_removed(tmp_path: Path) -> None:
    """An empty store is a store, too."""
    plain(tmp_path).close()
    calls = CountingFiles()
    plain(tmp_path, calls).close()
    kept = {".segstore", ".segstore/format"}
    for nth in range(1, calls.count(*CALLS) + 1):
        files = FailingFiles(CALLS, OSError(errno.EIO, os.strerror(errno.EIO)), nth)
        try:
            plain(tmp_path, files).close()
        except segstore.SegstoreError:
            assert kept <= set(tree(tmp_path / "s"))
