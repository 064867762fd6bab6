"""The leader epochs of deleted segments are removed, as in Kafka's LeaderEpochFileCache.truncateFromStart."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from compaction import Unsynced
from faults import FailingFiles
from faulty import FaultyFiles
from stores import killed, killed_at_each_call, logs, raw_batches, write_segment

import segstore
from segstore.files import Files
from segstore.storage.log.partition import Partition
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.repair import repair

SMALL = {"segment.bytes": 600, "file.delete.delay.ms": 0}
BY_HAND = {"log.cleaner.threads": 0, "log.retention.check.interval.ms": 1 << 40}


def epochs(path: Path) -> list[tuple[int, int]]:
    return list(LeaderEpochs.load(Files(), path / "t-0" / "leader-epoch-checkpoint").entries)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Epochs 0 to 3, each begun after a kill, of 10 records; five to a segment."""
    path = tmp_path_factory.mktemp("epochs") / "state"
    for number in range(4):
        with segstore.open(path, files=Unsynced(), config=BY_HAND) as store:
            if not number:
                store.create_topic("t", config=SMALL)
            for _ in range(10):
                store.partition("t").append(b"x" * 50)
        if number < 3:
            (path / ".kafka_cleanshutdown").unlink()
    assert epochs(path) == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert len(logs(path)) > 6
    return path


@pytest.fixture
def built(state: Path, store_dir: Path) -> Path:
    return killed(state, store_dir)


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (0, [(0, 0), (1, 10), (2, 20), (3, 30)]),
        (7, [(0, 7), (1, 10), (2, 20), (3, 30)]),
        (10, [(1, 10), (2, 20), (3, 30)]),
        (25, [(2, 25), (3, 30)]),
        (-1, [(3, 40)]),
    ],
)
def test_delete_records(built: Path, store_dir: Path, before: int, left: list[tuple[int, int]]) -> None:
    with segstore.open(built) as store:
        store.partition("t").delete_records(before)
        assert epochs(store_dir) == left
        assert segstore.check(store_dir) == []
        assert store.partition("t").append(b"on") == 40
    assert segstore.check(store_dir) == []
    with segstore.open(store_dir) as store:
        assert [r.value for r in store.partition("t").read(40)] == [b"on"]
    assert epochs(store_dir) == left


def test_retention(built: Path, store_dir: Path) -> None:
    with segstore.open(built, config=BY_HAND) as store:
        store.alter_topic("t", {"retention.bytes": 1200})
        store.sweep()
        start = store.partition("t").start_offset
        assert 20 < start < 40
        assert epochs(store_dir)[0] == (2 if start < 30 else 3, start)
        store.alter_topic("t", {"retention.bytes": 0})
        store.sweep()
        assert epochs(store_dir) == [(3, 40)]


@pytest.mark.kind("kills")
def test_killed_at_each_call(state: Path, tmp_path: Path) -> None:
    """The next open forgets them, and nothing else."""

    def delete(files: Files, path: Path) -> None:
        segstore.open(path, files=files, config=BY_HAND).partition("t").delete_records(12)

    seen = set()
    for nth, path in killed_at_each_call(state, tmp_path, delete):
        with segstore.open(path, files=Unsynced(), config=BY_HAND) as store:
            log = store.partition("t")
            seen.add(log.start_offset)
            held, start = epochs(path), max(log.start_offset, 0)
            assert held[0] == (start // 10, start), nth
            known = [epoch for epoch, _ in held]  # with that of the recovery, if there was one
            assert known in ([*range(start // 10, 4)], [*range(start // 10, 5)]), nth
            log.append(b"on")
        assert segstore.check(path) == [], nth
    assert seen == {0, 12}


def test_a_disk_that_is_full_keeps_no_segment(built: Path, store_dir: Path) -> None:
    """The file says more than there is, until the next open."""

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if "leader-epoch" in str(args[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = FailingFiles({"rename"}, fault, nth=0)
    with segstore.open(built, files=files, config=BY_HAND) as store:
        files.arm(times=1 << 30)
        assert store.partition("t").delete_records(25) == 25
        assert int(logs(store_dir)[0].stem) <= 25 < int(logs(store_dir)[1].stem)
        assert epochs(store_dir)[0] == (0, 0)
        files.arm(0)
        assert segstore.check(store_dir) == []
    with segstore.open(store_dir) as store:
        store.partition("t")
        assert epochs(store_dir) == [(2, 25), (3, 30)]


def test_what_stands_for_rot_in_front_of_the_start_is_of_an_epoch_that_is_known(
    built: Path, store_dir: Path
) -> None:
    with segstore.open(built) as store:
        store.partition("t").delete_records(23)
    log = logs(store_dir)[0]
    assert int(log.stem) < 23
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    assert repair(store_dir, quarantine=True)
    assert int.from_bytes(log.read_bytes()[12:16], "big") == 2
    assert epochs(store_dir)[0] == (2, 23)


def test_a_broker_s_start(store_dir: Path) -> None:
    """What a broker did not come to write."""
    write_segment(store_dir / "t-0", 0, raw_batches(range(20), epoch=0))
    write_segment(store_dir / "t-0", 20, raw_batches(range(20, 30), epoch=4))
    (store_dir / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n4 20\n")
    (store_dir / "log-start-offset-checkpoint").write_text("0\n1\nt 0 21\n")
    with segstore.open(store_dir) as store:
        assert store.partition("t").start_offset == 21
    assert epochs(store_dir)[0] == (4, 21)


def test_a_clean_close_syncs_an_epoch_without_records(tmp_path: Path, rng: random.Random) -> None:
    """A replica notes the epoch of a new leader without a sync, and no flush comes that has records."""
    files = FaultyFiles(tmp_path)
    store = segstore.open(tmp_path / "s", files=files)
    store.create_topic("t")
    store.flush()
    source = store.partition("t").source
    assert isinstance(source, Partition)
    source.epochs.save(sync=False)
    store.close()
    files.power_cut("zeros", rng)
    assert [each for each in segstore.check(tmp_path / "s") if "epoch" in each.path] == []
