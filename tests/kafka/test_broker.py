"""A real broker serves a partition that segstore wrote, and appends to it; segstore appends to one of the
broker's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from broker_clients import consume, create, produce
from kafka_broker import Broker
from kafka_tools import classpath, why_not
from producers import committed, send
from stores import values

import segstore
from segstore.storage.log.transaction_markers import end_transaction

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="Kafka's broker needs a client with every codec"
)
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.kind("Kafka's broker"),
]
N = 3000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def value(i: int) -> bytes | None:
    return None if i % 50 == 7 else b"" if i % 50 == 8 else b"value %06d " % i * 5


def key(i: int) -> bytes | None:
    return None if i % 3 == 0 else b"key-%d" % (i % 40)


def expected(i: int) -> tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    return (
        i,
        1_600_000_000_000 + i,
        key(i),
        value(i),
        [("h", b"%d" % i), ("null", None)] if i % 10 == 0 else [],
    )


def write(directory: Path) -> None:
    """A partition with every codec, several segments, headers, nulls, two leader epochs."""
    for part in range(2):
        with segstore.open(directory) as store:
            if part == 0:
                store.create_topic("ours", config={"segment.bytes": 60_000})
            log = store.partition("ours")
            for chunk in range(part * N // 2, (part + 1) * N // 2, 100):
                rows = [expected(i) for i in range(chunk, chunk + 100)]
                log.append_batch(
                    [r[3] for r in rows],
                    keys=[r[2] for r in rows],
                    timestamps=[r[1] for r in rows],
                    headers=[r[4] for r in rows],
                    compression=CODECS[chunk // 100 % len(CODECS)],
                    batch_bytes=2000,
                )
        (directory / ".kafka_cleanshutdown").unlink()


def write_transactions(directory: Path, rounds: range) -> None:
    """Two producers whose transactions overlap, commits and aborts in several segments."""
    with segstore.open(directory) as store:
        if "txns" not in store.topics():
            store.create_topic("txns", config={"segment.bytes": 2000})
        log = store.partition("txns")
        for i in rounds:
            for pid in (1, 2):
                send(log, pid, i * 5, 5, txn=True, cuts=(2,))
            log.append(b"plain")
            end_transaction([log], 1, 0, 0, i % 3 == 0)
            send(log, 3, i * 2, 2)
            end_transaction([log], 2, 0, 0, i % 4 != 1)


def test_a_broker_serves_our_partition_and_we_go_on_in_its(tmp_path: Path) -> None:
    broker = Broker(classpath(), tmp_path / "broker")
    with broker.running() as address:
        create(address, "ours")
        produce(address, "ours", [b"to be replaced"])
        create(address, "txns")
    write(tmp_path / "store")
    write_transactions(tmp_path / "store", range(40))
    for name in ("ours-0", "txns-0"):
        put_in_place(tmp_path / "store" / name, broker.logs / name)
    with broker.running() as address:
        assert_committed(address, tmp_path / "store")
        assert consume(address, "ours", N) == [expected(i) for i in range(N)]
        produce(address, "ours", [b"from the broker %d" % i for i in range(10)])
        with segstore.open(broker.logs, mode="r") as live:
            assert live.partition("ours").end_offset == N + 10
        with pytest.raises(segstore.StoreLockedError):
            segstore.open(broker.logs)
    with segstore.open(broker.logs) as store:
        log = store.partition("ours")
        assert [r.value for r in log.read(N)] == [b"from the broker %d" % i for i in range(10)]
        assert log.append(b"from us") == N + 10
    write_transactions(broker.logs, range(40, 60))
    assert segstore.check(broker.logs) == []
    # The root is ours while we have it: a broker takes no directory in it that is no partition's.
    shutil.rmtree(broker.logs / ".segstore")
    with broker.running() as address:
        found = consume(address, "ours", N + 11)
        assert_committed(address, broker.logs)
    assert [r[0] for r in found] == list(range(N + 11))
    assert found[-1][3] == b"from us"


def assert_committed(address: str, root: Path) -> None:
    """A broker's read_committed, which goes by `.txnindex` and snapshots, gives what ours does."""
    with segstore.open(root, mode="r") as store:
        log = store.partition("txns")
        ours = committed(log)
        assert len(ours) < len(values(log)) < log.end_offset
    produce(address, "txns", [b"behind the last marker"])
    theirs = consume(address, "txns", len(ours) + 1, "read_committed")
    assert [r[0] for r in theirs[:-1]] == ours
    assert theirs[-1][3] == b"behind the last marker"


def put_in_place(ours: Path, theirs: Path) -> None:
    """What docs promise: the directory, except for partition.metadata, which stays the broker's."""
    metadata = (theirs / "partition.metadata").read_bytes()
    shutil.rmtree(theirs)
    shutil.copytree(ours, theirs)
    (theirs / "partition.metadata").write_bytes(metadata)
