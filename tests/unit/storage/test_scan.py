"""Scans: which records they give, where they end, and what they refuse."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import numpy as np
import pytest

import segstore
from segstore.errors import InvalidArgumentError, InvalidTypeError, OffsetOutOfRangeError, StoreClosedError

N = 200
STAMP = 1_700_000_000_000
ELSEWHERE = timezone(timedelta(hours=-8))


class NoZone(tzinfo):
    """Of a datetime that is naive all the same, by Python's own definition."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None


class NotATime(datetime):
    """As pandas.NaT: a datetime that equals nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def utc(ms: float) -> datetime:
    """The time of the record at offset `ms`."""
    return datetime.fromtimestamp(STAMP // 1000, timezone.utc) + timedelta(milliseconds=ms)


@pytest.fixture
def log(store: segstore.Store) -> segstore.PartitionLog:
    """A log of 200 records in batches of 10, with a timestamp more each."""
    store.create_topic("t")
    made = store.partition("t", 0)
    for first in range(0, N, 10):
        offsets = range(first, first + 10)
        made.append_batch([b"%d" % at for at in offsets], timestamps=[STAMP + at for at in offsets])
    return made


def test_a_log_is_iterated_from_its_start_to_its_end(log: segstore.PartitionLog) -> None:
    assert [(record.offset, record.value) for record in log] == [(at, b"%d" % at) for at in range(N)]


RANGES: dict[str, tuple[dict[str, Any], int, int]] = {
    "all": ({}, 0, N),
    "from an offset within a batch": ({"start": 7}, 7, N),
    "up to an offset within a batch": ({"end": 193}, 0, 193),
    "within one batch": ({"start": 52, "end": 55}, 52, 55),
    "one record": ({"start": 0, "end": 1}, 0, 1),
    "nothing": ({"start": 60, "end": 60}, 60, 60),
    "nothing, at the end": ({"start": N}, N, N),
    "an end behind the log's": ({"start": 190, "end": 10_000}, 190, N),
    "from a time": ({"from_time": STAMP + 70}, 70, N),
    "from a time between two records'": ({"from_time": STAMP - 5}, 0, N),
    "from a time after the last record's": ({"from_time": STAMP + 1000}, N, N),
    "up to a time": ({"to_time": STAMP + 70}, 0, 70),
    "up to a time after the last record's": ({"to_time": STAMP + 1000}, 0, N),
    "up to a time before the first record's": ({"to_time": STAMP - 5}, 0, 0),
    "between times": ({"from_time": np.int64(STAMP + 33), "to_time": STAMP + 55}, 33, 55),
    "between equal times": ({"from_time": STAMP + 33, "to_time": STAMP + 33}, 33, 33),
    "between datetimes": ({"from_time": utc(33), "to_time": utc(55)}, 33, 55),
    "from a datetime without a zone": ({"from_time": utc(33).replace(tzinfo=None)}, 33, N),
    "from a datetime whose zone knows no offset": ({"from_time": utc(33).replace(tzinfo=NoZone())}, 33, N),
    "from a datetime of another zone": ({"from_time": utc(33).astimezone(ELSEWHERE)}, 33, N),
    "from a datetime after a record's ms": ({"from_time": utc(33.4)}, 34, N),
    "from an offset up to a time": ({"start": 20, "to_time": STAMP + 70}, 20, 70),
    "from an offset up to an earlier time": ({"start": 80, "to_time": STAMP + 70}, 80, 80),
    "from a time up to an offset": ({"from_time": STAMP + 70, "end": 90}, 70, 90),
    "from a time up to an earlier offset": ({"from_time": STAMP + 70, "end": 20}, 70, 70),
    "from a time after the last record's up to an offset": ({"from_time": STAMP + 1000, "end": 20}, N, N),
    "integers of NumPy": ({"start": np.int64(3), "end": np.int32(5)}, 3, 5),
}


@pytest.mark.parametrize("at_a_time", [1, 200, 1 << 20])
@pytest.mark.parametrize("name", RANGES)
def test_a_range_is_given_in_every_form(log: segstore.PartitionLog, name: str, at_a_time: int) -> None:
    bounds, first, last = RANGES[name]
    scan = log.scan(**bounds)
    assert (scan.start, scan.end) == (first, last)
    wanted = list(range(first, last))
    assert [record.offset for record in scan] == wanted
    parts = [records.offsets.tolist() for records in scan.reads(at_a_time)]
    assert [offset for part in parts for offset in part] == wanted
    if at_a_time == 1:
        assert all(len(part) <= 10 for part in parts)


def test_a_range_is_one_table_of_arrow(log: segstore.PartitionLog) -> None:
    pa = pytest.importorskip("pyarrow")
    scan = log.scan(15, 185)
    table = scan.to_arrow()
    assert table["offset"].to_pylist() == list(range(15, 185))
    assert pa.table(scan) == table
    assert scan.to_arrow(["value"])["value"].to_pylist() == [b"%d" % at for at in range(15, 185)]
    assert log.scan(5, 5).to_arrow().schema == table.schema
    with pytest.raises(InvalidArgumentError, match="'nope'"):
        scan.to_arrow(["nope"])


def test_what_is_appended_later_is_not_part_of_a_scan(log: segstore.PartitionLog) -> None:
    scan, seen = log.scan(195), []
    for record in scan:
        seen.append(record.offset)
        log.append(b"later")
    assert seen == [195, 196, 197, 198, 199]


def test_a_committed_scan_ends_at_the_last_stable_offset(store: segstore.Store) -> None:
    store.create_topic("t")
    log, producer = store.partition("t", 0), segstore.Producer(store, transactional_id="x")
    producer.init_transactions()
    for commits in (True, False, True):
        producer.begin_transaction()
        producer.send("t", b"kept" if commits else b"aborted", partition=0)
        producer.flush()
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.begin_transaction()
    producer.send("t", b"open", partition=0)
    producer.flush()
    log.append(b"behind")
    assert [r.value for r in log] == [b"kept", b"aborted", b"kept", b"open", b"behind"]
    assert [r.value for r in log.scan(isolation_level="read_committed")] == [b"kept", b"kept"]
    producer.abort_transaction()
    producer.close()


def test_retention_does_not_hide_records_from_a_scan_under_way(log: segstore.PartitionLog) -> None:
    """A scan of the whole log begins where the log does by then; another one says that it was passed."""
    whole, ranged = log.scan(), log.scan(50)
    under_way = log.scan(50).reads(1)
    next(under_way)
    log.delete_records(120)
    assert next(iter(whole)).offset == 120
    for passed in (iter(ranged), under_way):
        with pytest.raises(OffsetOutOfRangeError):
            next(passed)


def test_a_log_that_was_cut_meanwhile_ends_the_scan(log: segstore.PartitionLog) -> None:
    """A writer that recovers in another process may cut the log below the end that was seen."""
    scan = log.scan()
    scan.end = 1000
    assert sum(map(len, scan.reads())) == N


NOTHING = r"start=None: must be an int, EARLIEST or LATEST; .* returned None.* nothing to read.*from_time="
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a start below the log's": ({"start": 3}, OffsetOutOfRangeError, "offset 3"),
    "a start above the log's end": ({"start": N + 1}, OffsetOutOfRangeError, f"offset {N + 1}"),
    "an end below the start": ({"start": 50, "end": 40}, InvalidArgumentError, "end=40"),
    "an end below the log's start": ({"end": 5}, InvalidArgumentError, "end=5"),
    "an index below the log's start": ({"end": np.int8(5)}, InvalidArgumentError, "end=5"),
    "a start that was looked up, and is not there": ({"start": None}, InvalidTypeError, NOTHING),
    "an end that was looked up, and is not there": (
        {"end": None},
        InvalidTypeError,
        "all records are earlier.*to_time=",
    ),
    "a time and an offset to begin at": (
        {"start": 50, "from_time": STAMP},
        InvalidArgumentError,
        f"from_time={STAMP}: start is given too",
    ),
    "a time and an offset to end at": (
        {"end": 50, "to_time": STAMP},
        InvalidArgumentError,
        f"to_time={STAMP}: end is given too",
    ),
    "an end before the beginning": (
        {"from_time": STAMP, "to_time": STAMP - 1},
        InvalidArgumentError,
        f"to_time={STAMP - 1}: must not be before from_time={STAMP}",
    ),
    "a time that is text": ({"from_time": "2024-01-01"}, InvalidTypeError, "an int, or a datetime, not str"),
    "a time that is a date": ({"to_time": utc(0).date()}, InvalidTypeError, "not date"),
    "a time that is none": ({"from_time": NotATime(2024, 1, 1)}, InvalidTypeError, "not NotATime"),
    "a start that is no number": ({"start": "0"}, InvalidTypeError, "start"),
    "an end that is no number": ({"end": 1.5}, InvalidTypeError, "end"),
    "another isolation level": ({"isolation_level": "snapshot"}, InvalidArgumentError, "'snapshot'"),
    "a switch that is none": ({"check_crcs": "no"}, InvalidTypeError, "check_crcs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_ranges_are_refused_at_once(log: segstore.PartitionLog, name: str) -> None:
    asked, error, says = BAD[name]
    log.delete_records(10)
    with pytest.raises(error, match=says):
        log.scan(**asked)


def test_a_closed_store_is_not_scanned(store: segstore.Store) -> None:
    store.create_topic("t")
    log = store.partition("t", 0)
    scan = log.scan()
    log.append(b"x")
    late = log.scan()
    store.close()
    assert list(scan) == []
    with pytest.raises(StoreClosedError):
        list(late)
    with pytest.raises(StoreClosedError):
        log.scan()


EDGES: dict[str, tuple[dict[str, Any], range]] = {
    "words": ({"start": "earliest", "end": "latest"}, range(10)),
    "names": ({"start": segstore.EARLIEST, "end": segstore.LATEST}, range(10)),
    "nothing, behind the end": ({"start": "latest"}, range(0)),
    "nothing, up to the beginning": ({"end": "earliest"}, range(0)),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_by_name(name: str, store: segstore.Store) -> None:
    terms, wanted = EDGES[name]
    store.create_topic("edges")
    log = store.partition("edges")
    log.append_batch([b"v"] * 10)
    assert [record.offset for record in log.scan(**terms)] == [*wanted]
    assert store.scan("edges", **terms).to_arrow(["offset"])["offset"].to_pylist() == [*wanted]


def test_a_word_that_is_no_edge(store: segstore.Store) -> None:
    store.create_topic("edges")
    with pytest.raises(segstore.InvalidTypeError, match="start='newest': must be an int, \"earliest\""):
        store.scan("edges", start="newest")
