"""Staged files with a coarse ctime: a file that was touched since it was synced is always found, also with
kernels whose clock moves in ticks, and on file systems that count seconds.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from staging import PARTS, SMALL, TINY_SEGMENTS, begin, contents, rows, stage

import segstore
from segstore import errors
from segstore.files import Files, Handle
from segstore.storage.inbox.stager import wait_until_past
from segstore.storage.staging import seal

FOREVER = 1 << 30


class Ticking(FailingFiles):
    """A file system whose clock stands still, but for a tick at the `tick`th look at it. Syncs of staged
    files fail, when armed.
    """

    def __init__(self, tick: int) -> None:
        super().__init__({"sync"}, self._fail, nth=0)
        self.now, self.tick, self.looks = 1_000, tick, 0
        self._stamps: dict[int, int] = {}

    @staticmethod
    def _fail(name: str, args: tuple[Any, ...]) -> None:
        if args[0].path.endswith(".batches"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), args[0].path)

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in ("pwrite", "restamp"):
            self._stamp(args[0])
        elif name == "copy_range":
            self._stamp(args[2])
        elif name in ("link", "unlink"):
            self._stamp(args[0])
        super().before(name, args, kwargs)

    def _stamp(self, file: Handle | str) -> None:
        self._stamps[Files.inode(self, file)] = self.now

    def changed(self, handle: Handle) -> int:
        return self._stamps[Files.inode(self, handle)]

    def has_passed(self, handle: Handle, ns: int) -> bool:
        self.looks += 1
        if self.looks == self.tick:
            self.now += 1
        return self.now > ns


def staged_inodes(store_dir: Path) -> set[int]:
    return {path.stat().st_ino for path in store_dir.glob(".segstore/inbox/*/*.batches")}


def log_inodes(store_dir: Path) -> set[int]:
    return {path.stat().st_ino for path in store_dir.rglob("*.log")}


TICKS = {"at once": 1, "later": 5, "never": FOREVER}


@pytest.mark.parametrize("tick", TICKS)
def test_a_failed_sync_in_the_tick_of_the_last_write(store_dir: Path, tick: str) -> None:
    """Adoption stamps the files anew and can't sync that. They are written anew then, whatever ctime says."""
    begin(store_dir, SMALL)
    files = Ticking(TICKS[tick])
    message = stage(store_dir, "a", files=files)
    with segstore.open(store_dir, files=files, config=TINY_SEGMENTS) as store:
        for part in PARTS:
            store.partition(*part).append(b"between")
        held = staged_inodes(store_dir)
        assert len(held) == len(message.files) == 4
        files.arm(1, FOREVER)
        with pytest.raises(errors.StorageError):
            seal(store_dir, "one", [message])
        files.arm(0)
        assert seal(store_dir, "one", [message]).offsets == dict.fromkeys(PARTS, (1, 21))
        assert contents(store) == [[b"between", *rows("a", 20)]] * 2
        assert held.isdisjoint(log_inodes(store_dir))


@pytest.mark.parametrize(("tick", "looks"), [("at once", 1), ("later", 5), ("never", 16)])
def test_files_get_names_alone_where_their_stamps_can_be_trusted(
    store_dir: Path, tick: str, looks: int
) -> None:
    begin(store_dir, SMALL)
    files = Ticking(TICKS[tick])
    message = stage(store_dir, "a", files=files)
    assert files.looks == looks
    assert [file.changed > 0 for file in message.files] == [tick != "never"] * 4
    held = staged_inodes(store_dir)
    with segstore.open(store_dir, files=files, config=TINY_SEGMENTS) as store:
        seal(store_dir, "one", [message])
        assert contents(store) == [rows("a", 20)] * 2
        assert len(held & log_inodes(store_dir)) == (0 if tick == "never" else 4)


def test_the_clock_of_this_file_system_passes(tmp_path: Path) -> None:
    """What it is asked of here is true: a write that follows has another stamp."""
    files = Files()
    with (
        files.open(tmp_path / "a", write=True, create=True) as written,
        files.open(tmp_path / "b", write=True, create=True) as probe,
    ):
        for _ in range(50):
            files.pwrite(written, b"x", 0)
            before = files.changed(written)
            past = wait_until_past(files, probe, before)
            files.pwrite(written, b"y", 0)
            assert files.changed(written) > before or not past
