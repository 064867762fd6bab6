"""The demo's part of two machines: what a killed primary had acknowledged is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import segstore
from segstore.demo import standbys as part
from segstore.demo.screen import Screen
from segstore.errors import StorageError

pytestmark = pytest.mark.kind("programs")


def test_a_standby_takes_over_and_the_old_primary_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part.standbys(Screen(), str(tmp_path / "machines"), 50)
    said = capsys.readouterr().out
    assert "acknowledged records are there, none lost" in said
    assert "have the same bytes, and are sound" in said
    for name in (part.PRIMARY, part.STANDBY, part.MIRROR):
        assert segstore.check(tmp_path / "machines" / name) == []


def test_a_record_that_is_lost_is_a_failure(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic(part.TOPIC)
        store.partition(part.TOPIC, 0).append(b"entry 0")
    part._prove(Screen(), str(store_dir), 1)
    with pytest.raises(StorageError, match="of 2 acknowledged records 1 are lost, as 1"):
        part._prove(Screen(), str(store_dir), 2)
