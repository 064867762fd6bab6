"""Kafka's dump tool on what a repair has made of logs that had rotted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import kafka_tools
import pytest
from compaction import Unsynced
from stores import logs
from test_repair import ROT, N, plain

import segstore
from segstore.storage.repair import repair


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
