"""Promise: the beginning of the metadata log goes once snapshots have it, and whatever is away, stale, empty
or damaged then, an open by a majority has all that counts, or says what is missing.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from metadata_logs import (
    ALL,
    Quorum,
    assert_sound,
    keep,
    keep_all,
    log_bytes,
    numbered,
    numbers,
    quorum,
    snapshot_file,
    snapshots_of,
    voter_of,
)
from stores import START_MS, Clock, as_the_same
from waiting import until

import segstore
from segstore.errors import CorruptCheckpointError, QuorumLostError, StaleDirectoryError
from segstore.replication.metadata.metadata_log import MetadataLog
from segstore.replication.metadata.records import NoOpRecord
from segstore.storage.segment.metadata_snapshot import SnapshotId

PAIRS = list(itertools.combinations(ALL, 2))
TINY: dict[str, Any] = {"segment_ms": 1, "retention_bytes": 0}
"""Each append rolls a segment, and only the newest snapshot is kept."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert_sound(tmp_path)


class Ticking(Clock):
    """Is later each time that it is asked, so that a segment is older than segment.ms at each append."""

    def __call__(self) -> int:
        self.now += 2
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Ticking(START_MS)


def append(opened: Quorum, *some: int) -> None:
    for number in some:
        opened.log.append([numbered(number)])


def start_of(opened: Quorum, voter: int) -> int:
    return opened.log._voters[voter].start_offset


def trimmed(root: Path, clock: Clock, ids: tuple[int, ...] = ALL) -> SnapshotId:
    """Voters whose logs begin where the second of two snapshots ends: behind record 2; record 3 follows."""
    with quorum(root, ids, clock=clock, **TINY) as opened:
        append(opened, 1)
        keep_all(root, opened.log, ids)
        append(opened, 2)
        found = keep_all(root, opened.log, ids)
        until(lambda: all(start_of(opened, voter) == found.end_offset for voter in ids))
        until(lambda: all(snapshots_of(root, voter) == [found] for voter in ids))
        append(opened, 3)
    return found


# --- the beginning of the log goes ---------------------------------------------------------------


def test_segments_go_and_any_majority_has_all(root: Path, clock: Clock) -> None:
    found = trimmed(root, clock)
    for ids in (*PAIRS, ALL):
        with quorum(root, ids, clock=clock, **TINY) as opened:
            assert opened.lost == []
            assert numbers(opened.log) == [1, 2, 3]
            assert [offset for offset, _ in opened.log.replay()][:2] == [found.end_offset - 1] * 2
    segments = [path.name for path in (root / "0/__cluster_metadata-0").glob("*.log")]
    assert segments
    assert all(int(name[:20]) >= found.end_offset - 1 for name in segments)


def test_settings_of_segments_reach_the_topic(root: Path, clock: Clock) -> None:
    with quorum(root, clock=clock, segment_ms=1) as opened:
        append(opened, 1, 2, 3)
        assert opened.stores[0].topics()["__cluster_metadata"].config["segment.ms"] == 1
    assert len(list((root / "0/__cluster_metadata-0").glob("*.log"))) == 4
    with quorum(root, clock=clock) as opened:
        append(opened, 4, 5)
        assert "segment.ms" not in opened.stores[0].topics()["__cluster_metadata"].config
    assert len(list((root / "0/__cluster_metadata-0").glob("*.log"))) == 4


RETENTION: dict[str, tuple[dict[str, int], int, int]] = {
    "all is kept": ({"retention_bytes": -1, "retention_ms": -1}, 1 << 40, 3),
    "by default all is kept for a while": ({}, 0, 3),
    "by size": ({"retention_bytes": 0, "retention_ms": -1}, 0, 1),
    "by age": ({"retention_bytes": -1, "retention_ms": 1000}, 2000, 1),
    "not before that age": ({"retention_bytes": -1, "retention_ms": 100_000}, 2000, 3),
    "as much as fits": ({"retention_bytes": 900, "retention_ms": -1}, 0, 2),
}


@pytest.mark.parametrize("name", RETENTION)
def test_retention(root: Path, clock: Clock, name: str) -> None:
    settings, passes, left = RETENTION[name]
    with quorum(root, clock=clock, segment_ms=1, **settings) as opened:
        made = []
        for number in (1, 2, 3):
            append(opened, number)
            made.append(keep_all(root, opened.log))
        clock.now += passes
        opened.log.clean()
        until(lambda: [snapshots_of(root, voter) for voter in ALL] == [made[-left:]] * 3)
        start = made[-left].end_offset if left < 3 else 0
        until(lambda: [start_of(opened, voter) for voter in ALL] == [start] * 3)
        assert numbers(opened.log) == [1, 2, 3]
        held = numbers(opened.log)
    with quorum(root, clock=clock) as opened:
        assert numbers(opened.log) == held


def test_one_snapshot_alone_removes_nothing(root: Path, clock: Clock) -> None:
    """Kafka removes the log before a snapshot only when it removes an older snapshot."""
    with quorum(root, clock=clock, **TINY) as opened:
        append(opened, 1)
        found = keep_all(root, opened.log)
        opened.log.clean()
        opened.log.close()
        assert [start_of(opened, voter) for voter in ALL] == [0, 0, 0]
        assert snapshots_of(root, 0) == [found]


class Refusing(HookedFiles):
    """No snapshot can be written while `refuses`."""

    def __init__(self) -> None:
        self.refuses, self.refused = False, 0

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.refuses and name == "rename" and str(args[1]).endswith(".checkpoint"):
            self.refused += 1
            raise OSError(28, "injected")


def test_nothing_goes_before_a_majority_has_the_snapshot(root: Path, clock: Clock) -> None:
    files = {1: Refusing(), 2: Refusing()}
    with quorum(root, files=files, clock=clock, **TINY) as opened:
        append(opened, 1)
        keep_all(root, opened.log)
        append(opened, 2)
        for each in files.values():
            each.refuses = True
        alone = keep_all(root, opened.log, (0,))
        until(lambda: [each.refused for each in files.values()] == [1, 1])
        opened.log._voters[0]._keeper._clean()
        assert start_of(opened, 0) == 0
        assert len(snapshots_of(root, 0)) == 2
        append(opened, 3)
        assert opened.lost == []
        files[1].refuses = False
        found = keep_all(root, opened.log, (0, 1))
        assert start_of(opened, 2) == 0
        until(lambda: [start_of(opened, voter) for voter in ALL] == [found.end_offset, found.end_offset, 0])
        until(lambda: alone not in snapshots_of(root, 0))  # removed behind the cut of the log
        until(lambda: files[2].refused == 2)
        # The part of the file is removed behind the refusal.
        until(lambda: not list((root / "2/__cluster_metadata-0").glob("*.part")))
        assert opened.log.voters == ALL
    with quorum(root, (0, 2), clock=clock) as opened:
        assert numbers(opened.log) == [1, 2, 3]


# --- voters that come back -----------------------------------------------------------------------


def stale(root: Path, clock: Clock) -> None:
    """Voter 2 has record 0 only, and the logs of the others begin behind record 2."""
    with quorum(root, clock=clock, **TINY) as opened:
        append(opened, 0)
    trimmed(root, clock, (0, 1))


def empty(root: Path, clock: Clock) -> None:
    trimmed(root, clock)
    shutil.rmtree(root / "2")


STALE: dict[str, Callable[[Path, Clock], object]] = {"weeks behind": stale, "empty": empty}


@pytest.mark.parametrize("name", STALE)
@pytest.mark.parametrize("when", ["at an open", "while it is open"])
def test_a_voter_behind_the_log_start_goes_on_from_a_snapshot(
    root: Path, clock: Clock, name: str, when: str
) -> None:
    STALE[name](root, clock)
    with quorum(root, (0, 1), clock=clock, **TINY) as opened:
        expected, start = numbers(opened.log), start_of(opened, 0)
        if when != "at an open":
            with segstore.open(root / "2", clock=clock) as store:
                opened.log.add(voter_of(2, store))
                append(opened, 4)
                expected = [*expected, 4]
                assert opened.log.voters == ALL
                assert start_of(opened, 2) == start
                opened.log.close()
    with quorum(root, clock=clock, **TINY) as opened:
        assert opened.lost == []
        assert numbers(opened.log) == expected
        assert start_of(opened, 2) == start
        assert snapshots_of(root, 2) == snapshots_of(root, 0)
    with quorum(root, (1, 2), clock=clock, **TINY) as opened:
        assert numbers(opened.log) == expected


def test_a_voter_that_was_added_counts_for_the_next_snapshot(root: Path, clock: Clock) -> None:
    trimmed(root, clock)
    with (
        segstore.open(root / "2", clock=clock) as store,
        quorum(root, (0, 1), clock=clock, **TINY) as opened,
    ):
        opened.log.add(voter_of(2, store))
        opened.log.lose(1)
        append(opened, 4)
        found = keep_all(root, opened.log, (0, 2))
        until(lambda: [start_of(opened, voter) for voter in (0, 2)] == [found.end_offset] * 2)


def test_an_old_copy_with_a_longer_log_of_another_epoch_is_cut(root: Path, clock: Clock) -> None:
    with quorum(root, clock=clock, **TINY) as opened:
        append(opened, 1)
    as_the_same(Path(shutil.copytree(root / "2", root / "old")))
    trimmed(root, clock, (0, 1))
    trimmed(root, clock, (0, 1))
    with segstore.open(root / "old", clock=clock) as store:
        log = MetadataLog.open([voter_of(2, store)], 1)
        for number in range(50, 80):
            log.append([numbered(number)])
        log.close()
    shutil.rmtree(root / "2")
    (root / "old").rename(root / "2")
    with quorum(root, (0, 1), clock=clock, **TINY) as opened:
        expected = numbers(opened.log)
        append(opened, *range(4, 9))
        with segstore.open(root / "2", clock=clock) as store:
            opened.log.add(voter_of(2, store))
            opened.log.close()
    with quorum(root, clock=clock, **TINY) as opened:
        assert numbers(opened.log) == [*expected, *range(4, 9)]
    assert log_bytes(root, 2) in log_bytes(root, 0)


def test_a_copy_that_is_ahead_is_refused_as_before(root: Path, clock: Clock) -> None:
    found = trimmed(root, clock)
    for _ in range(3):
        with quorum(root, (0, 2), clock=clock, **TINY) as opened:
            append(opened, 4)
    as_the_same(Path(shutil.copytree(root / "2", root / "ahead")))
    for voter in (0, 2):
        shutil.rmtree(root / str(voter))
        as_the_same(Path(shutil.copytree(root / "1", root / str(voter))))
    with (
        quorum(root, (0, 1), clock=clock) as opened,
        segstore.open(root / "ahead", clock=clock) as store,
        pytest.raises(StaleDirectoryError),
    ):
        opened.log.add(voter_of(2, store))
    with segstore.open(root / "ahead", clock=clock) as store:
        held = voter_of(2, store).writer.partition("__cluster_metadata", 0).view
        assert (held.start_offset, held.end_offset > found.end_offset) == (found.end_offset, True)


# --- damage --------------------------------------------------------------------------------------


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bit rot": spoil,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize(
    ("name", "voters"),
    [
        *(("bit rot", (0,)), ("bit rot", (1,)), ("gone", (0, 1)), ("gone", (1, 2))),
        *(("cut short", (0, 2)), ("empty", (0,)), ("a directory", (0,))),
    ],
)
def test_another_voters_snapshot_takes_the_place_of_a_damaged_one(
    root: Path, clock: Clock, name: str, voters: tuple[int, ...]
) -> None:
    found = trimmed(root, clock)
    for voter in voters:
        DAMAGE[name](snapshot_file(root, voter, found))
        assert [str(each.message) for each in segstore.check(root / str(voter))] != []
    if name == "a directory":
        snapshot_file(root, 0, found).rmdir()
    with quorum(root, clock=clock, **TINY) as opened:
        assert (opened.lost, numbers(opened.log)) == ([], [1, 2, 3])
    for voter in ALL:
        assert segstore.check(root / str(voter)) == []
        assert snapshots_of(root, voter) == [found]


def test_an_older_snapshot_serves_where_the_newest_is_damaged(root: Path, clock: Clock) -> None:
    with quorum(root, clock=clock, segment_ms=1) as opened:
        append(opened, 1)
        keep_all(root, opened.log)
        append(opened, 2)
        newest = keep_all(root, opened.log)
        append(opened, 3)
    for voter in ALL:
        spoil(snapshot_file(root, voter, newest))
        (finding,) = segstore.check(root / str(voter))
        assert "the snapshot is damaged" in str(finding)
    with quorum(root, clock=clock, segment_ms=1, retention_bytes=0) as opened:
        assert numbers(opened.log) == [1, 2, 3]
        append(opened, 4)
        opened.log.clean()
        last = keep_all(root, opened.log)
        until(lambda: [snapshots_of(root, voter) for voter in ALL] == [[last]] * 3)
        assert numbers(opened.log) == [1, 2, 3, 4]


def test_where_no_snapshot_is_left_it_is_told_what_to_do(tmp_path: Path, clock: Clock) -> None:
    root = tmp_path
    found = trimmed(root, clock)
    shutil.copy(snapshot_file(root, 0, found), root / "backup")
    for voter in ALL:
        spoil(snapshot_file(root, voter, found))
    for ids in (*PAIRS, ALL):
        with pytest.raises(CorruptCheckpointError, match=r"no sound snapshot.*put back a \.checkpoint.*CRC"):
            Quorum(root, ids, clock=clock)
    held = [log_bytes(root, voter) for voter in ALL]
    shutil.copy(root / "backup", snapshot_file(root, 2, found))
    with quorum(root, clock=clock) as opened:
        assert numbers(opened.log) == [1, 2, 3]
    assert all(new.startswith(old) for old, new in zip(held, map(log_bytes, [root] * 3, ALL), strict=True))


def test_a_stale_majority_does_without_a_voter_that_lost_its_snapshot(root: Path, clock: Clock) -> None:
    """Voter 2 has nothing of what the others have removed; of these only one is there, without snapshot."""
    stale(root, clock)
    found = snapshots_of(root, 0)[0]
    spoil(snapshot_file(root, 0, found))
    with pytest.raises(QuorumLostError, match="no sound snapshot"):
        Quorum(root, (0, 2), clock=clock)
    with quorum(root, clock=clock, **TINY) as opened:
        assert numbers(opened.log) == [0, 1, 2, 3]


def test_a_whole_log_serves_where_a_snapshot_is_lost(root: Path, clock: Clock) -> None:
    """Voter 1 never removed anything, and voter 0 has lost what its log goes on from."""
    files = {1: Refusing()}
    files[1].refuses = True
    with quorum(root, files=files, clock=clock, **TINY) as opened:
        for number in (1, 2):
            append(opened, number)
            found = keep_all(root, opened.log, (0, 2))
        until(lambda: start_of(opened, 0) == found.end_offset)
        assert start_of(opened, 1) == 0
    snapshot_file(root, 0, found).unlink()
    with quorum(root, (0, 1), clock=clock) as opened:
        assert (opened.lost, numbers(opened.log)) == ([], [1, 2])
        assert start_of(opened, 0) == 0
    with quorum(root, clock=clock) as opened:
        assert numbers(opened.log) == [1, 2]


# --- check ---------------------------------------------------------------------------------------


FOUND: dict[str, tuple[Callable[[Path, SnapshotId], object], str]] = {
    "damaged": (lambda folder, found: spoil(folder / found.name), "the snapshot is damaged: CRC"),
    "without footer": (
        lambda folder, found: (folder / found.name).write_bytes((folder / found.name).read_bytes()[:-75]),
        "has no footer",
    ),
    "beyond the log": (
        lambda folder, found: shutil.copy(folder / found.name, folder / SnapshotId(99, 9).name),
        "ends behind the log",
    ),
    "a gap": (
        lambda folder, found: (folder / found.name).rename(
            folder / SnapshotId(found.end_offset - 1, found.epoch).name
        ),
        "no sound snapshot reaches so far",
    ),
    "none": (lambda folder, found: (folder / found.name).unlink(), "no sound snapshot reaches so far"),
}


@pytest.mark.parametrize("name", FOUND)
def test_check_finds(tmp_path: Path, clock: Clock, name: str) -> None:
    found = trimmed(tmp_path, clock)
    change, reason = FOUND[name]
    change(tmp_path / "0/__cluster_metadata-0", found)
    assert any(reason in str(finding) for finding in segstore.check(tmp_path / "0"))
    assert segstore.check(tmp_path / "1") == []


def test_check_of_a_store_that_is_open_finds_nothing(root: Path, clock: Clock) -> None:
    with quorum(root, clock=clock, **TINY) as opened:
        for number in range(20):
            append(opened, number)
            keep(opened.log)
            assert_sound(root)
        opened.log.append([NoOpRecord()])
