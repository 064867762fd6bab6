"""The last record of each key: what `__consumer_offsets`, `__transaction_state` and file trees are loaded
from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.log.append import append_batches
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.producers.aborted_transactions import outcomes
from segstore.storage.store.last_records import last_records


@pytest.fixture
def log(store_dir: Path) -> Any:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"cleanup.policy": "compact"})
        yield store.partition("t")


def put(log: segstore.PartitionLog, *pairs: tuple[bytes, bytes | None], producer_id: int = -1) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    if producer_id < 0:
        append_batches(log, Columns(values, keys, timestamp=5))
    else:
        inside = Template(TRANSACTIONAL_FLAG, producer_id, 0, 0)
        append_batches(log, Columns(values, keys, timestamp=5), (), None, inside, sequenced=False)


def test_the_last_of_each_key_counts_and_a_tombstone_is_one(log: segstore.PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    put(log, (b"b", None), (b"c", b""), (b"a", b"4"))
    assert last_records(log, 6).settled == {b"a": (b"4", 5), b"b": (None, 3), b"c": (b"", 4)}
    assert last_records(log, 5).settled == {b"a": (b"3", 2), b"b": (None, 3), b"c": (b"", 4)}
    assert last_records(log, 0).settled == {}


def test_of_the_wanted_ones_the_last_counts(log: segstore.PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b"4"))
    found = last_records(log, 4, wanted=lambda key, record: key == b"a" and record.value != b"4")
    assert found.settled == {b"a": (b"2", 1)}


def test_values_that_are_not_kept(log: segstore.PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), (b"c", None))
    found = last_records(log, 3, valued=lambda key: key == b"a")
    assert found.settled == {b"a": (b"1", 0), b"b": (b"", 1), b"c": (None, 2)}


def test_transactions_count_by_how_they_ended(log: segstore.PartitionLog) -> None:
    put(log, (b"a", b"0"), (b"b", b"0"))
    for producer_id, value in ((1, b"committed"), (2, b"aborted"), (3, b"open"), (4, b"open too")):
        put(log, (b"a", value), (b"b", value), producer_id=producer_id)
    end_transaction([log], 1, 0, 0, commit=True)
    end_transaction([log], 2, 0, 0, commit=False)
    put(log, (b"b", b"1"))
    found = last_records(log, log.end_offset, ended=outcomes(log))
    assert found.settled == {b"a": (b"committed", 2), b"b": (b"1", 12)}
    assert found.open == {
        3: {b"a": (b"open", 6), b"b": (b"open", 7)},
        4: {b"a": (b"open too", 8), b"b": (b"open too", 9)},
    }
    assert last_records(log, log.end_offset).settled[b"a"] == (b"open too", 8)
