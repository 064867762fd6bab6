"""`segstore.check` names every kind of damage and raises nothing; a sound store has no findings."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import segstore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store at rest, with sealed segments, indexes, a snapshot and checkpoints."""
    root = tmp_path / "store"
    with segstore.open(root, clock=lambda: 1_000_000_000) as store:
        store.create_topic("t", config={"segment.bytes": 30_000, "index.interval.bytes": 512})
        log = store.partition("t", 0)
        log.append_batch([b"%05d" % i * 8 for i in range(2000)], timestamps=range(2000), batch_bytes=400)
    assert segstore.check(root) == []
    return root


def sealed(root: Path, suffix: str) -> Path:
    return sorted((root / "t-0").glob("*" + suffix))[0]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def put(path: Path, content: str) -> None:
    path.write_text(content)


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a record's byte": (lambda r: flip(sealed(r, ".log"), 100), "CRC"),
    "a batch's base offset": (lambda r: flip(sealed(r, ".log"), 400 * 5), ".log"),
    "a batch's length": (lambda r: flip(sealed(r, ".log"), 8), ".log"),
    "a batch's magic": (lambda r: flip(sealed(r, ".log"), 16), "magic"),
    "a leader epoch": (lambda r: flip(sealed(r, ".log"), 15), "leader epoch"),
    "the end of a log": (lambda r: cut(sorted((r / "t-0").glob("*.log"))[-1], 7), ".log"),
    "the end of a sealed log": (lambda r: cut(sealed(r, ".log"), 7), ".log"),
    "an offset index's position": (lambda r: flip(sealed(r, ".index"), 8 * 3 + 7), ".index"),
    "an offset index's offset": (lambda r: flip(sealed(r, ".index"), 8 * 3 + 3), ".index"),
    "a time index's timestamp": (lambda r: flip(sealed(r, ".timeindex"), 12 * 3 + 7), ".timeindex"),
    "a time index's end": (lambda r: cut(sealed(r, ".timeindex"), 12), "largest timestamp"),
    "no offset index": (lambda r: sealed(r, ".index").unlink(), "missing"),
    "a snapshot": (lambda r: flip(sealed(r, ".snapshot"), 4), ".snapshot"),
    "an orphaned index": (lambda r: sealed(r, ".log").unlink(), "without its log"),
    "a half done swap": (
        lambda r: shutil.copy(sealed(r, ".log"), str(sealed(r, ".log")) + ".swap"),
        "left by a crash",
    ),
    "leader epochs": (lambda r: put(r / "t-0" / "leader-epoch-checkpoint", "0\n1\nx y\n"), "leader-epoch"),
    "recovery points": (lambda r: put(r / "recovery-point-offset-checkpoint", "0\n1\nt 0 9999\n"), "9999"),
    "a checkpoint's text": (lambda r: put(r / "replication-offset-checkpoint", "7\n"), "replication-offset"),
    "topic settings": (lambda r: put(r / ".segstore/topics/t.json", "{"), "t.json"),
    "a setting": (
        lambda r: put(
            r / ".segstore/topics/t.json",
            json.dumps({"partitions": 1, "topic_id": "x", "config": {"segment.bytes": -1}}),
        ),
        "segment.bytes",
    ),
    "the published end": (lambda r: publish(r, 500), "published"),
}


def publish(root: Path, end: int) -> None:
    path = root / ".segstore" / "ends"
    data = bytearray(path.read_bytes())
    slots = np.frombuffer(data[64 : 64 + 64 * 10], np.int64).reshape(-1, 8)
    slot = int(np.flatnonzero(slots[:, 0])[0])
    struct.pack_into("=q", data, 64 + 64 * slot + 16, end)
    path.write_bytes(data)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(store: Path, name: str) -> None:
    damage, shown = DAMAGE[name]
    damage(store)
    findings = segstore.check(store)
    assert findings
    assert any(shown in str(finding) for finding in findings), list(map(str, findings))


def test_no_byte_of_a_log_can_change_unseen(store: Path, rng: random.Random) -> None:
    path = sealed(store, ".log")
    sound = path.read_bytes()
    for at in rng.sample(range(len(sound)), 150):
        flip(path, at)
        assert segstore.check(store), f"byte {at}"
        path.write_bytes(sound)
    assert segstore.check(store) == []


def test_check_changes_nothing(store: Path) -> None:
    flip(sealed(store, ".log"), 100)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()}
    segstore.check(store)
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()}


def test_a_live_store_is_sound(store: Path) -> None:
    with segstore.open(store) as live:
        log = live.partition("t", 0)
        for i in range(50):
            log.append(b"x" * 1000)
            if i % 10 == 0:
                assert segstore.check(store) == []


def test_progress_is_told(store: Path) -> None:
    seen: list[int] = []
    segstore.check(store, progress=seen.append)
    assert sum(seen) == sum(p.stat().st_size for p in (store / "t-0").glob("*.log"))


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(segstore.StorageError):
        segstore.check(tmp_path / "nowhere")
