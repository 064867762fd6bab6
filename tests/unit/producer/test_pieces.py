"""Promise: many batches of a partition, which one call of C appends in pieces, get their offsets in order,
and each record is there once, whatever ends that call.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from paused_tails import let_tails_open
from waiting import PATIENCE

import segstore
from segstore import Producer
from segstore.client.producer import delivery
from segstore.client.producer.delivery import MOST_AT_ONCE
from segstore.storage.log import append_pieces

N, BEFORE = 20_000, 3


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each call has appended. Pieces are small, so that there are many."""
    for module in (append_pieces, delivery):
        monkeypatch.setattr(module, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(delivery, "MOST_AT_ONCE", 20_000)
    counted: list[int] = []
    append = delivery.append_pieces

    def counting(*args: Any) -> Any:
        found = append(*args)
        counted.append(len(found.offsets))
        return found

    monkeypatch.setattr(delivery, "append_pieces", counting)
    return counted


def nothing() -> None:
    """Do nothing."""


def sent(store: segstore.Store, begun: Callable[[], None] = nothing, **settings: Any) -> list[Any]:
    """Send records, after some that make the log know the producer; `begun` is called in between."""
    given = [b"%06d" % i * 16 for i in range(N)]
    with Producer(store, batch_size=1000, linger_ms=5, **settings) as producer:
        for _ in range(BEFORE):
            producer.send("t", b"before").get(timeout=PATIENCE)
        begun()
        futures = [
            producer.send("t", value, headers=[("h", b"%d" % i)] if i % 50 == 0 else None)
            for i, value in enumerate(given)
        ]
        producer.flush(timeout=PATIENCE)
    records = list(store.partition("t").scan(BEFORE))
    assert [record.value for record in records] == given
    assert [record.headers for record in records[::50]] == [[("h", b"%d" % i)] for i in range(0, N, 50)]
    return futures


SETTINGS: dict[str, dict[str, Any]] = {
    "idempotent": {},
    "without an id": {"enable_idempotence": False},
    "with keys": {"key_serializer": lambda key: key},
}


@pytest.mark.parametrize("segment_bytes", [1 << 30, 200_000])
@pytest.mark.parametrize("case", SETTINGS)
def test_records_get_their_offsets_in_order(
    store_dir: Path, pieces: list[int], case: str, segment_bytes: int
) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, {"segment.bytes": segment_bytes})
        futures = sent(store, **SETTINGS[case])
        assert [future.get().offset for future in futures] == list(range(BEFORE, BEFORE + N))
    assert max(pieces) > 20


def test_records_that_nobody_waits_for(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        assert sent(store, acks=0, enable_idempotence=False)[-1].get().offset == -1


@pytest.mark.parametrize("nth", [3, 4, 9])
def test_what_the_disk_refuses_is_sent_again(store_dir: Path, pieces: list[int], nth: int) -> None:
    files = FailingFiles({"pwrite", "pwritev"}, OSError(errno.ENOSPC, "No space left on device"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        futures = sent(store, lambda: files.arm(nth, 2), retry_backoff_ms=1)
        assert files.hits == 2
        assert [future.get().offset for future in futures] == list(range(BEFORE, BEFORE + N))
    assert max(pieces) > 20


def test_what_the_disk_refuses_is_an_error_without_retries(store_dir: Path, pieces: list[int]) -> None:
    files = FailingFiles({"pwrite", "pwritev"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        with Producer(store, batch_size=1000, retries=0, enable_idempotence=False) as producer:
            producer.send("t", b"first").get(timeout=PATIENCE)
            files.arm(5)
            futures = [producer.send("t", b"%06d" % i * 16) for i in range(N)]
            producer.flush(timeout=PATIENCE)
        kept = [b"%06d" % i * 16 for i, future in enumerate(futures) if future.succeeded()]
        assert files.hits == 1
        assert 0 < len(kept) < N
        assert [record.value for record in store.partition("t").scan(1)] == kept


@pytest.mark.parametrize("short", [True, False])
def test_writes_are_bounded(store_dir: Path, monkeypatch: pytest.MonkeyPatch, short: bool) -> None:
    let_tails_open(monkeypatch, short)
    files, n = CountingFiles(), 3 * MOST_AT_ONCE // 1000
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        with Producer(store, linger_ms=60_000) as producer:
            for _ in range(n):
                producer.send("t", b"x" * 1000)
        assert store.partition("t").end_offset == n

    def size(data: Any) -> int:
        return sum(map(len, data)) if isinstance(data, list) else len(data)

    sizes = [
        size(args[1])
        for name, args in files.calls
        if name in ("pwrite", "pwritev") and str(args[0].path).endswith(".log")
    ]
    assert sum(sizes) > n * 1000
    assert max(sizes) <= MOST_AT_ONCE * 1.01


def test_what_is_left_gets_its_sequences_later(
    store_dir: Path, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches behind a roll may come to be sent in another order, or not at all."""
    left_over: list[bool] = []
    try_pieces = delivery.Delivery._try_pieces

    def looking(self: Any, batches: list[Any]) -> Any:
        left, error = try_pieces(self, batches)
        left_over.extend(batch.stamp is None for batch in left)
        return left, error

    monkeypatch.setattr(delivery.Delivery, "_try_pieces", looking)
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, {"segment.bytes": 200_000})
        sent(store)
    assert left_over
    assert all(left_over)
