"""Gaps, records that can't be deserialized and damaged batches, as a share consumer meets them (rules Q5 and
Q6 of docs/queues.md).
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from consumers import tp
from share_consumers import REJECT, Refusing, counts, offsets, opened, set_group, state, worker
from share_consumers import store as store
from waiting import until

import segstore
from segstore import ConsumerRecord
from segstore.errors import CorruptRecordError, RecordDeserializationError


def test_q5_offsets_without_records_are_acknowledged_by_the_client(store_dir: Path) -> None:
    with opened(store_dir) as store:
        with segstore.Producer(store, transactional_id="x") as producer:
            producer.init_transactions()
            for _ in range(3):
                producer.begin_transaction()
                producer.send("t", b"in a transaction")
                producer.commit_transaction()
        with worker(store) as queue:
            records = queue.poll_flat()
            assert offsets(records) == [*range(10), 10, 12, 14]
            assert state(store)[1] == 16 - 3
            for record in records:
                queue.acknowledge(record)
            assert queue.commit_sync() == {tp(): None}
        assert state(store)[1] == 0


def test_q5_a_poll_goes_on_after_gaps_alone(store: segstore.Store) -> None:
    """One offset a fetch: those of markers have nothing for the application."""
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"in a transaction")
        producer.commit_transaction()
    store.partition("t").append(b"last")
    found: list[int] = []
    with worker(store, max_poll_records=1, share_acquire_mode="record_limit") as queue:
        while records := queue.poll_flat():
            found += offsets(records)
            queue.acknowledge(records[0])
    assert found == [*range(11), 12]


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
@pytest.mark.parametrize("rejects", [True, False])
def test_q6_a_record_that_cannot_be_deserialized(store: segstore.Store, mode: Any, rejects: bool) -> None:
    settings: Any = {"share_acknowledgement_mode": mode}
    with worker(store, value_deserializer=Refusing(b"0-3"), **settings) as queue:

        def answer(records: list[ConsumerRecord]) -> None:
            if mode == "explicit":
                for record in records:
                    queue.acknowledge(record)

        records = queue.poll_flat()
        assert offsets(records) == [0, 1, 2]
        answer(records)
        with pytest.raises(RecordDeserializationError) as failed:
            queue.poll()
        assert (failed.value.topic, failed.value.partition, failed.value.offset) == ("t", 0, 3)
        if rejects:
            queue.acknowledge_offset("t", 0, 3, REJECT)
        records = queue.poll_flat()
        assert offsets(records) == [4, 5, 6, 7, 8, 9]
        answer(records)
        if rejects:
            assert queue.poll() == {}
        else:
            with pytest.raises(RecordDeserializationError):
                queue.poll()
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == ({} if rejects else {3: 3})


def test_an_error_of_a_deserializer_keeps_nothing(store: segstore.Store) -> None:
    """Its frames and their records end with it, without the garbage collector."""

    def caught() -> tuple[Any, Any]:
        queue = worker(store, value_deserializer=Refusing(b"0-0"))
        try:
            queue.poll()
        except RecordDeserializationError as error:
            return weakref.ref(error), weakref.ref(queue)
        return None, None

    gc.disable()
    try:
        error, queue = caught()
        assert (error(), queue()) == (None, None)
    finally:
        gc.enable()


def flip(store: segstore.Store, batch: int) -> None:
    """Change a byte in a batch of four records: the last of its value."""
    path = Path(store.path) / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    at = 0
    for _ in range(batch + 1):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    data[at - 2] ^= 0x55
    path.write_bytes(data)


DAMAGED: dict[str, tuple[list[int], list[list[int] | str]]] = {
    "the first": ([0], ["0", [4, 5, 6, 7, 8, 9]]),
    "the second": ([1], [[0, 1, 2, 3], "4", [8, 9]]),
    "two in a row": ([0, 1], ["0", [8, 9]]),
    "two apart": ([0, 2], ["0", [4, 5, 6, 7], "8"]),
    "all": ([0, 1, 2], ["0"]),
}


@pytest.mark.parametrize(("batches", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_q6_damaged_batches_are_rejected(tmp_path: Path, batches: list[int], expected: list[Any]) -> None:
    found: list[Any] = []
    with opened(tmp_path / "store") as store:
        for each in batches:
            flip(store, each)
        with worker(store, share_acknowledgement_mode="implicit") as queue:
            while not found or found[-1] != []:
                try:
                    found.append(offsets(queue.poll_flat()))
                except CorruptRecordError as error:
                    found.append(str(error.offset))
        assert found == [*expected, []]
        assert state(store)[1] == 0


def test_q6_records_of_a_damaged_batch_become_dead_letters(tmp_path: Path) -> None:
    """They are rejected, and no gaps; what can't be copied is named."""
    with opened(tmp_path / "store") as store:
        store.create_topic("dlq.t", config={"errors.deadletterqueue.group.enable": True})
        set_group(store, **{"errors.deadletterqueue.topic.name": "dlq.t"})
        flip(store, 1)
        with worker(store, share_acknowledgement_mode="implicit") as queue:
            assert offsets(queue.poll_flat()) == [0, 1, 2, 3]
            with pytest.raises(CorruptRecordError):
                queue.poll()
        until(lambda: store.partition("dlq.t").end_offset == 4)
        letters = [dict(record.headers)["__dlq.errors.offset"] for record in store.partition("dlq.t")]
        assert letters == [b"4", b"5", b"6", b"7"]


def test_without_crcs_a_damaged_batch_is_read(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        flip(store, 1)
        with worker(store, check_crcs=False) as queue:
            assert offsets(queue.poll_flat()) == [*range(10)]
