"""What a poll of a share consumer gives its application, by the rules of docs/queues.md."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, tp
from share_consumers import counts, offsets, opened, set_group, state, worker
from share_consumers import store as store

import segstore
from segstore import ConsumerRecord

# --- what a poll gives ----------------------------------------------------------------------------


def test_a_poll_gives_records_by_partition(store_dir: Path) -> None:
    with opened(store_dir, partitions=2) as store, worker(store) as queue:
        polled = queue.poll()
        assert {at: offsets(records) for at, records in polled.items()} == {
            tp(0): [*range(10)],
            tp(1): [*range(10)],
        }
        for records in polled.values():
            assert all(isinstance(record, ConsumerRecord) for record in records)
            assert {record.delivery_count for record in records} == {1}
        assert polled[tp(1)][3].value == b"1-3"


def test_records_of_other_consumers_have_no_delivery_count(store: segstore.Store) -> None:
    with segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer:
        (records,) = consumer.poll().values()
    assert {record.delivery_count for record in records} == {None}


def test_a_flat_poll_gives_the_same_in_a_list(store_dir: Path) -> None:
    with opened(store_dir, partitions=2) as store:
        with worker(store) as queue:
            polled = queue.poll()
        with worker(store, group="h") as queue:
            flat = queue.poll_flat()
        assert sorted(flat) == sorted(record for records in polled.values() for record in records)
        with worker(store, group="h") as queue:
            assert counts(queue.poll_flat()) == dict.fromkeys(range(10), 2)


def test_the_first_poll_of_a_group_has_records_at_once(store: segstore.Store) -> None:
    """D1: without another heartbeat, and without a wait."""
    with worker(store) as queue:
        assert len(queue.poll_flat(timeout_ms=0)) == 10


def test_two_consumers_have_no_record_in_common(store: segstore.Store) -> None:
    with worker(store, share_acquire_mode="record_limit", max_poll_records=4) as one, worker(store) as other:
        assert offsets(one.poll_flat()) == [0, 1, 2, 3]
        assert offsets(other.poll_flat(timeout_ms=LONG_MS)) == [*range(4, 10)]


MODES: dict[str, tuple[dict[str, Any], int | None, list[int]]] = {
    "whole batches": ({"max_poll_records": 6}, None, [8, 2]),
    "at most so many": ({"max_poll_records": 6, "share_acquire_mode": "record_limit"}, None, [6, 4]),
    "one by one": ({"max_poll_records": 1, "share_acquire_mode": "record_limit"}, None, [1] * 10),
    "a limit of the poll": ({}, 3, [3, 1, 3, 1, 2]),
    "a limit of the poll, by the record": ({"share_acquire_mode": "record_limit"}, 3, [3, 3, 3, 1]),
    "a limit above": ({"max_poll_records": 4}, 100, [4, 4, 2]),
}


@pytest.mark.parametrize(("settings", "most", "sizes"), MODES.values(), ids=MODES)
def test_q19_how_many_records_a_poll_gives(
    store: segstore.Store, settings: dict[str, Any], most: int | None, sizes: list[int]
) -> None:
    found: list[list[int]] = []
    with worker(store, **settings) as queue:
        while records := queue.poll_flat(max_records=most):
            found.append(offsets(records))
            for record in records:
                queue.acknowledge(record)
    assert [*map(len, found)] == sizes
    assert [offset for each in found for offset in each] == [*range(10)]


def test_partitions_take_turns(store_dir: Path) -> None:
    with opened(store_dir, partitions=3) as store, worker(store, max_poll_records=1) as queue:
        first = []
        for _ in range(3):
            (polled,) = queue.poll().items()
            first.append(polled[0].partition)
            for record in polled[1]:
                queue.acknowledge(record)
    assert sorted(first) == [0, 1, 2]


# --- the rest -------------------------------------------------------------------------------------


def test_the_lock_s_time_is_known_after_the_first_fetch(store: segstore.Store) -> None:
    set_group(store, **{"share.record.lock.duration.ms": 20_000})
    with worker(store) as queue:
        assert queue.acquisition_lock_timeout_ms is None
        queue.poll()
        assert queue.acquisition_lock_timeout_ms == 20_000


def test_metrics_have_kafka_s_names(store: segstore.Store) -> None:
    with worker(store) as queue:
        for record in queue.poll_flat():
            queue.acknowledge(record)
        queue.commit_sync()
        queue.poll()
        found = queue.metrics()
    assert found.keys() == {
        "consumer-share-metrics",
        "consumer-share-coordinator-metrics",
        "consumer-share-fetch-manager-metrics",
    }
    fetching = found["consumer-share-fetch-manager-metrics"]
    assert fetching["records-consumed-total"] == fetching["acknowledgements-send-total"] == 10
    assert (fetching["records-per-request-max"], fetching["acknowledgements-error-total"]) == (10, 0)
    assert found["consumer-share-coordinator-metrics"]["rebalance-total"] == 1
    assert found["consumer-share-metrics"]["last-poll-seconds-ago"] == 0


def test_nothing_is_measured_if_nobody_wants_it(store: segstore.Store) -> None:
    with worker(store, metrics_enabled=False) as queue:
        queue.poll()
        assert queue.metrics() == {}


def test_names(store: segstore.Store) -> None:
    with worker(store, client_id="me") as queue:
        assert repr(queue).startswith("<ShareConsumer me of group 'g' of <Store")
        assert queue.config.client_id == "me"


def test_fifty_consumers_of_one_partition_have_each_record_once(store_dir: Path) -> None:
    with opened(store_dir, records=400) as store, ThreadPoolExecutor(10) as threads:

        def work(_: int) -> list[int]:
            found = []
            with worker(store, max_poll_records=4) as queue:
                while records := queue.poll_flat(timeout_ms=100):
                    for record in records:
                        found.append(record.offset)
                        queue.acknowledge(record)
                    assert set(queue.commit_sync().values()) == {None}
            return found

        done = [offset for each in threads.map(work, range(50)) for offset in each]
        assert sorted(done) == [*range(400)]
        assert state(store) == (400, 0) or state(store)[1] == 0
