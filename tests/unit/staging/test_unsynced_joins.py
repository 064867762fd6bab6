"""Promise: a segment that was joined from staged files is made of them again until it is synced, and only
then; what is needed for that is kept.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from faulty import MODES, FaultyFiles
from staging import (
    PARTS,
    SMALL,
    begin,
    contents,
    flip,
    inbox,
    left_in_inbox,
    quarantined,
    rows,
    stage,
    staged_paths,
)
from stores import as_the_same, values
from waiting import PATIENCE

import segstore
from segstore import names
from segstore.storage.inbox import adopt
from segstore.storage.staging import Staged, abort, seal
from segstore.threads import take

N, PIECES = 16, 4
CONFIG = {"inbox.segment.bytes": 1000, "log.cleaner.threads": 0}
TOPIC = {**SMALL, "segment.bytes": 3000}


class Unsettled:
    """A store with what was joined and is not synced; its files and its stagers' messages."""

    def __init__(self, root: Path, files: FaultyFiles) -> None:
        self.path, self.files = begin(root / "s", TOPIC), files
        self.store = segstore.open(self.path, files=files, config=CONFIG)
        self.unsynced = self.store.engine.inbox._unsynced
        self._settle, self.unsynced.settle = self.unsynced.settle, lambda: None
        self.messages: list[Staged] = []

    def seal(self) -> None:
        pieces = range(0, N, N // PIECES)
        self.messages = [
            stage(self.path, "a", first + N // PIECES, first=first, files=self.files) for first in pieces
        ]
        seal(self.path, "one", self.messages, files=self.files)
        assert [name for name in inbox(self.path) if name.endswith(names.JOINED)]

    def settle(self) -> None:
        self.unsynced.settle = self._settle
        self.store.engine.inbox.settle()

    def staged(self) -> list[Path]:
        return [path for message in self.messages for path in staged_paths(self.path, message)]

    def cut(self, mode: str, rng: random.Random) -> None:
        self.files.power_cut(mode, rng)
        as_the_same(self.path)
        self.store.engine.abandon()


@pytest.fixture
def unsettled(tmp_path: Path) -> Iterator[Unsettled]:
    world = Unsettled(tmp_path, FaultyFiles(tmp_path))
    yield world
    world.store.engine.let_go()


class NotLinked(FaultyFiles):
    """A file system on which a file has one name; `broken` may be cleared."""

    broken = True

    def link(self, source: Any, target: Any) -> None:
        if self.broken and os.fspath(target).endswith(names.LOG + names.TEMPORARY):
            raise OSError(errno.EPERM, "a file has one name here")
        super().link(source, target)


class Synced(FaultyFiles):
    """Notes the segments that are synced, by the directories that they lie in, and the paths of indexes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.synced: list[str] = []
        self.indexes: set[str] = set()

    def sync(self, handle: Any) -> None:
        if os.fspath(handle.path).endswith((names.INDEX, names.TIME_INDEX)):
            self.indexes.add(os.fspath(handle.path))
        if os.fspath(handle.path).endswith(names.LOG):
            self.synced.append(os.path.basename(os.path.dirname(os.fspath(handle.path))))
        super().sync(handle)


def test_files_that_can_not_become_segments_leave_no_note(tmp_path: Path) -> None:
    path = begin(tmp_path / "s", TOPIC)
    with segstore.open(path, files=NotLinked(tmp_path), config=CONFIG) as store:
        pieces = range(0, N, N // PIECES)
        seal(path, "one", [stage(path, "a", first + N // PIECES, first=first) for first in pieces])
        assert not [name for name in inbox(path) if name.endswith(names.JOINED)]
        assert contents(store) == [rows("a", N)] * len(PARTS)


def test_no_joined_segment_is_synced_before_it_is_settled(tmp_path: Path) -> None:
    files = Synced(tmp_path)
    world = Unsettled(tmp_path, files)
    del files.synced[:]
    world.seal()
    came: SimpleQueue[None] = SimpleQueue()
    world.store.engine.context.scheduler.soon(lambda: came.put(None))
    take(came, PATIENCE)
    assert "gathered" not in files.synced
    partitions = {names.partition_dir(*part) for part in PARTS}
    assert not partitions & set(files.synced)
    world.settle()
    assert partitions <= set(files.synced)
    world.store.close()


def test_the_indexes_of_all_segments_of_an_adoption_are_synced(tmp_path: Path) -> None:
    """Not only those of the last one: the recovery point is behind them all."""
    path, files = begin(tmp_path / "s", TOPIC), Synced(tmp_path)
    with segstore.open(path, files=files, config={**CONFIG, "inbox.segment.bytes": 1}) as store:
        pieces = range(0, N, N // PIECES)
        seal(path, "one", [stage(path, "a", first + N // PIECES, first=first) for first in pieces])
        store.flush()
        sealed = {
            os.fspath(path / names.partition_dir(*part) / names.segment_file(first, suffix))
            for part in PARTS
            for first in pieces
            for suffix in (names.INDEX, names.TIME_INDEX)
        }
        logs = [
            name for name in os.listdir(path / names.partition_dir(*PARTS[0])) if name.endswith(names.LOG)
        ]
        assert len(logs) == PIECES + 1
        assert sealed <= files.indexes


@pytest.mark.parametrize("mode", MODES)
def test_records_that_came_while_files_were_joined_lie_below_them_after_a_power_cut(
    unsettled: Unsettled, rng: random.Random, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says that they are durable, but the adoption's offsets are behind theirs."""
    holding = adopt.holding

    def late(tokens: list, run: object) -> object:
        for part in PARTS:
            unsettled.store.partition(*part).append(b"between")
        return holding(tokens, run)

    monkeypatch.setattr(adopt, "holding", late)
    unsettled.seal()
    unsettled.cut(mode, rng)
    with segstore.open(unsettled.path) as store:
        assert contents(store) == [[b"between", *rows("a", N)]] * len(PARTS)
    assert segstore.check(unsettled.path) == []
    assert left_in_inbox(unsettled.path) == []


def test_what_is_needed_is_kept_by_who_aborts_or_seals_again(unsettled: Unsettled) -> None:
    unsettled.seal()
    abort(unsettled.messages, files=unsettled.files)
    seal(unsettled.path, "one", unsettled.messages, files=unsettled.files)
    assert all(path.exists() for path in unsettled.staged())
    unsettled.settle()
    assert left_in_inbox(unsettled.path) == []


def test_a_segment_that_is_durable_is_not_made_again(unsettled: Unsettled, rng: random.Random) -> None:
    """Its records may be gone by now, or compacted."""
    unsettled.seal()
    unsettled.store.flush()
    for part in PARTS:
        unsettled.store.partition(*part).append(b"later")
        unsettled.store.partition(*part).delete_records(N)
    unsettled.store.engine.partitions.checkpoint()
    unsettled.cut("all", rng)
    flip(unsettled.staged()[0], 70)  # who joins it is told
    with segstore.open(unsettled.path) as store:
        assert not store.mended
        assert [values(store.partition(*part)) for part in PARTS] == [[b"later"]] * len(PARTS)
    assert segstore.check(unsettled.path) == []
    assert left_in_inbox(unsettled.path) == []


@pytest.mark.parametrize("damage", ["staged file", "missing", "note"])
def test_what_can_not_be_joined_again_is_told_and_the_log_stays(
    unsettled: Unsettled, rng: random.Random, damage: str
) -> None:
    unsettled.seal()
    (note,) = (unsettled.path / ".segstore" / "inbox").glob("*" + names.JOINED)
    unsettled.cut("all", rng)
    if damage == "note":
        flip(note, 20)
    elif damage == "missing":
        unsettled.staged()[0].unlink()
    else:
        flip(unsettled.staged()[0], 70)
    found = {finding.path for finding in segstore.check(unsettled.path)}
    assert str(note) in {str(path) for path in found}
    with segstore.open(unsettled.path) as store:
        assert [str(one.path) for one in store.mended] == [str(note)]
        assert contents(store) == [rows("a", N)] * len(PARTS)
    assert [name for name in quarantined(unsettled.path) if name.endswith(names.JOINED)]


def test_a_deleted_topic_holds_up_nothing(unsettled: Unsettled) -> None:
    unsettled.seal()
    unsettled.store.delete_topic("u")
    unsettled.settle()
    assert left_in_inbox(unsettled.path) == []
    assert values(unsettled.store.partition(*PARTS[0])) == rows("a", N)
