"""Offsets that groups have committed for a deleted topic never count for a later topic of its name, however
the deletion ends.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FailingFiles
from group_records import at, end, offsets_of, opened, tp
from stores import killed, stored
from waiting import PATIENCE

import segstore
from segstore.coordinator import open as opening
from segstore.coordinator.offsets.topic import ReadOffsets


def killed_in_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The topic "t" is gone, and its tombstones are not written."""
    monkeypatch.setattr(opening, "forget_offsets", lambda *_: None)
    with opened(tmp_path / "live") as store:
        offsets = offsets_of(store)
        offsets.commit("g", {tp(0): at(7), tp(1, "u"): at(3)})
        offsets.commit("only", {tp(0): at(8)})
        offsets.commit_transactional("h", {tp(0): at(9)}, 5, 0)
        end(store, "h", 5, commit=True)
        offsets.commit_transactional("open", {tp(0): at(9)}, 6, 0)
        store.delete_topic("t")
        path = killed(tmp_path / "live", tmp_path / "killed")
    monkeypatch.undo()
    return path


@pytest.mark.parametrize("between", ["", "reopened"])
def test_a_kill_before_they_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    path = killed_in_deletion(tmp_path, monkeypatch)
    if between:
        segstore.open(path).close()
    with opened(path) as store:  # which makes "t" anew
        offsets = offsets_of(store)
        end(store, "open", 6, commit=True)
        for group in ("only", "h", "open"):
            assert offsets.fetch(group) == {}
        assert offsets.fetch("g") == {tp(1, "u"): at(3)}
        with segstore.open(path, "r") as reader:
            assert ReadOffsets(reader).fetch("g") == {tp(1, "u"): at(3)}
        offsets.commit("h", {tp(0): at(1)})
        assert offsets.fetch("h") == {tp(0): at(1)}
    assert list(segstore.check(path)) == []


def test_what_is_left_goes_with_the_next_look_for_what_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(killed_in_deletion(tmp_path, monkeypatch)) as store:
        offsets = offsets_of(store)
        end(store, "open", 6, commit=False)
        assert offsets.expire() == {"g": {tp(0)}, "only": {tp(0)}, "h": {tp(0)}}
        assert (offsets.expire(), offsets.groups()) == ({}, {"g"})


@pytest.mark.kind("programs")
def test_a_process_that_has_used_no_group_forgets_them_too(store_dir: Path) -> None:
    """What a deletion did depended on which names of the package the process had looked at."""
    with opened(store_dir) as store:
        offsets_of(store).commit("g", {tp(0): at(7)})
    code = """
import segstore, sys
with segstore.open(sys.argv[1]) as store:
    assert not any(name.startswith("segstore.coordinator.offsets") for name in sys.modules)
    store.delete_topic("t")
"""
    subprocess.run([sys.executable, "-c", code, str(store_dir)], check=True, timeout=PATIENCE)
    with opened(store_dir) as store:  # which makes "t" anew
        assert (offsets_of(store).expire(), offsets_of(store).groups()) == ({}, set())


def _full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_as_they_are_to_be_forgotten(store_dir: Path) -> None:
    files = FailingFiles({"pwrite"}, _full(), 0)
    with opened(store_dir, files=files) as store:
        offsets = offsets_of(store)
        offsets.commit("g", {tp(0): at(7)})
        forgetting = store._when_deleted
        forgetting.insert(0, lambda *_: files.arm(1, 1000))
        store.delete_topic("t")
        del forgetting[0]
        assert files.hits
        files.arm(0)
        store.create_topic("t", partitions=4)
        assert offsets.fetch("g") == {}


def test_tombstones_are_in_the_order_of_groups_and_partitions(tmp_path: Path) -> None:
    """The order was that of a set: another one in each process, so that equal runs left other bytes."""
    groups = [f"g{number}" for number in range(9, -1, -1)]
    with opened(tmp_path / "store", offsets_topic_num_partitions=1) as store:
        offsets = offsets_of(store)
        for group in groups:
            offsets.commit(group, {tp(3): at(1), tp(1): at(2)})
        store.delete_topic("t")
        gone = [record.key for record in stored(store, "__consumer_offsets") if record.value is None]
    assert gone == sorted(gone)
    assert len(gone) == 2 * len(groups)
