"""Damaged `leader-epoch-checkpoint` and `partition.metadata` are rebuilt from other files."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from stores import killed, logs, values

import segstore
from segstore.storage.repair import repair


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A partition with records of three epochs, 0 to 2, ten each."""
    root = tmp_path / "store"
    for epoch in range(3):
        with segstore.open(root) as store:
            if not epoch:
                store.create_topic("t", config={"segment.bytes": 500})
            for n in range(10):
                store.partition("t").append(b"%d %d" % (epoch, n))
            left = killed(root, tmp_path / f"left-{epoch}")
        root = left
    with segstore.open(root):
        pass
    return root


def epochs(root: Path) -> list[tuple[int, int]]:
    lines = (root / "t-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    return [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]


def in_log(root: Path) -> list[tuple[int, int]]:
    """(epoch, first offset) by the batches."""
    found: list[tuple[int, int]] = []
    for log in logs(root):
        data, at = log.read_bytes(), 0
        while at < len(data):
            base, length, epoch = struct.unpack_from(">qii", data, at)
            if not found or found[-1][0] != epoch:
                found.append((epoch, base))
            at += length + 12
    return found


EPOCHS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "garbage": lambda path: path.write_bytes(b"garbage"),
    "another epoch": lambda path: path.write_bytes(path.read_bytes().replace(b"\n1 10\n", b"\n1 18\n")),
    "a lower epoch": lambda path: path.write_bytes(path.read_bytes().replace(b"\n2 20\n", b"\n1 20\n")),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_leader_epochs_are_made_anew_from_the_log(root: Path, name: str) -> None:
    """The partition was refused, or the epochs that nobody wrote under were believed."""
    path, before = root / "t-0" / "leader-epoch-checkpoint", epochs(root)
    assert in_log(root) == before[:3] == [(0, 0), (1, 10), (2, 20)]
    EPOCHS[name](path)
    assert segstore.check(root) != []
    with segstore.open(root) as store:
        assert len(values(store.partition("t"))) == 30
        assert [one.path for one in store.mended] == [str(path)]
        assert store.partition("t").append(b"more") == 30
    made = epochs(root)
    assert made[:3] == before[:3]
    assert made[-1][0] > before[-1][0], "an epoch may have been begun that no batch tells of"
    assert made[-1][1] == 30
    assert segstore.check(root) == []


def test_a_batch_whose_epoch_rotted_is_no_witness_against_the_file(root: Path) -> None:
    before, log = epochs(root), logs(root)[0]
    data = bytearray(log.read_bytes())
    data[12:16] = struct.pack(">i", 1 << 20)
    log.write_bytes(data)
    with segstore.open(root) as store:
        assert len(values(store.partition("t"))) == 30
        assert store.mended == ()
    assert epochs(root) == before


METADATA: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"garbage"),
    "another id": lambda path: path.write_bytes(b"version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ"),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("how", ["opened", "repaired"])
@pytest.mark.parametrize("name", METADATA)
def test_partition_metadata_are_made_anew_from_the_settings(root: Path, name: str, how: str) -> None:
    path = root / "t-0" / "partition.metadata"
    sound = path.read_bytes()
    METADATA[name](path)
    assert any(finding.path == str(path) for finding in segstore.check(root))
    if how == "repaired":
        assert str(path) in {one.path for one in repair(root)}
    else:
        with segstore.open(root) as store:
            assert [one.path for one in store.mended] == [str(path)]
    assert path.read_bytes() == sound
    assert segstore.check(root) == []
    with segstore.open(root) as store:
        assert len(values(store.partition("t"))) == 30


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_broker_s_topic_without_sound_metadata_is_read_and_written(root: Path, mode: str) -> None:
    """Its log was refused for the id that it needs not."""
    for name in ("t.json", "t.copy"):
        (root / ".segstore" / "topics" / name).unlink()
    path = root / "t-0" / "partition.metadata"
    path.write_bytes(b"garbage")
    with segstore.open(root, mode) as store:
        assert len(values(store.partition("t"))) == 30
        if mode == "rw":
            assert store.partition("t").append(b"more") == 30
    assert any(finding.path == str(path) for finding in segstore.check(root))
    assert str(path) in {one.path for one in repair(root)}
    assert segstore.check(root) == []
