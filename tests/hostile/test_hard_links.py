"""A store whose files have hard links (of a backup, or of an attacker): the files under those names never
change, whatever is done to the store. Only `.lock` may not have one: then the store does not open.

By default the seed draws some of the cases; SEGSTORE_FAULTS=all (`make faults`) tries them all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import hostile
import pytest
from faulty.counts import record

import segstore
from segstore import names
from segstore.files import Files
from segstore.storage.staging import Stager, seal

pytestmark = pytest.mark.kind("damage")

CASES = 8
PARTS = [("t", 1), ("t", 0)]


def _abort(root: Path) -> None:
    """The index of aborted transactions grows."""
    with segstore.open(root) as store:
        producer = segstore.Producer(store, transactional_id="other")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"more", partition=1).get()
        producer.abort_transaction()
        producer.close()


OPERATIONS = {**hostile.OPERATIONS, "abort": _abort}


# --- how the store was left -----------------------------------------------------------------------------


def _unclean(root: Path) -> None:
    (root / names.CLEAN_SHUTDOWN).unlink()


def _torn(root: Path) -> None:
    """Behind each log its own batches again: a cut in each segment, with something to keep."""
    _unclean(root)
    for name in (names.RECOVERY_POINTS, f"{names.OURS}/{names.ENDS}"):
        (root / name).unlink()
    for log in root.glob(f"*/*{names.LOG}"):
        log.write_bytes(log.read_bytes() * 2)


def _bad_indexes(root: Path) -> None:
    for path in root.glob("*/*index"):
        path.write_bytes(path.read_bytes() + bytes(24))


LEFT: dict[str, Callable[[Path], object]] = {
    "closed": lambda root: None,
    "killed": _unclean,
    "torn": _torn,
    "bad indexes": _bad_indexes,
}
BESIDE = (".cleaned", ".swap", ".deleted", names.TEMPORARY)


def give_names(root: Path, outside: Path) -> int:
    """To all that is there, and to what unfinished work may have left beside it."""
    held = [p for p in root.rglob("*") if p.is_file() and p.name != names.LOCK]
    left = [p.with_name(p.name + suffix) for p in held for suffix in BESIDE]
    for path in left:
        path.write_bytes(b"mine")
    held += left
    for path in held:
        os.link(path, outside / str(path.relative_to(root)).replace("/", "_"))
    return len(held)


def unchanged(place: Path, left: str, operation: str) -> str:
    """ "", or what went wrong."""
    root, outside = hostile.made(place, 0)
    LEFT[left](root)
    record("hostile: entries", give_names(root, outside))
    before = hostile.seen(outside)
    said = hostile.work(root, {operation: OPERATIONS[operation]})
    after = hostile.seen(outside)
    shutil.rmtree(root.parent)
    record("hostile: operations")
    changed = [Path(name).name for name in before if before[name] != after.get(name)]
    return f"{left}, {operation}: {said} {changed}" if said or changed else ""


def test_no_other_name_shows_a_change(tmp_path: Path, rng: Random) -> None:
    cases = [(left, operation) for left in LEFT for operation in OPERATIONS]
    drawn = cases if "SEGSTORE_FAULTS" in os.environ else rng.sample(cases, CASES)
    assert [wrong for case in drawn if (wrong := unchanged(tmp_path, *case))] == []


@pytest.mark.parametrize(("left", "operation"), [("torn", "write"), ("closed", "abort")])
def test_what_this_has_found(tmp_path: Path, left: str, operation: str) -> None:
    """Recovery cut segments before the last; an abort wrote on in an index; copies went through a `.tmp`."""
    assert unchanged(tmp_path, left, operation) == ""


@pytest.mark.parametrize("n", [3, 300], ids=["appended", "a segment"])
@pytest.mark.parametrize("moved", [False, True])
def test_staged_files(store_dir: Path, tmp_path: Path, n: int, moved: bool) -> None:
    """What is adopted is stamped where it lies, and as a segment appended to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    config = {"inbox.segment.bytes": 3000}
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t", 2)
    stager = Stager(store_dir)
    for topic, partition in PARTS:
        stager.append_batch(topic, partition, [b"staged" * 5] * n)
    message = stager.finish()
    for path in (store_dir / names.OURS / names.INBOX).glob("*/*.batches"):
        os.link(path, outside / path.name)
    before = hostile.seen(outside)
    assert len(before) == len(PARTS)
    with segstore.open(store_dir, config=config) as store:
        if moved:
            store.partition("t", 1).append(b"first")
        seal(store_dir, "q/1", [message])
        store.partition("t", 1).append_batch([b"behind it"] * 5)
        assert store.partition("t", 1).end_offset == n + 5 + moved
    assert hostile.seen(outside) == before


def test_links_that_are_made_while_the_store_is_open(store_dir: Path, tmp_path: Path) -> None:
    """What was sealed stays as it is; the last segment's link grows, until there is another segment or the
    store is opened again.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 1000, "index.interval.bytes": 100})
        log = store.partition("t")
        for i in range(20):
            log.append(b"%d" % i * 30)
        logs = sorted((store_dir / "t-0").glob(f"*{names.LOG}"))
        for path in logs:
            os.link(path, outside / path.name)
        before = {path.name: path.read_bytes() for path in outside.iterdir()}
        log.append(b"behind it")
        last = logs[-1].name
        grown = (outside / last).read_bytes()
        assert grown.startswith(before[last])
        assert grown.endswith(b"behind it\0")
        assert len(before) > 2
    before[last] = grown
    with segstore.open(store_dir) as store:
        for i in range(20):
            store.partition("t").append(b"%d" % i * 30)
        store.partition("t").delete_records(10)
        store.sweep()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


def test_a_copy_beside_a_writer_is_its_own(store_dir: Path, tmp_path: Path) -> None:
    """`segstore.copy` is what to take in place of links."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"one")
        segstore.copy(store_dir, tmp_path / "copy")
        store.partition("t").append(b"two")
        before = hostile.seen(tmp_path / "copy")
        store.partition("t").append_batch([b"three"] * 100)
        assert hostile.seen(tmp_path / "copy") == before
    with segstore.open(tmp_path / "copy") as copied:
        assert [r.value for r in copied.partition("t").read(0)] == [b"one"]


def test_a_lock_file_that_has_another_name(store_dir: Path, tmp_path: Path) -> None:
    """As `cp -al` leaves it: the store opens again when the other name is gone."""
    segstore.open(store_dir).close()
    os.link(store_dir / names.LOCK, tmp_path / "lock")
    with pytest.raises(segstore.StorageError, match="another name"):
        segstore.open(store_dir)
    os.unlink(tmp_path / "lock")
    segstore.open(store_dir).close()


NEW = {
    "open_anew": lambda files, path: files.open_anew(path).close(),
    "write_atomic": lambda files, path: files.write_atomic(path.removesuffix(names.TEMPORARY), b"x"),
    "write_together": lambda files, path: files.write_together([(path.removesuffix(names.TEMPORARY), b"x")]),
}


@pytest.mark.parametrize("way", NEW)
@pytest.mark.parametrize("kind", [os.link, os.symlink])
def test_what_is_made_anew(tmp_path: Path, way: str, kind: Callable[[Path, str], None]) -> None:
    mine, path = tmp_path / "mine", str(tmp_path / f"x{names.TEMPORARY}")
    mine.write_bytes(b"mine")
    kind(mine, path)
    NEW[way](Files(), path)
    assert mine.read_bytes() == b"mine"
    assert os.lstat(mine).st_nlink == 1


def test_take_own(tmp_path: Path) -> None:
    """A copy where there is another name; the file itself where there is none."""
    mine, path = tmp_path / "mine", tmp_path / "x"
    mine.write_bytes(b"mine" * 1000)
    os.link(mine, path)
    before = os.lstat(mine).st_ino
    Files().take_own(path)
    assert path.read_bytes() == mine.read_bytes()
    assert (os.lstat(mine).st_ino, os.lstat(path).st_nlink, os.lstat(mine).st_nlink) == (before, 1, 1)
    own = os.lstat(path).st_ino
    Files().take_own(path)
    assert os.lstat(path).st_ino == own != before
