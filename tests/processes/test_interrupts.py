"""Promise: wherever Ctrl-C comes, an append is there or not, nobody waits for ever, and a store closes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from interrupts import interrupted
from paused_tails import let_tails_open
from stores import values
from waiting import until

import segstore
from segstore.records import encode, encoded
from segstore.storage import scheduler
from segstore.storage.log import (
    append,
    flusher,
    flushing,
    log_end,
    partition,
    publisher,
    tail,
    validator,
    visibility,
    writer,
)
from segstore.storage.log.append import AHEAD_PLAIN
from segstore.storage.segment import active, native_tail
from segstore.storage.store import partitions
from segstore.storage.store import writer as store_writer
from segstore.storage.store.partition_log import PartitionLog

pytestmark = pytest.mark.kind("interrupts")

APPENDING = (
    validator,
    writer,
    active,
    append,
    tail,
    visibility,
    publisher,
    log_end,
    partition,
    flusher,
    flushing,
    scheduler,
    native_tail,
)
WRITING = (sys.modules[encode.__module__], encoded, active, writer)
CLOSING = (store_writer, partitions, partition, *APPENDING)
TOPIC = {"segment.bytes": 300, "flush.messages": 3}


def values_from(log: PartitionLog, offset: int) -> list[bytes | None]:
    found = []
    while offset < log.end_offset:
        records = log.read(offset)
        found += [record.value for record in records]
        offset = records.next_offset
    return found


def append_one(log: PartitionLog, value: bytes) -> int:
    return log.append(value)


def append_batch(log: PartitionLog, value: bytes) -> int:
    """Of several batches, so that it rolls within."""
    return log.append_batch([value, value + b"'", value + b"''"], batch_bytes=1).start


@pytest.mark.parametrize("by_c", [False, True])
@pytest.mark.parametrize("how", [append_one, append_batch])
def test_an_append(
    store_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: Callable[[PartitionLog, bytes], int],
    by_c: bool,
) -> None:
    """C takes each of them by one call, but for those that roll; Python takes each by many."""
    let_tails_open(monkeypatch, by_c)
    nth, more, expected = 0, True, list[bytes]()
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=TOPIC)
        log = store.partition("t")
        while more:
            nth += 1
            value = b"%d" % nth
            before = log.end_offset
            more = interrupted(nth, APPENDING, partial(how, log, value))
            assert log.append(b"behind") == log.end_offset - 1
            came = values_from(log, before)[:-1]
            assert came in ([], [value], [value, value + b"'", value + b"''"])
            expected += [*came, b"behind"]
    assert nth > (3 if by_c else 20)
    with segstore.open(store_dir) as store:
        assert not store.recovered
        assert values(store.partition("t")) == expected


def test_a_long_append(store_dir: Path) -> None:
    """It is encoded and written piece by piece: all of it is there, or nothing."""
    nth, more = 0, True
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        long = [bytes(AHEAD_PLAIN // 8)] * 10
        while more:
            nth += 1
            before = log.end_offset
            more = interrupted(nth, WRITING, partial(log.append_batch, long, batch_bytes=1))
            assert log.end_offset - before in (0, len(long))
            assert log.append(b"behind") == log.end_offset - 1
            assert nth % 8 or segstore.check(store_dir) == []
            log.delete_records(log.end_offset)
    assert nth > 20


def test_a_close(store_dir: Path) -> None:
    """The directory is let go; the next open finds all that was acknowledged."""
    nth, more, expected = 0, True, list[bytes]()
    before = set(threading.enumerate())
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=TOPIC)
    while more:
        nth += 1
        store = segstore.open(store_dir)
        expected.append(b"%d" % nth)
        store.partition("t").append(expected[-1])
        more = interrupted(nth, CLOSING, store.close)
        with pytest.raises(segstore.StoreClosedError):
            store.partition("t")
        store.close()
        until(lambda: set(threading.enumerate()) <= before)
        with segstore.open(store_dir) as store:
            assert values(store.partition("t")) == expected
        assert segstore.check(store_dir) == []
    assert nth > 20
