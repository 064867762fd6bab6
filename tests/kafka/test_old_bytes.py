"""Kafka's own dump tools on messages of magic 0 and 1: that of 2.8.2, whose broker wrote them, and the
tests' Kafka's, also after an upgrade.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import kafka_tools
import pytest
from partitions import GOLDEN, Expected, read_expected

import segstore

pytestmark = [
    pytest.mark.judge("kafka.tools.DumpLogSegments"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's tools"),
]
OLD = GOLDEN / "old"
PARTITIONS = sorted(path.name for path in (OLD / "clean").iterdir())
TOOLS = {"2.8.2": kafka_tools.OLD_POM, kafka_tools.VERSION: kafka_tools.POM}


def expected(name: str) -> list[Expected]:
    return read_expected(OLD / "records" / f"{name}.jsonl.gz")


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def shown(dump: kafka_tools.Dump, partition: Path) -> list[tuple[Any, ...]]:
    """Return offset, time, sizes, and content of all records."""
    return [
        (r["offset"], r["timestamp"], r["keySize"], r["valueSize"], r["key"] or "", r["payload"] or "")
        for r in dump.records(partition)
    ]


def wanted(name: str) -> list[tuple[Any, ...]]:
    return [
        (r.offset, r.timestamp, size(r.key), size(r.value), text(r.key) or "", text(r.value) or "")
        for r in expected(name)
    ]


def size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


@pytest.mark.parametrize("version", TOOLS)
def test_the_tools_see_the_same_in_what_the_broker_wrote(version: str) -> None:
    """... as the consumer did, whom the tests of reading hold our readers to. Indexes are left out: that one
    entry stands for all messages of an append is a mismatch to the tools, though the broker wrote it.
    """
    paths = [OLD / "clean" / name for name in PARTITIONS]
    logs = sorted(file for path in paths for file in path.glob("*.log"))
    dump = kafka_tools.dump_log(logs, contents=True, pom=TOOLS[version])
    assert dump.errors == []
    for path in paths:
        assert shown(dump, path) == wanted(path.name), path.name


def test_the_tool_of_4_1_sees_the_same_after_an_upgrade(tmp_path: Path) -> None:
    """All is of magic 2, and the codecs are those that were there."""
    root = tmp_path / "store"
    shutil.copytree(OLD / "clean", root, copy_function=shutil.copyfile)
    before = kafka_tools.judge(*(root / name for name in PARTITIONS))
    codecs = {name: {b["codec"] for b in before.batches(root / name)} for name in PARTITIONS}
    with segstore.open(root) as store:
        done = store.upgrade()
        assert [each.error for each in done] == [None] * len(PARTITIONS)
    dump = kafka_tools.judge(*(root / name for name in PARTITIONS), contents=True)
    assert dump.errors == []
    for name in PARTITIONS:
        assert shown(dump, root / name) == wanted(name), name
        assert {b["magic"] for b in dump.batches(root / name)} == {2}
        assert {b["codec"] for b in dump.batches(root / name)} == codecs[name], name
