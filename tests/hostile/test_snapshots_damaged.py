"""Damage of all producer snapshots of a partition whose oldest segments were deleted: the producers in the
log are known from it, and the loss of the others is reported.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from producers import send
from small_damage import DAMAGES
from stores import killed

import segstore
from segstore.errors import InvalidProducerEpochError

pytestmark = pytest.mark.kind("damage")

BEFORE, WITHIN = 1, 2  # producers: of records that are deleted, and of the last ones


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("snapshots")
    with segstore.open(root / "closed") as store:
        store.create_topic("t", config={"segment.bytes": 600, "file.delete.delay.ms": 0})
        log = store.partition("t")
        send(log, BEFORE, 0, 5, epoch=3)
        for _ in range(20):
            log.append(b"." * 60)
        send(log, WITHIN, 0, 5, epoch=3)
        log.delete_records(20)
        store.sweep()
        store.flush()
        killed(root / "closed", root / "killed")
    return {left: root / left for left in ("closed", "killed")}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["the last", "every"])
def test_what_producers_are_known_by(
    store_dir: Path, stores: dict[str, Path], which: str, damage: str, rng: Random
) -> None:
    shutil.copytree(stores[rng.choice(["closed", "killed"])], store_dir)
    snapshots = sorted((store_dir / "t-0").glob("*.snapshot"))
    assert len(snapshots) > 1
    for snapshot in snapshots if which == "every" else snapshots[-1:]:
        DAMAGES[damage](snapshot, rng)
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        assert send(log, WITHIN, 0, 5, epoch=3).duplicate
        with pytest.raises(InvalidProducerEpochError):
            send(log, WITHIN, 5, epoch=2)
        told = [one for one in store.mended if "taken for a new one" in one.done]
        assert len(told) == (which == "every")
        assert send(log, BEFORE, 0, 5, epoch=3).duplicate == (which != "every")
    with segstore.open(store_dir) as store:
        assert store.partition("t").start_offset == 20
        assert not store.mended, "told once"
