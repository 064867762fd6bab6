"""Compare and append: a record gets the offset that is expected; or nothing is written, and the end told."""

from __future__ import annotations

import errno
import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FailingFiles

import segstore
from segstore import errors

LONG = [b"x" * 1000] * 6000  # more than is encoded ahead

WAYS: Mapping[str, Callable[[segstore.PartitionLog, int], int]] = {
    "one record": lambda log, end: log.append(b"v", expected_offset=end),
    "with a key and headers": lambda log, end: log.append(b"v", b"k", [("h", b"1")], expected_offset=end),
    "a tombstone": lambda log, end: log.append(None, b"k", expected_offset=end),
    "a batch": lambda log, end: log.append_batch([b"v"] * 3, expected_offset=end)[0],
    "a column": lambda log, end: log.append_batch(np.array([b"a", b"b"]), expected_offset=end)[0],
    "many batches": lambda log, end: log.append_batch(
        [b"v" * 100] * 50, batch_bytes=500, expected_offset=end
    )[0],
    "more than is encoded ahead": lambda log, end: log.append_batch(LONG, expected_offset=end)[0],
    "a numpy integer": lambda log, end: log.append(b"v", expected_offset=np.int64(end)),  # type: ignore[arg-type]
}
WRONG: Mapping[str, tuple[Any, type[Exception]]] = {
    "below zero": (-1, errors.InvalidArgumentError),
    "above int64": (1 << 63, errors.InvalidArgumentError),
    "a text": ("3", errors.InvalidTypeError),
    "a bool": (True, errors.InvalidTypeError),
    "a float": (3.0, errors.InvalidTypeError),
}


@pytest.fixture
def log(store: segstore.Store) -> segstore.PartitionLog:
    store.create_topic("t")
    log = store.partition("t")
    log.append_batch([b"before"] * 3)
    return log


def state(log: segstore.PartitionLog) -> tuple[int, list[bytes | None]]:
    return log.end_offset, [record.value for record in log]


@pytest.mark.parametrize("append", WAYS.values(), ids=WAYS)
def test_records_get_the_offset_that_is_expected(
    log: segstore.PartitionLog, append: Callable[[segstore.PartitionLog, int], int]
) -> None:
    assert append(log, 3) == 3
    end = log.end_offset
    assert append(log, end) == end
    assert log.append(b"plain") == log.end_offset - 1  # the short way goes on


@pytest.mark.parametrize("wrong", [0, 2, 4, 1 << 40], ids=str)
@pytest.mark.parametrize("append", WAYS.values(), ids=WAYS)
def test_nothing_is_written_elsewhere_and_the_end_is_told(
    log: segstore.PartitionLog, append: Callable[[segstore.PartitionLog, int], int], wrong: int
) -> None:
    before = state(log)
    with pytest.raises(errors.OffsetMismatchError) as caught:
        append(log, wrong)
    assert (caught.value.expected, caught.value.end_offset) == (wrong, 3)
    assert str(caught.value) == f"expected_offset={wrong}: t-0 ends at 3, nothing was appended"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.expected, again.end_offset, str(again)) == (wrong, 3, str(caught.value))
    assert state(log) == before
    assert append(log, caught.value.end_offset) == 3


@pytest.mark.parametrize(("value", "error"), WRONG.values(), ids=WRONG)
def test_bad_input(log: segstore.PartitionLog, value: Any, error: type[Exception]) -> None:
    before = state(log)
    with pytest.raises(error, match="expected_offset"):
        log.append(b"v", expected_offset=value)
    with pytest.raises(error, match="expected_offset"):
        log.append_batch([b"v"], expected_offset=value)
    assert state(log) == before


def test_an_empty_batch_compares_all_the_same(log: segstore.PartitionLog) -> None:
    assert log.append_batch([], expected_offset=3) == range(3, 3)
    with pytest.raises(errors.OffsetMismatchError):
        log.append_batch([], expected_offset=2)


def test_markers_take_offsets_too(log: segstore.PartitionLog) -> None:
    producer = segstore.Producer(log.store, transactional_id="p")  # type: ignore[arg-type]
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"in a transaction")
    producer.commit_transaction()
    with pytest.raises(errors.OffsetMismatchError) as caught:
        log.append(b"v", expected_offset=4)
    assert caught.value.end_offset == 5
    assert log.append(b"v", expected_offset=5) == 5
    producer.close()


def test_what_the_disk_refused_has_moved_no_end(store_dir: Path) -> None:
    files = FailingFiles({"pwrite", "pwritev"}, OSError(errno.ENOSPC, "full"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"before", expected_offset=0)
        files.arm()
        with pytest.raises(errors.StorageError):
            log.append(b"refused", expected_offset=1)
        assert files.hits == 1
        assert log.append(b"after", expected_offset=1) == 1
    assert files.hits == 1


def test_of_threads_that_expect_one_offset_one_gets_it(log: segstore.PartitionLog) -> None:
    threads, each = 6, 25
    got: list[int] = []
    moved: list[bool] = []

    def run(number: int) -> None:
        for turn in range(each):
            while True:
                end = log.end_offset
                try:
                    offset = log.append(b"%d" % (number * each + turn), expected_offset=end)
                except errors.OffsetMismatchError as error:
                    moved.append(error.end_offset > end)
                else:
                    assert offset == end
                    got.append(offset)
                    break

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert all(moved)
    assert sorted(got) == list(range(3, 3 + threads * each))
    values = [int(record.value or b"") for record in log.scan(3)]
    assert sorted(values) == list(range(threads * each))
