"""Which records a close counts as not written, by their state at that moment (docs/clients.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import values

import segstore
from segstore import errors
from segstore.client.producer import Producer

pytestmark = pytest.mark.kind("interrupts")

N = 10
SMALL = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
FULL = OSError(28, "No space left on device")
LINGERS = {"linger_ms": 60_000}
TRANSACTION = {"transactional_id": "x", **LINGERS}


def send(producer: Producer) -> list[Any]:
    return [producer.send("t", b"%d" % i) for i in range(N)]


def waiting(producer: Producer, files: FailingFiles) -> list[Any]:
    return send(producer)


def written(producer: Producer, files: FailingFiles) -> list[Any]:
    sent = send(producer)
    producer.flush()
    return sent


def tried(producer: Producer, files: FailingFiles) -> list[Any]:
    """The topic's file takes nothing; then there is room again."""
    files.arm(1, 1 << 30)
    sent = send(producer)
    producer.flush()
    files.arm(0)
    return sent


def aborted(producer: Producer, files: FailingFiles) -> list[Any]:
    sent = send(producer)
    producer.abort_transaction()
    return sent


# Settings, what became of the records, the close's timeout, how many are counted, how many are in the log.
ROWS: dict[str, tuple[dict[str, Any], Callable[..., list[Any]], float, int, int]] = {
    "waiting": (LINGERS, waiting, 0, N, 0),
    "waiting, acks=0": ({"acks": 0, **LINGERS}, waiting, 0, N, 0),
    "waiting, acks=0, with time": ({"acks": 0, **LINGERS}, waiting, 30, 0, N),
    "tried in vain, acks=0": ({"acks": 0, **LINGERS}, tried, 0, 0, 0),
    "written, acks=0": ({"acks": 0, **LINGERS}, written, 0, 0, N),
    "waiting, in an open transaction": (TRANSACTION, waiting, 0, N, 0),
    "waiting, in an open transaction, with time": (TRANSACTION, waiting, 30, 0, N),
    "written, in an open transaction": (TRANSACTION, written, 0, 0, N),
    "aborted by the application": (TRANSACTION, aborted, 0, 0, 0),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("who", ["store", "producer"])
def test_what_a_close_counts(store_dir: Path, who: str, row: str, caplog: pytest.LogCaptureFixture) -> None:
    settings, become, timeout, counted, in_log = ROWS[row]
    files = FailingFiles({"pwrite"}, FULL, 0, 1 << 30)
    store = segstore.open(store_dir, config=SMALL, files=files)
    store.create_topic("t")
    producer = Producer(store, **settings)
    if "transactional_id" in settings:
        producer.init_transactions()
        producer.begin_transaction()
    sent = become(producer, files)
    if who == "producer":
        producer.close(timeout)
    elif counted:
        with pytest.raises(errors.UnwrittenRecordsError) as caught:
            store.close(timeout)
        assert caught.value.partitions == {("t", 0): counted}
    if who == "producer" or not counted:
        store.close(timeout)  # of a producer that is closed nothing is counted twice
    assert (f"before {counted} records were written" in caplog.text) == (counted > 0)
    closed = errors.ClientClosedError | errors.StoreClosedError
    assert [isinstance(future.exception, closed) for future in sent] == [counted > 0] * N
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        assert len(values(log)) == in_log
        seen = 0 if "transactional_id" in settings else in_log
        assert len(values(log, isolation_level="read_committed")) == seen
