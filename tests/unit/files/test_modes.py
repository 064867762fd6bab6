"""Promise: nobody else may read what a store holds, whatever the umask is, unless `file_mode` lets them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compaction import clean, open_compacted
from fuzz.store_target import template
from stores import in_child, stamps, transact_and_consume

import segstore
from segstore import InvalidArgumentError, names
from segstore.errors import InvalidTypeError
from segstore.storage.copy import copy
from segstore.storage.repair.repair import repair
from segstore.storage.staging import Stager, seal

UMASKS = (0, 0o022, 0o077, 0o377)
SMALL = {"segment.bytes": 1500, "index.interval.bytes": 100}
Tell = Callable[[str], None]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, set[int]]:
    """Of files and directories, the root's own too."""
    found: dict[str, set[int]] = {"files": set(), "directories": {stat.S_IMODE(root.stat().st_mode)}}
    for path in root.rglob("*"):
        kind = "directories" if path.is_dir() else "files"
        found[kind].add(stat.S_IMODE(path.lstat().st_mode))
    return found


OWN = {"files": {0o600}, "directories": {0o700}}


def _appends(root: Path, file_mode: int | None) -> None:
    with segstore.open(root, file_mode=file_mode) as store:
        store.create_topic("t", 2, config=SMALL)
        for _ in range(5):
            store.partition("t", 0).append_batch([b"x" * 500])
        store.add_partitions("t", 3)
        transact_and_consume(store)
        store.sweep()


def _stages(root: Path) -> None:
    """By another process, with the umask of this one: sealed files first, then adopted ones."""

    def stage(tell: Tell) -> None:
        with Stager(root) as stager:
            stager.append_batch("t", 0, [b"staged"] * 3)
            seal(root, "q/1", [stager.finish()])

    in_child(stage)


def _adopts(root: Path) -> None:
    with segstore.open(root) as store:
        assert store.partition("t", 0).end_offset == 8


def _recovers(root: Path) -> None:
    """A whole batch behind a torn one: into the quarantine."""
    (root / names.CLEAN_SHUTDOWN).unlink()
    log = max((root / "t-0").glob(f"*{names.LOG}"))
    held = bytearray(log.read_bytes())
    (root / names.RECOVERY_POINTS).unlink()
    (root / names.OURS / names.ENDS).unlink()
    log.write_bytes(held[:-1] + bytes(1) + held)
    with segstore.open(root) as store:
        assert store.partition("t", 0).end_offset
    assert list((root / names.OURS / names.QUARANTINE).iterdir())


def _mends(root: Path) -> None:
    (root / "t-0" / names.LEADER_EPOCHS).write_text("damaged")
    for path in (root / "t-0").glob(f"*{names.INDEX}"):
        path.write_bytes(b"x" * 7)
    assert list(repair(root))


STEPS: dict[str, Callable[[Path], None]] = {
    "staged by another process": _stages,
    "adopted": _adopts,
    "recovered, with a quarantine": _recovers,
    "repaired": _mends,
}


@pytest.mark.kind("kills")
@pytest.mark.parametrize(
    ("file_mode", "wanted"),
    [
        (None, OWN),
        (0o600, OWN),
        (0o640, {"files": {0o640}, "directories": {0o750}}),
        (0o644, {"files": {0o644}, "directories": {0o755}}),
        (0o664, {"files": {0o664}, "directories": {0o775}}),
    ],
)
def test_of_everything_that_is_made(store_dir: Path, umask: int, file_mode: int | None, wanted: dict) -> None:
    """Also by those that open the store later, and don't say which mode."""
    _appends(store_dir, file_mode)
    assert modes(store_dir) == wanted
    for step, run in STEPS.items():
        run(store_dir)
        assert modes(store_dir) == wanted, step


def test_of_what_the_cleaner_writes(store_dir: Path, umask: int) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t", 0)
        for i in range(40):
            log.append_batch([b"x" * 100], keys=[b"%d" % (i % 3)])
        before = stamps(store_dir)
        clean(store)
        assert stamps(store_dir) != before
        assert modes(store_dir) == OWN
    assert modes(store_dir) == OWN


@pytest.mark.kind("costly unit tests")
def test_a_copy_is_for_its_owner(store_dir: Path, tmp_path: Path, umask: int) -> None:
    _appends(store_dir, None)
    copy(store_dir, tmp_path / "copied")
    assert modes(tmp_path / "copied") == OWN


def test_what_was_made_with_other_modes_keeps_them(tmp_path: Path) -> None:
    """A broker's files, say: a store's owner may have let others read them."""
    root = tmp_path / "store"
    shutil.copytree(template(), root)
    log = root / "t-0" / f"{'0' * 20}{names.LOG}"
    log.chmod(0o644)
    with segstore.open(root) as store:
        store.partition("t", 0).append_batch([b"more"])
    assert stat.S_IMODE(log.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "file_mode", [0, 0o400, 0o200, 0o700, 0o601, 0o602, 0o622 | 0o002, 0o1600, 0o4600, -1]
)
def test_a_mode_that_no_store_can_have(tmp_path: Path, file_mode: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^file_mode=.*: must be 0o600 and any of 0o064$"):
        segstore.open(tmp_path / "store", file_mode=file_mode)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file_mode", ["0o600", 384.0, True])
def test_a_mode_that_is_no_number(tmp_path: Path, file_mode: object) -> None:
    with pytest.raises(InvalidTypeError, match=r"^file_mode must be an int, not "):
        segstore.open(tmp_path / "store", file_mode=file_mode)
    assert not list(tmp_path.iterdir())
