"""Promise: whatever fails, and wherever a kill or a power cut comes, what `append` of the metadata log has
returned for is there after the next open, with any majority of the voters.
"""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, FailingFiles
from faulty import MODES, FaultyFiles
from metadata_logs import ALL, Quorum, assert_sound, log_bytes, numbered, numbers, quorum
from stores import killed_at_each_call

import segstore
from segstore.errors import QuorumLostError

pytestmark = pytest.mark.kind("faults")

MAJORITIES = [*itertools.combinations(ALL, 2), ALL]
APPENDS = range(100, 104)
PARTS = 5


def prepared(root: Path) -> None:
    """Voters of which one has less than the others."""
    root.mkdir()
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    with quorum(root, (0, 1)) as opened:
        opened.log.append([numbered(2)])


def assert_kept(root: Path, acknowledged: list[int], majority: tuple[int, ...]) -> None:
    """What was acknowledged is there, in order, and what else is there was asked for."""
    with quorum(root, majority) as opened:
        found = numbers(opened.log)
        assert found[: len(acknowledged)] == acknowledged
        assert set(found[len(acknowledged) :]) <= set(APPENDS)
        opened.log.append([numbered(9)])
    with quorum(root) as opened:
        assert numbers(opened.log) == [*found, 9]
    assert log_bytes(root, 0) == log_bytes(root, 1) == log_bytes(root, 2)
    assert_sound(root)


@pytest.mark.parametrize("voter", [1, 2])
def test_each_call_of_one_voter_fails_once(tmp_path: Path, voter: int) -> None:
    prepared(tmp_path / "state")
    nth, hits = 0, 1
    while hits:
        nth += 1
        root = tmp_path / f"failed-{nth}"
        shutil.copytree(tmp_path / "state", root)
        files = FailingFiles(MUTATING, OSError(5, "injected"), nth)
        acknowledged = [1, 2]
        try:
            opened = Quorum(root, files={voter: files})
        except segstore.SegstoreError:
            assert files.hits  # the store itself can't be opened
            opened = Quorum(root, [id_ for id_ in ALL if id_ != voter])
        for number in APPENDS:
            opened.log.append([numbered(number)])
            acknowledged.append(number)
        opened.close()
        assert_kept(root, acknowledged, MAJORITIES[nth % len(MAJORITIES)])
        shutil.rmtree(root)
        hits = files.hits
    assert nth > 10


@pytest.mark.parametrize("first", range(1, 1 + PARTS))
def test_a_kill_at_each_call(tmp_path: Path, first: int) -> None:
    """In parts: at the first call, and at each fifth behind it, and so on."""
    prepared(tmp_path / "state")

    def run(files: Any, root: Path) -> None:
        opened = Quorum(root, files=dict.fromkeys(ALL, files))
        for number in APPENDS:
            opened.log.append([numbered(number)])
            with open(root / "told", "a") as told:
                told.write(f"{number}\n")
        opened.close()

    count = 0
    for nth, root in killed_at_each_call(tmp_path / "state", tmp_path, run, first, PARTS):
        told = root / "told"
        acknowledged = [1, 2, *map(int, told.read_text().split())] if told.exists() else [1, 2]
        assert_kept(root, acknowledged, MAJORITIES[nth % len(MAJORITIES)])
        count += 1
    assert count > 20 // PARTS


def test_power_cuts(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "disk").mkdir()
    files = FaultyFiles(tmp_path / "disk")
    every = dict.fromkeys(ALL, files)
    opened = Quorum(tmp_path / "disk", files=every)
    opened.log.append([numbered(1), numbered(2)])
    opened.close()
    acknowledged, images = [1, 2], []
    files.watch = lambda call: images.append((list(acknowledged), files.image(rng.choice(list(MODES)), rng)))
    opened = Quorum(tmp_path / "disk", files=every)
    for number in APPENDS:
        opened.log.append([numbered(number)])
        acknowledged.append(number)
    files.watch = None
    images += [(list(acknowledged), files.image(mode, rng)) for mode in MODES]
    for number, (kept, image) in enumerate(images):
        root = tmp_path / f"cut-{number}"
        root.mkdir()
        image.write(root)
        assert_kept(root, kept, rng.choice(MAJORITIES))
        shutil.rmtree(root)
    opened.close()
    assert len(images) > 20


@pytest.mark.parametrize("total", [3, 5])
def test_openings_that_fail_anywhere_one_after_the_other(
    tmp_path: Path, rng: random.Random, total: int
) -> None:
    """Voters are away, and disks fail for good at any call; tails are left at any of them."""
    acknowledged: list[int] = []
    asked, every = itertools.count(100), range(total)
    with quorum(tmp_path, every, total=total):
        pass
    for _ in range(60):
        ids = rng.sample(every, rng.randrange(total // 2 + 1, total + 1))
        files = {
            id_: FailingFiles(MUTATING, OSError(5, "injected"), rng.randrange(1, 60), 1 << 30)
            for id_ in ids
            if rng.random() < 0.5
        }
        try:
            opened = Quorum(tmp_path, ids, files, total)
        except segstore.SegstoreError:
            continue
        found = numbers(opened.log)
        assert [number for number in found if number in set(acknowledged)] == acknowledged
        acknowledged = found
        try:
            for _ in range(rng.randrange(6)):
                number = next(asked)
                opened.log.append([numbered(number)])
                acknowledged.append(number)
        except QuorumLostError:
            pass
        opened.close()
    with quorum(tmp_path, every, total=total) as opened:
        assert (opened.lost, numbers(opened.log)[: len(acknowledged)]) == ([], acknowledged)
    assert len({log_bytes(tmp_path, id_) for id_ in every}) == 1
    assert_sound(tmp_path, every)
