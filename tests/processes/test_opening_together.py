"""A store that is made while others make, open, copy or remove it: each of these calls works, or raises a
named error.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, HookedFiles
from stores import values

import segstore
from segstore.errors import StoreLockedError
from segstore.files import Files
from segstore.storage.inbox.stager import Stager
from segstore.storage.meta.directory_safety import remove_unused

pytestmark = pytest.mark.kind("programs")


class Meanwhile(HookedFiles):
    """`other` runs just before the `nth` call, as another process would; `ran` says whether it came to it."""

    def __init__(self, nth: int, other: Callable[[], object]) -> None:
        self.left, self.other, self.ran = nth, other, False

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            self.ran = True
            self.other()


def opened(path: Path, **options: Any) -> str:
    try:
        segstore.open(path, **options).close()
    except StoreLockedError:
        return "locked"
    return "opened"


def test_a_new_store_is_opened_and_closed_by_another_before_each_call(tmp_path: Path) -> None:
    nth, came = 0, set()
    while True:
        nth += 1
        path, others = tmp_path / str(nth), []
        files = Meanwhile(nth, lambda path=path, others=others: others.append(opened(path)))  # type: ignore[misc]
        assert opened(path, files=files) == "opened"
        came.update(others)
        assert list(segstore.check(path)) == []
        if not files.ran:
            break
    assert nth > 20
    assert came == {"opened", "locked"}


def test_a_new_store_is_opened_and_kept_by_another_before_each_call(tmp_path: Path) -> None:
    """One of the two has it, the other is told so."""
    nth, ways = 0, set()
    while True:
        nth += 1
        path, kept = tmp_path / str(nth), []

        def keep(path: Path = path, kept: list[segstore.Store] = kept) -> None:
            try:
                kept.append(segstore.open(path))
            except StoreLockedError:
                return

        files = Meanwhile(nth, keep)
        ways.add((opened(path, files=files), bool(kept)))
        for store in kept:
            store.close()
        if not files.ran:
            break
    assert ways == {("locked", True), ("opened", False)}


def test_a_stager_begins_before_each_call_of_the_first_open(tmp_path: Path) -> None:
    """It makes the directories of ours too, without the writer's lock."""
    nth = 0
    while True:
        nth += 1
        path = tmp_path / str(nth)

        def stage(path: Path = path) -> None:
            if path.exists():
                Stager(path).close()

        files = Meanwhile(nth, stage)
        assert opened(path, files=files) == "opened"
        if not files.ran:
            break


def test_the_rights_are_the_ones_of_whoever_made_the_store(tmp_path: Path) -> None:
    """Another makes it, to be read by a group, after this process saw that there was none."""
    nth = 0
    while True:
        nth += 1
        path, first = tmp_path / str(nth), []
        files = Meanwhile(
            nth,
            lambda path=path, first=first: first.append(opened(path, file_mode=0o640)),  # type: ignore[misc]
        )
        with segstore.open(path, files=files) as store:
            store.create_topic("t")
            log = next((path / "t-0").glob("*.log"))
            # Up to the lock the other one was first; behind it this process was.
            assert oct(log.stat().st_mode & 0o777) == ("0o640" if first == ["opened"] else "0o600")
        if not files.ran:
            break


def test_readers_of_a_store_that_is_being_made(tmp_path: Path) -> None:
    """Before each call of the writer that makes store, topic and first record: what is there, or nothing."""
    nth, seen = 0, set[str]()
    while True:
        nth += 1
        path = tmp_path / str(nth)

        def look(path: Path = path) -> None:
            try:
                with segstore.open(path, "r") as reader:
                    there = [(t, p) for t, info in reader.topics().items() for p in info.partition_ids]
                    seen.add(str([values(reader.partition(*key)) for key in there]))
            except segstore.SegstoreError as error:
                seen.add(f"{type(error).__name__}: {str(error).replace(str(path), '')}")

        files = Meanwhile(nth, look)
        with segstore.open(path, files=files) as store:
            store.create_topic("t", partitions=2)
            store.partition("t").append(b"x")
        if not files.ran:
            break
    assert seen == {
        "StorageError: [Errno 2] No such store (opening it with mode=\"rw\" makes it): ''",
        "StoreClosedError: /t-0 is not there: its topic is only being made, or was deleted",
        "StoreClosedError: /t-1 is not there: its topic is only being made, or was deleted",
        "[]",
        "[[], []]",
        "[[b'x'], []]",
    }


def test_a_lock_file_that_was_removed_meanwhile_is_locked_anew(tmp_path: Path) -> None:
    """A failed import removes the store that it made, with its lock file: who has that open, and no other,
    would else be the writer together with whoever makes it anew.
    """
    path = tmp_path / "store"
    for nth in range(1, 100):
        shutil.rmtree(path, ignore_errors=True)
        segstore.open(path).close()
        files = Meanwhile(nth, lambda: remove_unused(Files(), str(path)))
        try:
            handle = files.lock(path / ".lock")
        except BlockingIOError:
            continue
        with handle:
            assert os.fstat(handle.fd).st_ino == (path / ".lock").stat().st_ino
        if not files.ran:
            break
    assert nth > 5


def test_two_copies_to_one_place(tmp_path: Path, rng: random.Random) -> None:
    """The first one goes on undisturbed, whenever the second one comes."""
    source, told = tmp_path / "source", []
    with segstore.open(source) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
    calls = CountingFiles()
    segstore.copy(source, tmp_path / "counted", files=calls)
    for nth in rng.sample(range(1, len(calls.calls) + 1), 20):
        target = tmp_path / str(nth)

        def copy(files: Files | None = None, target: Path = target) -> None:
            try:
                segstore.copy(source, target, files=files)
            except segstore.StorageError as error:
                told.append(error.errno)
            else:
                told.append(0)

        copy(Meanwhile(nth, copy))
        with segstore.open(target, "r") as reader:
            assert values(reader.partition("t")) == [b"x"]
        assert not list(tmp_path.glob(f"{nth}.*"))
    assert len(told) == 40
    assert told.count(0) == 20
    assert set(told) <= {0, errno.EBUSY, errno.EEXIST}
