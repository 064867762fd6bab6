"""What groups have committed for a topic is never a later one's of its name, however the deletion ends."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import FailingFiles
from group_records import at, end, offsets_of, opened, tp
from stores import killed

import segstore
from segstore.coordinator.offsets.topic import ReadOffsets
from segstore.storage.store.store import Store


def killed_in_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The topic "t" is gone, and its tombstones are not written."""
    monkeypatch.setattr(Store, "_after_delete", [])
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


def _full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_as_they_are_to_be_forgotten(store_dir: Path) -> None:
    files = FailingFiles({"pwrite"}, _full(), 0)
    with opened(store_dir, files=files) as store:
        offsets = offsets_of(store)
        offsets.commit("g", {tp(0): at(7)})
        delete = Store._after_delete[0]
        refused: Callable[[Store, str], None] = lambda *of: (files.arm(1, 1000), delete(*of))[0]  # noqa: E731
        Store._after_delete[0] = refused
        try:
            store.delete_topic("t")
        finally:
            Store._after_delete[0] = delete
        assert files.hits
        files.arm(0)
        store.create_topic("t", partitions=4)
        assert offsets.fetch("g") == {}
