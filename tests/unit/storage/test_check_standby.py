"""`check` tells of damage to the files of a primary and its standby."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import segstore
from segstore.files import Files
from segstore.storage.meta.fence import FENCE, Fence
from segstore.storage.meta.promotion import PROMOTION, Promotion
from segstore.storage.meta.role import ROLE, Role
from segstore.storage.meta.standby_registration import REGISTRATION, StandbyRegistration

STANDBY = Role("standby", "cluster", "localhost:9092", (), "read_uncommitted", mode="sync", directory_id="d")
WRITTEN: dict[str, Callable[[Files, str], None]] = {
    "standby": lambda files, root: REGISTRATION.write(files, root, StandbyRegistration("d", True, 3)),
    "fence": lambda files, root: FENCE.write(files, root, Fence(7, 2, "d", 1, "it was promoted")),
    "promotion": lambda files, root: PROMOTION.write(files, root, Promotion(7, "h:1", "d", "c", "", False)),
    "role": lambda files, root: ROLE.write(files, root, STANDBY),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_damage_is_a_finding(name: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    segstore.open(root).close()
    WRITTEN[name](Files(), str(root))
    assert not segstore.check(root)
    path = root / ".segstore" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert [finding.path for finding in segstore.check(root)] == [str(path)]
    if name != "promotion":
        with pytest.raises(segstore.errors.CorruptCheckpointError, match=name):
            segstore.open(root)
    else:
        segstore.open(root).close()
