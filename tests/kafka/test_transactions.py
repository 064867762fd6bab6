"""Kafka's own dump tool on transactions: data, markers, `.txnindex`, snapshots, and `__transaction_state`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import kafka_tools
import pytest

import segstore
from segstore import OffsetAndMetadata, Producer, TopicPartition
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.records import HEADER_SIZE

pytestmark = [
    pytest.mark.judge("kafka.tools.DumpLogSegments"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's tools"),
]

CONFIG = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
# What becomes of each transaction, in order.
ENDS = [True, False, True, False, False, True]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("judged") / "store"
    with segstore.open(path, config=CONFIG) as store:
        store.create_topic("t", partitions=2, config={"segment.bytes": 2000, "index.interval.bytes": 200})
        store.create_topic("plain")
        with Producer(store, transactional_id="\u00e9 x", batch_size=HEADER_SIZE + 300) as producer:
            producer.init_transactions()
            for number, commit in enumerate(ENDS):
                producer.begin_transaction()
                for i in range(20):
                    producer.send("t", b"%d %d" % (number, i), partition=i % 2)
                producer.send_offsets_to_transaction(
                    {TopicPartition("plain", 0): OffsetAndMetadata(number)}, "g"
                )
                producer.flush()
                producer.commit_transaction() if commit else producer.abort_transaction()
        with Producer(store, batch_size=HEADER_SIZE + 300) as producer:
            for i in range(200):
                producer.send("plain", b"%d" % i)
                if i % 50 == 0:
                    producer.flush()
        shared(store, TransactionCoordinator).init_producer_id("gone", 1000)
        TransactionStateLog(store).append("gone", None)
    assert segstore.check(path) == []
    return path


@pytest.fixture(scope="module")
def dump(written: Path) -> kafka_tools.Dump:
    partitions = [
        written / name for name in ("t-0", "t-1", "plain-0", "__consumer_offsets-0", "__transaction_state-0")
    ]
    found = kafka_tools.judge(*partitions)
    assert found.errors == []
    return found


@pytest.mark.parametrize("partition", [0, 1])
def test_batches_and_markers(written: Path, dump: kafka_tools.Dump, partition: int) -> None:
    where = written / f"t-{partition}"
    batches = dump.batches(where)
    assert all(batch["isTransactional"] for batch in batches)
    markers = [record for record in dump.records(where) if record.get("endTxnMarker")]
    assert [marker["endTxnMarker"] for marker in markers] == ["COMMIT" if end else "ABORT" for end in ENDS]
    assert {marker["coordinatorEpoch"] for marker in markers} == {0}
    # Each end goes to the next epoch, whose sequences begin with 0 and have no gap.
    follows: dict[int, int] = {}
    for batch in batches:
        if not batch["isControl"]:
            assert batch["baseSequence"] == follows.get(batch["producerEpoch"], 0)
            follows[batch["producerEpoch"]] = batch["lastSequence"] + 1
    assert follows == dict.fromkeys(range(len(ENDS)), 10)


@pytest.mark.parametrize("partition", [0, 1])
def test_the_index_of_aborts(written: Path, dump: kafka_tools.Dump, partition: int) -> None:
    where = written / f"t-{partition}"
    aborted = [
        entry for path, file in sorted(dump.files.items()) if path.parent == where for entry in file.aborted
    ]
    markers = [record for record in dump.records(where) if record.get("endTxnMarker") == "ABORT"]
    assert [entry["lastOffset"] for entry in aborted] == [marker["offset"] for marker in markers]
    assert [entry["lastOffset"] - entry["firstOffset"] for entry in aborted] == [10, 10, 10]
    assert {entry["producerId"] for entry in aborted} == {0}


@pytest.mark.parametrize("name", ["t-0", "t-1", "plain-0"])
def test_snapshots_say_what_the_log_says(written: Path, dump: kafka_tools.Dump, name: str) -> None:
    snapshots = {
        p: file for p, file in dump.files.items() if p.parent == written / name and p.suffix == ".snapshot"
    }
    assert snapshots
    for path, file in snapshots.items():
        expected: dict[Any, dict[str, Any]] = {}
        for batch in dump.batches(written / name):
            if batch["baseOffset"] >= int(path.stem):
                break
            known = expected.setdefault(batch["producerId"], {})
            if known.get("producerEpoch") != batch["producerEpoch"]:
                known |= {"producerEpoch": batch["producerEpoch"], "lastSequence": None, "lastOffset": None}
            if batch["isControl"]:
                known |= {"currentTxnFirstOffset": None, "coordinatorEpoch": 0}
            else:
                known |= {"lastSequence": batch["lastSequence"], "lastOffset": batch["lastOffset"]}
                if batch["isTransactional"]:
                    known["currentTxnFirstOffset"] = known.get("currentTxnFirstOffset") or batch["baseOffset"]
        found = {entry["producerId"]: entry for entry in file.producers}
        assert set(found) == set(expected)
        for producer_id, known in expected.items():
            for field, value in known.items():
                told = found[producer_id].get(field)
                assert told == value or (value is None and told in (None, -1)), (path, field)


def decoded(path: Path) -> list[tuple[str, str]]:
    """Key and payload of each record of `__transaction_state`, as the tool's decoder prints them."""
    files = ",".join(map(str, sorted(path.glob("*.log"))))
    tool = [kafka_tools.DUMP_TOOL, "--transaction-log-decoder", "--files", files]
    java = ["java", "-Dfile.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8", "-cp", kafka_tools.classpath()]
    run = subprocess.run([*java, *tool], capture_output=True, encoding="utf-8", timeout=240, check=True)
    return re.findall(r"^\| offset: .* key: (.*?) payload: ?(.*)$", run.stdout, re.M)


def test_the_tools_decoder_reads_the_transaction_log(written: Path) -> None:
    found = [
        (json.loads(key)["data"]["transactionalId"], payload)
        for key, payload in decoded(written / "__transaction_state-0")
    ]
    assert [payload for name, payload in found if name == "gone"][1:] == ["<DELETE>"]
    values = [json.loads(payload)["data"] for name, payload in found if name == "\u00e9 x"]
    states = [value["transactionStatus"] for value in values]
    assert states[0] == "Empty"
    assert [state for state in states if state not in ("Empty", "Ongoing")] == [
        f"{step}{'Commit' if end else 'Abort'}" for end in ENDS for step in ("Prepare", "Complete")
    ]
    ongoing = {
        part["topic"]: sorted(part["partitionIds"])
        for value in values if value["transactionStatus"] == "PrepareCommit"
        for part in value["transactionPartitions"]
    }  # fmt: skip
    assert ongoing == {"t": [0, 1], "__consumer_offsets": [0]}
    assert [value["producerEpoch"] for value in values][-1] == len(ENDS)
    assert {value["clientTransactionVersion"] for value in values} == {2}
    assert {value["producerId"] for value in values} == {0}
    assert {value["transactionTimeoutMs"] for value in values} == {60_000}
