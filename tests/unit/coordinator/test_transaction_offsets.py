"""Offsets of groups that are committed with a transaction, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore import OffsetAndMetadata, Producer, TopicPartition, errors
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata

CONFIG = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG) as store:
        store.create_topic("a", partitions=2)
        store.create_topic("b")
        yield store


@pytest.fixture
def producer(store: segstore.Store) -> Iterator[Producer]:
    with Producer(store, transactional_id="x", retry_backoff_ms=1) as producer:
        producer.init_transactions()
        yield producer


def test_offsets_count_with_the_commit(store: segstore.Store, producer: Producer) -> None:
    kept = shared(store, GroupOffsets)
    producer.begin_transaction()
    producer.send_offsets_to_transaction({A0: OffsetAndMetadata(3, "note"), A1: OffsetAndMetadata(0)}, "g")
    producer.send_offsets_to_transaction({A0: OffsetAndMetadata(5, "note")}, ConsumerGroupMetadata("g"))
    assert (kept.fetch("g"), kept.pending("g")) == ({}, {A0, A1})
    producer.commit_transaction()
    assert kept.fetch("g") == {A0: OffsetAndMetadata(5, "note"), A1: OffsetAndMetadata(0)}
    assert kept.pending("g") == set()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({A0: OffsetAndMetadata(9)}, "g")
    producer.send_offsets_to_transaction({}, "g")
    producer.abort_transaction()
    assert kept.fetch("g", [A0]) == {A0: OffsetAndMetadata(5, "note")}
    assert kept.pending("g") == set()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_next_owner_of_a_partition_waits_for_the_transaction_of_the_one_before(
    store: segstore.Store, producer: Producer, isolation: str
) -> None:
    """Before: with read_uncommitted it began at the older offset, and what the transaction had done was done
    twice.
    """
    store.partition("a", 0).append_batch([b"first", b"second"])
    producer.begin_transaction()
    producer.send("b", b"first, done")
    producer.send_offsets_to_transaction({A0: OffsetAndMetadata(1)}, "g")
    with segstore.Consumer(
        store, group_id="g", auto_offset_reset="earliest", isolation_level=isolation
    ) as consumer:
        consumer.assign([A0])
        assert consumer.poll(0) == {}
        producer.commit_transaction()
        assert [r.value for r in consumer.poll(60_000)[A0]] == [b"second"]


WRONG_OFFSETS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no mapping": ([A0], "g", errors.InvalidTypeError, "offsets is list"),
    "no partition": ({"a": OffsetAndMetadata(1)}, "g", errors.InvalidTypeError, "'a' for a key"),
    "no offset": ({A0: "1"}, "g", errors.InvalidTypeError, "allowed is an OffsetAndMetadata"),
    "a number": ({A0: 1}, "g", errors.InvalidTypeError, "allowed is an OffsetAndMetadata"),
    "below 0": ({A0: OffsetAndMetadata(-1)}, "g", errors.InvalidArgumentError, "must be at least 0"),
    "group of bytes": ({A0: OffsetAndMetadata(1)}, b"g", errors.InvalidTypeError, "group_metadata is bytes"),
    "no group": ({A0: OffsetAndMetadata(1)}, "", errors.InvalidGroupIdError, "group_id=''"),
    "a consumer without": (
        {A0: OffsetAndMetadata(1)}, ConsumerGroupMetadata(), errors.InvalidGroupIdError, "group_id=None"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("offsets", "group", "error", "match"), WRONG_OFFSETS.values(), ids=WRONG_OFFSETS)
def test_wrong_offsets_change_nothing(
    producer: Producer, offsets: Any, group: Any, error: type[Exception], match: str
) -> None:
    producer.begin_transaction()
    with pytest.raises(error, match=match):
        producer.send_offsets_to_transaction(offsets, group)
    producer.commit_transaction()


def test_a_member_that_is_no_more_can_only_abort(store: segstore.Store, producer: Producer) -> None:
    producer.begin_transaction()
    stale = ConsumerGroupMetadata("g", 7, "gone")
    with pytest.raises(errors.SegstoreError):
        producer.send_offsets_to_transaction({A0: OffsetAndMetadata(1)}, stale)
    with pytest.raises(errors.TransactionAbortedError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert shared(store, GroupOffsets).fetch("g") == {}
