"""The broker-written partitions on which other tests depend."""

from __future__ import annotations

from pathlib import Path

import pytest
from partitions import GOLDEN, as_running

CLEAN = sorted(path.name for path in (GOLDEN / "clean").iterdir())


def test_golden_stays_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) <= 2_400_000


def test_golden_has_every_codec() -> None:
    """Attribute bits 0 to 2 of the first batch of each log: none, gzip, snappy, lz4, zstd."""
    codecs = {path.read_bytes()[22] & 7 for path in (GOLDEN / "clean").glob("*/*.log")}
    assert codecs == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("name", CLEAN)
def test_golden_equals_the_full_set(name: str, kafka_segments: Path) -> None:
    """Whole files are the broker's own, cut ones begin as the broker's do."""
    for path in (GOLDEN / "clean" / name).glob("*.log"):
        full = (kafka_segments / "clean" / name / path.name).read_bytes()
        mine = path.read_bytes()
        assert mine == full[: len(mine)]
        assert len(mine) == len(full) or name == "flights-zstd-0"


def test_as_running_is_what_a_running_broker_has(kafka_segments: Path, tmp_path: Path) -> None:
    as_running(kafka_segments / "clean" / "flights-zstd-0", tmp_path / "flights-zstd-0")
    real = kafka_segments / "running" / "flights-zstd-0"
    assert sorted(path.name for path in (tmp_path / "flights-zstd-0").iterdir()) == sorted(
        path.name for path in real.iterdir()
    )
    for path in real.iterdir():
        assert (tmp_path / "flights-zstd-0" / path.name).read_bytes() == path.read_bytes(), path.name
