"""Promise: whatever fails, and wherever a kill or a power cut comes while a snapshot of the metadata is
written, while the log before it is removed, or while a voter is caught up from it, all that counts is there
after the next open, with any majority of the voters.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, FailingFiles
from faulty import MODES, FaultyFiles, Image
from metadata_logs import ALL, Quorum, assert_sound, keep, numbered, numbers, quorum, snapshots_of
from stores import START_MS, Clock
from waiting import until

import segstore
from segstore.files import Files

pytestmark = pytest.mark.kind("faults")

MAJORITIES = [*itertools.combinations(ALL, 2), ALL]
TINY: dict[str, Any] = {"segment_ms": 1, "retention_bytes": 0}
IMAGES = 8
"""Places of a run at which its disks are looked at, drawn by the seed."""


class Ticking(Clock):
    """Is later each time that it is asked, so that each append rolls a segment."""

    def __call__(self) -> int:
        self.now += 2
        return self.now


def opened_by(root: Path, ids: tuple[int, ...] = ALL, files: Any = None) -> Quorum:
    return Quorum(root, ids, files, clock=Ticking(START_MS), **TINY)


def keep_and_trim(root: Path, opened: Quorum, ids: tuple[int, ...] = ALL) -> None:
    """Have a snapshot kept; where there was one before, the log begins behind the new one then."""
    older = [voter for voter in ids if snapshots_of(root, voter)]
    found = keep(opened.log)
    until(lambda: all(found in snapshots_of(root, voter) for voter in ids))
    until(lambda: all(opened.log._voters[voter].start_offset == found.end_offset for voter in older))


def assert_kept(root: Path, acknowledged: list[int], majority: tuple[int, ...]) -> None:
    """What was acknowledged is there, in order; and what was asked for may be there behind it."""
    with quorum(root, majority, clock=Ticking(START_MS), **TINY) as opened:
        found = numbers(opened.log)
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1
        opened.log.append([numbered(9)])
    with quorum(root, clock=Ticking(START_MS), **TINY) as opened:
        assert (opened.lost, numbers(opened.log)) == ([], [*found, 9])
        opened.log.append([numbered(10)])
        keep_and_trim(root, opened)
    for voter in ALL:
        assert not list((root / str(voter) / "__cluster_metadata-0").glob("*.part"))
    assert_sound(root)


def make_two(root: Path, files: Any, told: list[int]) -> None:
    """Two snapshots are made, and the log before the second one goes."""
    opened = opened_by(root, files=files)
    for number in (3, 4):
        opened.log.append([numbered(number)])
        told.append(number)
        keep_and_trim(root, opened)
    opened.close()


def go_on_from_one(root: Path, files: Any, told: list[int]) -> None:
    """Voter 2 has less than the others' logs begin with."""
    opened = opened_by(root, files=files)
    opened.log.append([numbered(5)])
    told.append(5)
    opened.close()


def some(root: Path) -> None:
    with quorum(root, clock=Ticking(START_MS), **TINY) as opened:
        opened.log.append([numbered(1)])
        opened.log.append([numbered(2)])


def one_behind(root: Path) -> None:
    some(root)
    with quorum(root, (0, 1), clock=Ticking(START_MS), **TINY) as opened:
        for number in (3, 4):
            opened.log.append([numbered(number)])
            keep_and_trim(root, opened, (0, 1))


Run = Callable[[Path, Any, list[int]], None]
RUNS: dict[str, tuple[Callable[[Path], None], Run, list[int]]] = {
    "snapshots are made, and the log before them goes": (some, make_two, [1, 2]),
    "a voter is caught up from a snapshot": (one_behind, go_on_from_one, [1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", RUNS)
def test_power_cuts_and_kills(tmp_path: Path, rng: random.Random, name: str) -> None:
    build, run, told = RUNS[name]
    root = tmp_path / "disk"
    root.mkdir()
    build(root)
    files, told, images = FaultyFiles(root), list(told), list[tuple[list[int], Image]]()
    modes = itertools.cycle(rng.sample(list(MODES), len(MODES)))
    files.watch = lambda call: images.append((list(told), files.image(next(modes), rng)))
    run(root, dict.fromkeys(ALL, files), told)
    files.watch = None
    assert len(images) > 30
    for number, (kept, image) in enumerate(rng.sample(images, min(IMAGES, len(images)))):
        cut = tmp_path / f"cut-{number}"
        cut.mkdir()
        image.write(cut)
        assert_kept(cut, kept, MAJORITIES[number % len(MAJORITIES)])
        shutil.rmtree(cut)


@pytest.mark.parametrize("name", RUNS)
def test_calls_of_one_voter_fail(tmp_path: Path, rng: random.Random, name: str) -> None:
    """The voter is lost, or is without a snapshot; the others do without it."""
    build, run, told = RUNS[name]
    (tmp_path / "state").mkdir()
    build(tmp_path / "state")
    counted = FailingFiles(MUTATING, OSError(28, "injected"), nth=1 << 30)
    shutil.copytree(tmp_path / "state", tmp_path / "counted")
    run(tmp_path / "counted", {2: counted}, [])
    for nth in sorted(rng.sample(range(1, 60), 4)):
        root = tmp_path / f"failed-{nth}"
        shutil.copytree(tmp_path / "state", root)
        files = FailingFiles(MUTATING, OSError(28, "injected"), nth)
        acknowledged = list(told)
        try:
            opened = opened_by(root, files={2: files})
        except segstore.SegstoreError:
            assert files.hits  # the store itself can't be opened
            opened = opened_by(root, (0, 1))
        for number in (5, 6):
            opened.log.append([numbered(number)])
            acknowledged.append(number)
            keep_and_trim(root, opened, (0, 1))
        opened.close()
        assert_kept(root, acknowledged, MAJORITIES[nth % len(MAJORITIES)])
        shutil.rmtree(root)


def test_the_steps_of_one_snapshot(tmp_path: Path) -> None:
    """A part, synced, is renamed, and the directory synced, before the log start moves; then files go."""
    some(tmp_path)
    files = FaultyFiles(tmp_path)
    opened = opened_by(tmp_path, files={**dict.fromkeys((0, 1), Files()), 2: files})
    seen: list[str] = []
    for number in (3, 4):
        opened.log.append([numbered(number)])
        seen.clear()
        files.watch = lambda call: seen.append(f"{call.name} {Path(str(call.path)).name}")
        keep_and_trim(tmp_path, opened)
        until(lambda: len(snapshots_of(tmp_path, 2)) == 1)
        files.watch = None
    opened.close()
    part, older = f"{snapshots_of(tmp_path, 2)[0].name}.part", "-0000000002.checkpoint"
    steps = [
        f"sync {part}",
        f"rename {part}",
        "sync_dir __cluster_metadata-0",
        "rename log-start-offset-checkpoint.tmp",
        "rename 00000000000000000000.log",
        next(step for step in seen if step.startswith("unlink") and step.endswith(older)),
    ]
    places = [seen.index(step) for step in steps]
    assert places == sorted(places)
