"""Compaction of a log whose start lies behind where a transaction began."""

from __future__ import annotations

from pathlib import Path

from compaction import Unsynced, Writer, clean, entries, open_compacted, put, roll
from stores import START_MS, Clock

import segstore
from segstore.records import TRANSACTIONAL_FLAG


def test_the_entry_of_an_abort_that_began_before_the_log(store_dir: Path) -> None:
    """It says what it said: from where the transaction went, and what was stable then."""
    clock = Clock(START_MS)
    with open_compacted(store_dir, clock, Unsynced()) as store:
        log, one = store.partition("t"), Writer(store.partition("t"), 1, clock)
        one.send((b"a", b"1"), flags=TRANSACTIONAL_FLAG)  # 0
        roll(store)
        one.send((b"a", b"2"), flags=TRANSACTIONAL_FLAG)  # 1
        other = Writer(log, 2, clock)
        other.transaction(False, (b"b", b"1"))  # 2, marker 3
        one.end(False)  # 4
        put(log, (b"c", b"1"))
        roll(store)
        log.delete_records(1)
        assert (log.start_offset, before := entries(store_dir)) == (1, [(2, 2, 3), (1, 0, 4)])
        data = [path.read_bytes() for path in (store_dir / "t-0").glob("*.txnindex")]
        clean(store)
        assert entries(store_dir) == before
        assert [path.read_bytes() for path in (store_dir / "t-0").glob("*.txnindex")] == data
    assert segstore.check(store_dir) == []


def test_check_asks_for_no_entry_of_which_compaction_has_taken_all(store_dir: Path) -> None:
    clock = Clock(START_MS)
    with open_compacted(store_dir, clock, Unsynced()) as store:
        log, one = store.partition("t"), Writer(store.partition("t"), 1, clock)
        one.send((b"a", b"1"), flags=TRANSACTIONAL_FLAG)  # 0
        roll(store)
        put(log, (b"x", b"1"))
        put(log, (b"x", b"2"))
        one.end(False)
        roll(store)
        log.delete_records(1)
        clean(store)
        assert entries(store_dir) == []
    assert segstore.check(store_dir) == []
