"""`TopicScan`: its records one by one."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

import segstore
from segstore.storage.scans import piece_reader
from segstore.storage.scans.topic_scan import COLUMNS


@pytest.fixture
def filled(store: segstore.Store) -> segstore.Store:
    store.create_topic("t", partitions=2)
    for number in range(2):
        log = store.partition("t", number)
        log.append_batch([b"a", b"b"], keys=[b"k", None], timestamps=[5, 6], headers=[[("h", b"1")], []])
    return store


def test_records_have_all_columns(filled: segstore.Store) -> None:
    found = list(filled.scan("t"))
    assert [each[:5] for each in found] == [("t", n, at, 5 + at, 0) for n in range(2) for at in range(2)]
    assert found[0]._fields == COLUMNS
    assert (found[0].key, found[0].value, found[0].headers) == (b"k", b"a", [("h", b"1")])
    assert (found[1].key, found[1].value, found[1].headers) == (None, b"b", [])


SOME = [["offset"], ["value", "partition"], ["headers", "key", "timestamp"], list(COLUMNS), []]


@pytest.mark.parametrize("columns", SOME, ids=",".join)
def test_records_of_some_columns_have_these_in_order(filled: segstore.Store, columns: list[str]) -> None:
    whole = list(filled.scan("t"))
    found = list(filled.scan("t", columns=columns))
    assert [each._fields for each in found] == [tuple(columns)] * 4
    assert found == [tuple(getattr(each, name) for name in columns) for each in whole]


def test_records_of_some_columns_are_pickled(filled: segstore.Store) -> None:
    (found, *_) = filled.scan("t", columns=["offset", "value"])
    again = pickle.loads(pickle.dumps(found))
    assert (again, again._fields, type(again)) == (found, found._fields, type(found))


def test_columns_may_come_once(filled: segstore.Store) -> None:
    assert [*filled.scan("t", [0], columns=iter(["value"]))] == [(b"a",), (b"b",)]
    with pytest.raises(segstore.errors.InvalidTypeError, match="columns=5"):
        filled.scan("t", columns=5)  # type: ignore[arg-type]


def test_a_column_that_is_named_twice(filled: segstore.Store) -> None:
    assert [*filled.scan("t", [1], columns=["offset", "offset"])] == [(0, 0), (1, 1)]


def test_pandas_takes_the_columns(filled: segstore.Store) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(filled.scan("t", columns=["partition", "value"]))
    assert frame.to_dict("list") == {"partition": [0, 0, 1, 1], "value": [b"a", b"b"] * 2}


@pytest.mark.parametrize("small", [False, True])
def test_batches_are_finished_by_the_thread_that_reads(
    filled: segstore.Store, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    threads: set[int] = set()

    def finish(batch: Any) -> Any:
        threads.add(threading.get_ident())
        return pa.record_batch([batch.column(0)], ["finished"])

    if small:
        monkeypatch.setattr(piece_reader, "AT_A_TIME", 10)
    found = list(filled.scan("t").batches(["value"], finish=finish))
    assert [value for batch in found for value in batch["finished"].to_pylist()] == [b"a", b"b"] * 2
    assert (threading.get_ident() in threads) is not small
