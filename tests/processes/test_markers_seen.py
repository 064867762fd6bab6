"""Transactions as readers in other threads and processes, and Kafka's own dump tool, see them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import kafka_tools
import pytest
from producers import assert_said, committed, send
from stores import Clock, in_child
from waiting import PATIENCE

import segstore
from segstore.storage.log.transaction_markers import end_transaction

pytestmark = pytest.mark.kind("Kafka's tools")


def test_no_reader_sees_half_of_a_commit(store_dir: Path) -> None:
    """A process that reads and threads that look hammer two partitions: what the first shows, so does the
    second.
    """
    rounds = 400
    with segstore.open(store_dir) as store:
        store.create_topic("t", 2, config={"segment.bytes": 20_000})
        a, b = store.partition("t", 0), store.partition("t", 1)

        def follow(tell: object) -> None:
            with segstore.open(store_dir, "r") as reader:
                first, second = reader.partition("t", 0), reader.partition("t", 1)
                looks, at, seen = 0, [0, 0], [0, 0]
                deadline = time.monotonic() + PATIENCE
                while seen[0] < rounds * 3:
                    assert time.monotonic() < deadline
                    for p, log in enumerate((first, second)):
                        end = log.last_stable_offset
                        while at[p] < end:
                            read = log.read(at[p], isolation_level="read_committed")
                            seen[p] += len(read)
                            at[p] = read.next_offset
                        looks += 1
                    assert seen[1] >= seen[0], seen
                tell(str(looks))  # type: ignore[operator]

        stop = threading.Event()
        wrong: list[tuple[int, int]] = []

        def look() -> None:
            while not stop.is_set():
                first = a.last_stable_offset
                second = b.last_stable_offset
                if first > second:
                    wrong.append((first, second))

        child: list[tuple[int, list[str]]] = []
        reader = threading.Thread(target=lambda: child.append(in_child(follow)))
        looking = threading.Thread(target=look)
        reader.start()
        looking.start()
        try:
            for i in range(rounds):
                send(a, 1, i * 3, 3, txn=True)
                send(b, 1, i * 3, 3, txn=True)
                end_transaction([a, b], 1, 0, 0, True)
        finally:
            reader.join()
            stop.set()
            looking.join()
        assert child[0][0] == 0, child
        assert wrong == []
        assert len(committed(a)) == rounds * 3


@pytest.mark.judge("kafka.tools.DumpLogSegments")
@pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not()))
@pytest.mark.timeout(900)
def test_kafka_reads_transactions(store_dir: Path) -> None:
    config = {"segment.bytes": 2000, "index.interval.bytes": 200}
    kinds = []
    with segstore.open(store_dir, clock=Clock(step=10)) as store:
        store.create_topic("t", 1, config=config)
        store.create_topic("stamped", 1, config={**config, "message.timestamp.type": "LogAppendTime"})
        logs = [store.partition("t"), store.partition("stamped")]
        for i in range(30):
            for pid in (3, 4):
                for log in logs:
                    send(log, pid, (i * 4 + (1 << 31) - 50) % (1 << 31), 4, txn=True, cuts=(1,))
                    log.append(b"plain")
            for pid, commit in ((4, i % 3 == 0), (3, i % 2 == 0)):
                end_transaction(logs, pid, 0, 7, commit)
                kinds.append("COMMIT" if commit else "ABORT")
        send(logs[0], 5, 0, 3, txn=True)
    partitions = [store_dir / "t-0", store_dir / "stamped-0"]
    for partition in partitions:
        assert_said(partition)
    dump = kafka_tools.judge(*partitions)
    assert dump.errors == []
    for partition in partitions:
        marked = [r for r in dump.records(partition) if r["endTxnMarker"]]
        assert [r["endTxnMarker"] for r in marked] == kinds
        assert {r["coordinatorEpoch"] for r in marked} == {7}
        aborted = [e for p, f in sorted(dump.files.items()) if p.parent == partition for e in f.aborted]
        assert len(aborted) == kinds.count("ABORT")
        newest = max(partition.glob("*.snapshot"))
        shown = {e["producerId"]: e for e in dump.files[newest].producers}
        assert shown.keys() == ({3, 4, 5} if partition.name == "t-0" else {3, 4})
        batches = [b for b in dump.batches(partition) if b["producerId"] == 3 and not b["isControl"]]
        assert shown[3]["lastSequence"] == batches[-1]["lastSequence"]
        assert shown[3]["lastOffset"] == batches[-1]["lastOffset"]
        assert shown[3]["currentTxnFirstOffset"] is None
        assert shown[3]["coordinatorEpoch"] == 7
    assert shown[4]["timestamp"] is not None
    five = {e["producerId"]: e for e in dump.files[max(partitions[0].glob("*.snapshot"))].producers}[5]
    assert five["currentTxnFirstOffset"] == five["lastOffset"] - 2  # type: ignore[operator]
