"""Kafka's dump tool judges each directory of a replicated store: the same batches on all replicas, the leader
epochs in them, and the metadata as records of Kafka's own.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kafka_tools import DUMP_TOOL, classpath, judge, why_not
from replicated_stores import Directories, await_in_sync, retrying
from waiting import until

import segstore

pytestmark = [
    pytest.mark.judge("Kafka's dump tool"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.kind("Kafka's tools"),
]


def written(tmp_path: Path) -> Directories:
    """Three directories, two failovers, every kind of producer."""
    three = Directories(tmp_path, 3)
    with three.open(min_insync_replicas=2) as store:
        store.create_topic("t", partitions=2, replication_factor=3, config={"segment.bytes": 20_000})
    for lost in (0, 1):
        with three.open() as store:
            await_in_sync(store)
            write_and_fail_over(three, store, lost)
        three.bring_back()
    with three.open() as store:
        await_in_sync(store)
    return three


def write_and_fail_over(three: Directories, store: Any, lost: int) -> None:
    """Write in batches and transactions; then a directory fails, and another leads."""
    log = store.partition("t", 0)
    store.elect_leaders("preferred")
    for number in range(20):
        log.append_batch([b"%d %d" % (lost, number)] * 20, compression="zstd")
    with segstore.Producer(store, acks="all", transactional_id="x") as producer:
        producer.init_transactions()
        for ends in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send("t", b"in a transaction", partition=0)
            ends()
    leader = store.describe_partition("t", 0).leader
    three.files.fail(three.paths[leader])
    until(lambda: store.describe_partition("t", 0).leader not in (leader, -1))
    retrying(lambda: log.append(b"after the election"))


def test_the_dump_tool_reads_each_replica_alike(tmp_path: Path) -> None:
    three = written(tmp_path)
    copies = [shutil.copytree(path, tmp_path / f"copy-{path.name}") for path in three.paths]
    dump = judge(*(Path(copy) / "t-0" for copy in copies))
    assert dump.errors == []
    batches = [dump.batches(Path(copy) / "t-0") for copy in copies]
    assert batches[0] == batches[1] == batches[2]
    epochs = [int(str(batch["partitionLeaderEpoch"])) for batch in batches[0]]
    assert len({*epochs}) >= 3
    assert epochs == sorted(epochs)
    assert all(batch["isvalid"] for batch in batches[0])
    records = [dump.records(Path(copy) / "t-0") for copy in copies]
    assert records[0] == records[1] == records[2]


def decoded(files: list[Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *("java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", classpath(), DUMP_TOOL),
            *("--cluster-metadata-decoder", "--deep-iteration", "--files", ",".join(map(str, files))),
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )


def test_the_dump_tool_reads_snapshots_of_the_metadata(tmp_path: Path) -> None:
    three = Directories(tmp_path, 3)
    with three.open(metadata_log_max_record_bytes_between_snapshots=1) as store:
        store.create_topic("t", partitions=2, replication_factor=3, config={"segment.bytes": 20_000})
        folders = [path / "__cluster_metadata-0" for path in three.paths]
        until(lambda: all(any(map(has_setting, folder.glob("*.checkpoint"))) for folder in folders))
    for folder in folders:
        run = decoded([max(folder.glob("*.checkpoint"))])
        assert run.returncode == 0, run.stderr
        lines = [line for line in run.stdout.splitlines() if line.startswith("| offset")]
        assert 'SnapshotHeader {"version":0,"lastContainedLogTimestamp":' in lines[0]
        assert lines[-1].endswith('SnapshotFooter {"version":0}')
        kinds = (
            ["REGISTER_BROKER_RECORD"] * 3 + ["TOPIC_RECORD"] + ["PARTITION_RECORD"] * 2 + ["CONFIG_RECORD"]
        )
        found = [line.partition('"type":"')[2].partition('"')[0] for line in lines[1:-1]]
        assert found == kinds
        assert "isvalid: false" not in run.stdout


def has_setting(snapshot: Path) -> bool:
    return b"segment.bytes" in snapshot.read_bytes()


def test_the_dump_tool_reads_the_metadata(tmp_path: Path) -> None:
    three = written(tmp_path)
    for path in three.paths:
        files = sorted(
            Path(shutil.copytree(path, tmp_path / f"m-{path.name}"), "__cluster_metadata-0").glob("*.log")
        )
        assert files
        run = decoded(files)
        assert run.returncode == 0, run.stderr
        for kind in ("REGISTER_BROKER_RECORD", "TOPIC_RECORD", "PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
            assert f'"type":"{kind}"' in run.stdout, kind
        assert '"name":"t"' in run.stdout
        assert "isvalid: false" not in run.stdout
        assert "Error" not in run.stdout
