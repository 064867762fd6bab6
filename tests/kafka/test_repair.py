"""Repairs of a broker's logs; and Kafka's dump tool on repaired logs of segstore."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import kafka_tools
import pytest
from compaction import Unsynced
from damage import ROT, N, batches, flip, plain
from partitions import GOLDEN, read_expected
from stores import logs, records

import segstore
from segstore.storage.repair import repair

pytestmark = pytest.mark.kind("Kafka's tools")


@pytest.mark.judge("kafka.tools.DumpLogSegments")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
@pytest.mark.timeout(900)  # the first call may download
def test_judge(tmp_path: Path) -> None:
    expected = {}
    for rot in ROT:
        path, bad = rotten(tmp_path / rot.__name__, rot)
        expected[path / "t-0"] = [i for i in range(N) if i - i % 2 not in bad]
    dump = kafka_tools.judge(*expected)
    assert dump.errors == []
    for partition, offsets in expected.items():
        assert [r["offset"] for r in dump.records(partition)] == offsets
        assert all(batch["isvalid"] for batch in dump.batches(partition))
        ends = [(batch["baseOffset"], batch["lastOffset"]) for batch in dump.batches(partition)]
        assert [base for base, _ in ends] == [0, *(last + 1 for _, last in ends[:-1])]


def rotten(path: Path, rot: Callable[[Path], list[int]]) -> tuple[Path, list[int]]:
    bad = rot(logs(plain(path))[1])
    repair(path, quarantine=True, files=Unsynced())
    assert segstore.check(path) == []
    return path, bad


def test_a_broker_s_directory_keeps_what_lies_behind_damage(tmp_path: Path) -> None:
    """Nothing says there how far the logs were synced: opening would cut all of it off."""
    name = "flights-none-1"
    shutil.copytree(GOLDEN / "clean" / name, tmp_path / name)
    log = logs(tmp_path, name)[0]
    found = batches(log)
    at, size, _ = found[1]
    flip(log, at + size - 1)
    expected = [record.offset for record in read_expected(GOLDEN / "records" / f"{name}.jsonl.gz")]
    repair(tmp_path, quarantine=True)
    assert segstore.check(tmp_path) == []
    with segstore.open(tmp_path, mode="r") as store:
        held = [record.offset for record in records(store.partition("flights-none", 1))]
    lost = set(range(found[1][2], found[2][2]))
    assert held == [offset for offset in expected if offset not in lost] != expected
