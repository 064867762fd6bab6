"""Which adopted ids are kept: as long as they may come again."""

from __future__ import annotations

from pathlib import Path

from segstore.files import Files
from segstore.storage.staging.ids import AdoptedIds, Adoption

LONG_MS = 1 << 40


def ids(path: Path, count: int, retention_ms: int = LONG_MS) -> AdoptedIds:
    return AdoptedIds(Files(), str(path / "adopted"), retention_ms, count)


def adopt(held: AdoptedIds, *names: str, ms: int = 0) -> None:
    for name in names:
        held.record(Adoption(name, ms, {("t", 0): (0, 1)}))


def kept(held: AdoptedIds) -> list[str]:
    return list(held._held)


def test_a_quiet_query_s_last_id_outlives_the_many_of_busy_ones(tmp_path: Path) -> None:
    """It may have been killed before Spark noted its last micro-batch: it comes again with that id."""
    held = ids(tmp_path, 10)
    adopt(held, "stream/quiet/6", "stream/quiet/7")
    adopt(held, *(f"stream/busy-{i % 2}/{i}" for i in range(200)))
    assert len(kept(held)) == 10
    assert held.find("stream/quiet/7")
    assert not held.find("stream/quiet/6")
    for again in (held, ids(tmp_path, 10)):
        assert again.find("stream/quiet/7")
        adopt(again, "stream/busy-0/200")
        assert len(kept(again)) == 10
        assert again.find("stream/quiet/7")


def test_there_are_never_more_than_the_count(tmp_path: Path) -> None:
    held = ids(tmp_path, 3)
    adopt(held, *(f"stream/{i}/0" for i in range(9)))
    assert kept(held) == ["stream/6/0", "stream/7/0", "stream/8/0"]


def test_age_takes_all_but_the_newest(tmp_path: Path) -> None:
    held = ids(tmp_path, 100, 50)
    adopt(held, "a/1", "b/1", ms=1000)
    adopt(held, "a/2", ms=2000)
    assert kept(held) == ["a/2"]


def test_a_forgotten_id_leaves_its_place_to_the_one_before(tmp_path: Path) -> None:
    held = ids(tmp_path, 2)
    adopt(held, "a/1", "a/2")
    held.forget("a/2")
    adopt(held, "b/1", "b/2")
    assert kept(held) == ["a/1", "b/2"]
