"""Promise: C appends to a primary's log, whose readers see up to a high watermark that a standby in sync mode
decides. Nothing is shown and no append is told before the standby has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from producers import Senders, assert_live
from stores import START_MS
from waiting import PATIENCE, until

import segstore
from segstore import OffsetMismatchError
from segstore._native import ffi
from segstore.records import Columns, Template, single
from segstore.storage.log import append, append_as_leader, append_pieces
from segstore.storage.log.acks import Acks
from segstore.storage.log.append import Appended, append_columns, append_one
from segstore.storage.log.partition import Partition
from segstore.storage.meta.fence import Fence
from segstore.storage.producers.append_info import ExpectedEnd
from segstore.storage.store import partition_log

STANDBY = "A" * 22


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """A store whose standby, in sync mode, has fetched nothing yet."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        _primary(store).register(STANDBY, True)
        yield store


def _primary(store: segstore.Store) -> Any:
    return store.engine.primary  # type: ignore[union-attr]


def _fetched(store: segstore.Store, offset: int) -> None:
    _primary(store).fetched(("t", 0), store.partition("t").partition_for_write(), offset)


def _append(store: segstore.Store, acks: int = 1) -> int:
    return append_one(store.partition("t").partition_for_write(), b"v", None, (), None, Acks(acks, 60_000))


def _appends(store: segstore.Store) -> int:
    behind = store.partition("t").partition_for_write().tail.native
    return 0 if behind is None else int(behind.c.appends)


def test_what_the_standby_lacks_is_not_shown(store: segstore.Store, store_dir: Path) -> None:
    log = store.partition("t")
    with segstore.open(store_dir, mode="r") as other:
        for n in range(10):
            assert _append(store) == n
            _fetched(store, n)  # which has all but the last one
            for seen in (log, other.partition("t")):
                assert (seen.end_offset, seen.high_watermark, seen.log_end_offset) == (n, n, n + 1)
                assert [each.offset for each in seen.scan()] == list(range(n))
                assert seen.last_stable_offset == n
    assert _appends(store) >= 8
    _fetched(store, 4)  # a standby that goes back takes nothing away
    assert log.end_offset == 9
    log.partition_for_write().roll()
    assert (log.end_offset, log.log_end_offset) == (9, 10)
    _fetched(store, 10)
    assert log.end_offset == 10


def test_a_list_is_appended_by_c_too(store: segstore.Store) -> None:
    log = store.partition("t")
    _append(store)
    _append(store)
    before, columns = _appends(store), ([b"a", b"b"], None, None, None, None, 65536)
    made = append_columns(log.partition_for_write(), *columns, Acks(1, 60_000), ExpectedEnd(2, "t-0"))
    assert (made, _appends(store)) == (range(2, 4), before + 1)
    assert (log.end_offset, log.log_end_offset) == (0, 4)
    with pytest.raises(OffsetMismatchError):
        append_columns(log.partition_for_write(), *columns, Acks(1, 60_000), ExpectedEnd(3, "t-0"))
    _fetched(store, 4)
    assert log.read(2).values.tolist() == [b"a", b"b"]


def test_an_append_waits_for_the_standby(store: segstore.Store) -> None:
    log, done = store.partition("t"), list[int]()
    _append(store)
    _append(store)
    waits = threading.Thread(target=lambda: done.append(log.append(b"waits")))
    waits.start()
    until(lambda: log.log_end_offset == 3)
    assert _appends(store) == 1  # those before were made the long way
    _fetched(store, 2)
    assert done == []
    _fetched(store, 3)
    waits.join(PATIENCE)
    assert done == [2]


def test_producers_with_ids_wait_for_the_standby(store: segstore.Store, store_dir: Path) -> None:
    """By one call of C each, and so does one that repeats what the standby lacks."""
    log, done = store.partition("t"), list[Appended]()
    senders = Senders(log)
    senders.turn(acks=Acks(1, 60_000))
    senders.turn(acks=Acks(1, 60_000))
    assert _appends(store) == 3
    waiting: Any = log.partition_for_write().acks
    threads = [threading.Thread(target=lambda: done.append(senders.send(1))) for _ in range(2)]
    for n, thread in enumerate(threads):  # the second one repeats what the first one waits for
        thread.start()
        until(lambda n=n: len(waiting._waiting) == n + 1)
    _fetched(store, 6)
    assert (log.log_end_offset, log.high_watermark, done) == (7, 6, [])
    _fetched(store, 7)
    for thread in threads:
        thread.join(PATIENCE)
    assert [(each.first, each.duplicate) for each in sorted(done)] == [(6, False), (6, True)]
    assert_live(log, store_dir / "t-0")


def _sent(log: segstore.PartitionLog) -> Any:
    batch = single(b"v", None, (), START_MS, Template(), 0, None)
    return log.append_as_leader(bytearray(ffi.buffer(batch.ptr, batch.size)), acks=-1)


def _columns() -> Columns:
    return Columns([b"v", b"v"], None, [START_MS] * 2, None, START_MS)


DOORS: dict[str, tuple[Any, str, Callable[[segstore.PartitionLog], Any]]] = {
    "append": (partition_log, "append_short", lambda log: log.append(b"v")),
    "append_batch": (partition_log, "append_list", lambda log: log.append_batch([b"v"])),
    "append_batch, compressed": (
        append, "_write_short", lambda log: log.append_batch([b"v"], compression="gzip")
    ),
    "append_batch, of several": (
        append, "write_long", lambda log: log.append_batch([b"v" * 900_000] * 10, compression="none")
    ),
    "append_as_leader": (append_as_leader, "_take", _sent),
    "append_record": (
        append, "append_short", lambda log: append.append_record(log, b"v", None, (), START_MS)
    ),
    "append_batches": (append, "_write_short", lambda log: append.append_batches(log, _columns())),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("by_c", [True, False])
def test_an_append_that_began_before_sync_mode_waits_for_the_standby(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, door: str, by_c: bool
) -> None:
    """It has found no standby, and writes when there is one: C, or Python, appends to the same tail."""
    module, step, call = DOORS[door]
    go_on, done = getattr(module, step), list[object]()
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"before")

        def then_registered(*arguments: Any) -> Any:
            monkeypatch.setattr(module, step, go_on)
            _primary(store).register(STANDBY, True)
            if by_c:
                _append(store)
                assert log.partition_for_write().tail.native.is_open
            return go_on(*arguments)

        monkeypatch.setattr(module, step, then_registered)
        before = log.log_end_offset + by_c
        thread = threading.Thread(target=lambda: done.append(call(log)))
        thread.start()
        until(lambda: log.log_end_offset > before)
        thread.join(0.05)
        assert done == []
        _fetched(store, log.log_end_offset)
        thread.join(PATIENCE)
        assert len(done) == 1


def test_pieces_are_not_appended_to_a_log_that_a_standby_follows(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sync mode begins behind the look whether there is a standby."""
    template = append_pieces.c_template
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        for _ in range(2):
            log.append(b"before")
        assert append_pieces.append_pieces(log, _columns(), (), None, Template()).offsets == [2]

        def then_registered(*arguments: Any) -> Any:
            _primary(store).register(STANDBY, True)
            _append(store)
            return template(*arguments)

        monkeypatch.setattr(append_pieces, "c_template", then_registered)
        assert append_pieces.append_pieces(log, _columns(), (), None, Template()).offsets == []
        assert log.log_end_offset == 5


def test_the_others_are_told_of_each_append(store: segstore.Store) -> None:
    """The server's loop, which sleeps meanwhile, has the standby's fetch answered."""
    told: list[int] = []
    log = store.partition("t")
    store.engine.call_after_publications(lambda: told.append(log.log_end_offset))  # type: ignore[union-attr]
    for n in range(5):
        _append(store)
        assert told[-1] == n + 1
    assert _appends(store) == 3
    del told[:]
    _fetched(store, 5)
    assert told == [5]


def test_an_expected_offset_is_compared(store: segstore.Store) -> None:
    log = store.partition("t")
    _append(store)
    with pytest.raises(OffsetMismatchError):
        log.append(b"v", expected_offset=7)
    assert log.log_end_offset == 1


@pytest.mark.parametrize("ends", ["unregister", "fence"])
def test_nothing_goes_past_the_end_of_sync_mode(store: segstore.Store, ends: str) -> None:
    log, partition = store.partition("t"), store.partition("t").partition_for_write()
    _append(store)
    _append(store)
    assert partition.tail.may_be_open
    if ends == "unregister":
        _primary(store).unregister()
        assert log.append(b"alone") == log.end_offset - 1 == 2
    else:
        _primary(store).demote(Fence(7, 2, STANDBY, 0, "it was promoted"))
        with pytest.raises(segstore.errors.NotLeaderOrFollowerError):
            log.append(b"refused")
        with pytest.raises(segstore.errors.DemotedError):
            _append(store)
        assert log.log_end_offset == 2
    assert not (partition.tail.may_be_open and partition.tail.native.is_replicated)


def test_an_append_at_the_end_of_sync_mode_is_told_when_it_is_seen(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finds that there is no standby before readers see the log to its end."""
    partition = store.partition("t").partition_for_write()
    acks, there = partition.acks, list[bool]()
    taken = partition.token.on_taken
    assert acks is not None
    assert taken is not None

    def looked() -> None:
        there.append(partition.acks is acks)
        taken()

    monkeypatch.setattr(partition.token, "on_taken", looked)
    _primary(store).unregister()
    assert there
    assert all(there)
    assert partition.acks is None


@pytest.mark.parametrize("again", [False, True])
def test_sync_mode_that_ends_within_an_append(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The append is acknowledged by this log alone, or by the standby that has come since."""
    log, done = store.partition("t"), list[object]()
    _fetched(store, 0)
    go_on = Partition.put

    def then_changed(*arguments: Any) -> int:
        monkeypatch.setattr(Partition, "put", go_on)
        _primary(store).unregister()
        if again:
            _primary(store).register(STANDBY, True)
        return go_on(*arguments)

    monkeypatch.setattr(Partition, "put", then_changed)
    thread = threading.Thread(target=lambda: done.append(log.append_batch([b"v"], compression="gzip")))
    thread.start()
    until(lambda: log.log_end_offset == 1)
    if again:
        thread.join(0.05)
        assert done == []
        _fetched(store, 1)
    thread.join(PATIENCE)
    assert done == [range(1)]
    assert log.end_offset == 1


def test_sync_mode_that_ends_before_an_append_writes(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, inline = store.partition("t"), append.append_inline

    def then_ended(*arguments: Any) -> int:
        _primary(store).unregister()
        return inline(*arguments)

    monkeypatch.setattr(append, "append_inline", then_ended)
    assert log.append_batch([b"v"], compression="gzip") == range(1)
    assert log.end_offset == 1
