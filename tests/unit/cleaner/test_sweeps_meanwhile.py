"""A compaction at a low rate takes hours: what goes on meanwhile, and what is left when it is stopped."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compaction import Looks
from elsewhere import elsewhere
from faults import FailingFiles
from stores import Clock
from waiting import PATIENCE, until

import segstore

SMALL = {"segment.bytes": 1000, "file.delete.delay.ms": 0}
COMPACT = {**SMALL, "cleanup.policy": "compact"}
SLOW = {"log.cleaner.io.max.bytes.per.second": 1, "log.retention.check.interval.ms": 1}
BY_HAND = {"log.cleaner.threads": 0}


def put(store: segstore.Store, topic: str, n: int = 60) -> None:
    for i in range(n):
        store.partition(topic).append(b"x" * 100, key=b"k%d" % (i % 3))


def at_looks(store: segstore.Store, act: Callable[[int], object], due: bool = True) -> None:
    """Call `act` in another thread with the number of each look at the throttle; retention is due at each."""
    sweeper = store.engine.sweeper
    throttle = sweeper._compaction._throttle

    def look(nth: int) -> None:
        elsewhere(lambda: act(nth))
        if due:
            sweeper._retained = float("-inf")
        throttle(0)

    sweeper._compaction._throttle = Looks(look)


@pytest.mark.parametrize("background", [False, True], ids=["by hand", "in the background"])
def test_retention_of_others_while_a_slow_compaction_runs(store_dir: Path, background: bool) -> None:
    """By age, with a clock that stands still; and the store closes all the same."""
    clock = Clock()
    config = {**SLOW, "log.cleaner.backoff.ms": 1, "log.cleaner.threads": int(background)}
    with segstore.open(store_dir, clock=clock, config=config) as store:
        store.create_topic("slow", config=COMPACT)
        store.create_topic("aged", config={**SMALL, "retention.ms": 60_000})
        put(store, "slow")
        put(store, "aged")
        sweep = threading.Thread(target=store.sweep if not background else lambda: None)
        sweep.start()
        until(lambda: store.engine.sweeper._compaction._throttle._seen)
        assert store.partition("aged").start_offset == 0
        clock.now += 61_000
        until(lambda: store.partition("aged").start_offset == 60)
        store.partition("aged").append(b"new")
        assert store.engine.sweeper._compacted == ("slow", 0)
        until(lambda: store.stats()[0].deleted_bytes)
        store.close()
        sweep.join(PATIENCE)
        assert not sweep.is_alive()
    with segstore.open(store_dir, "r") as store:
        assert store.stats()[1].records == 60


def test_the_log_that_is_compacted_is_left_alone(store_dir: Path) -> None:
    """Its segments would go under the cleaner's feet, which had to begin anew each time."""
    with segstore.open(store_dir, config=BY_HAND) as store:
        both = {**COMPACT, "cleanup.policy": "compact,delete", "retention.bytes": 6000}
        store.create_topic("t", config=both)
        put(store, "t", 40)
        at_looks(store, lambda nth: nth == 1 and put(store, "t", 60))
        compaction, partition = store.engine.sweeper._compaction, store.partition("t")
        done = store.engine.sweeper._run(compaction)
        assert done[0].compacted_records > 0
        assert done[0].error is None
        assert partition.start_offset == 0
        (swept,) = store.sweep()
        assert swept.deleted_segments > 0


def test_no_compaction_within_a_compaction(store_dir: Path) -> None:
    order: list[Any] = []
    with segstore.open(store_dir, config=BY_HAND) as store:
        for name in ("a", "b"):
            store.create_topic(name, config=COMPACT)
            put(store, name)
        at_looks(store, lambda nth: order.append(store.engine.sweeper._compacted))
        store.sweep()
        assert sorted(set(order)) == [("a", 0), ("b", 0)]
        assert [a for a, b in itertools.pairwise(order) if a != b] == [order[0]]


def test_what_retention_fails_at_meanwhile_is_noted_and_the_compaction_goes_on(store_dir: Path) -> None:
    def fault(name: str, args: tuple[Any, ...]) -> None:
        if "bad-0" in str(args[0]):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))

    files = FailingFiles({"rename"}, fault, nth=0)
    with segstore.open(store_dir, files=files, config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT)
        store.create_topic("bad", config=SMALL)
        put(store, "t")
        put(store, "bad")

        def act(nth: int) -> None:
            if nth == 2:
                store.alter_topic("bad", {"retention.bytes": 0})
                files.arm(times=1 << 30)

        at_looks(store, act)
        (done,) = store.sweep()
        assert (done.topic, done.error, done.compacted_records > 0) == ("t", None, True)
        bad, good = store.stats()
        assert "Input/output error" in str(bad.error)
        assert good.error is None


def test_a_topic_made_anew_meanwhile_has_no_part_in_it(store_dir: Path) -> None:
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t")

        def act(nth: int) -> None:
            if nth == 2:
                store.delete_topic("t")
                store.create_topic("t", config={**SMALL, "retention.bytes": 0})
                put(store, "t", 5)

        at_looks(store, act)
        store.sweep()
        assert [done.error for done in store.sweep()] == [None]
        assert store.stats()[0].compacted_bytes == 0
        assert store.partition("t").start_offset == 5


# --- counts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["stopped", "failed"])
def test_what_was_freed_before_the_end_counts(store_dir: Path, what: str) -> None:
    """In the result, the stats and the metrics; a failure beside it."""
    with segstore.open(store_dir, config=BY_HAND) as store:
        store.create_topic("t", config=COMPACT)
        put(store, "t", 200)
        log, before = store.partition("t"), store.partition("t").size

        def act(nth: int) -> None:
            if log.size < before and what == "stopped":
                store.engine.sweeper._closing.open()
            elif log.size < before:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        at_looks(store, act, due=False)
        (done,) = store.sweep()
        freed = before - log.size
        assert 0 < freed == done.compacted_bytes
        assert done.compacted_records == 200 - store.stats()[0].records
        assert store.stats()[0].compacted_bytes == freed
        assert store.metrics()["t-0"]["compacted-bytes-total"] == freed
        assert (done.error is None) == (what == "stopped")
        assert (store.stats()[0].error is None) == (what == "stopped")
        store.engine.sweeper._closing.is_open = False
    with segstore.open(store_dir, config=BY_HAND) as store:
        (rest,) = store.sweep()
        assert store.stats()[0].compacted_bytes == freed + rest.compacted_bytes
        assert rest.compacted_bytes > 0


def test_a_partition_that_is_fenced_is_not_rolled_again(store_dir: Path) -> None:
    """Each try would leave one more closing entry in the time index."""

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if "t-0" in str(args[0]):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(args[0]))

    files = FailingFiles({"rename"}, fault, nth=0)
    config = {**BY_HAND, "log.retention.check.interval.ms": 1 << 40}
    with segstore.open(store_dir, files=files, config=config) as store:
        store.create_topic("t", config={**SMALL, "segment.bytes": 100_000})
        put(store, "t", 5)
        store.alter_topic("t", {"retention.bytes": 0})
        files.arm(times=1 << 30)
        assert [done.error is None for done in store.sweep()] == [False]
        index = next((store_dir / "t-0").glob("*.timeindex"))
        size = index.stat().st_size
        for _ in range(3):
            (done,) = store.sweep()
            assert "fenced" in str(done.error)
        assert index.stat().st_size == size
        files.arm(0)
        assert store.partition("t").read(0).next_offset == 5
    with segstore.open(store_dir) as store:
        assert store.partition("t").append(b"on") == 5


def test_no_roll_over_what_a_failed_append_has_left(store_dir: Path) -> None:
    """The disk is too full even to take it back: retention waits for that, or the wrong segment were cut."""

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if "t-0" in str(args[0].path) and (name == "truncate" or args[0].path.endswith(".log")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = FailingFiles({"pwrite", "pwritev", "truncate"}, fault, nth=0)
    config = {**BY_HAND, "log.retention.check.interval.ms": 1 << 40}
    with segstore.open(store_dir, files=files, config=config) as store:
        store.create_topic("t", config={**SMALL, "segment.bytes": 100_000})
        put(store, "t", 5)
        store.alter_topic("t", {"retention.bytes": 0})
        files.arm(times=1 << 30)
        with pytest.raises(segstore.StorageError):
            store.partition("t").append(b"no")
        (done,) = store.sweep()
        assert "no room" in str(done.error).lower()
        assert store.partition("t").read(0).next_offset == 5
        files.arm(0)
        (done,) = store.sweep()
        assert (done.deleted_segments, done.error) == (1, None)
        assert [store.partition("t").append(b"on"), store.partition("t").read(5)[0].value] == [5, b"on"]
    with segstore.open(store_dir) as store:
        assert store.partition("t").read(5)[0].value == b"on"


def test_on_a_full_disk_sealed_segments_go_where_none_can_be_rolled(store_dir: Path) -> None:
    """That may be what makes room; the error is told when they are gone."""

    def fault(name: str, args: tuple[Any, ...]) -> None:
        if "t-0" in str(args[0].path) and (name == "truncate" or args[0].path.endswith(".log")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    clock, config = Clock(), {**BY_HAND, "log.retention.check.interval.ms": 1 << 40}
    files = FailingFiles({"pwrite", "pwritev", "truncate"}, fault, nth=0)
    with segstore.open(store_dir, files=files, clock=clock, config=config) as store:
        store.create_topic("t", config={**SMALL, "segment.ms": 1000})
        put(store, "t", 20)
        sealed = len(store.engine.partition("t", 0).view.segments) - 1
        assert sealed > 2
        store.sweep()
        store.alter_topic("t", {"retention.bytes": 0})
        clock.now += 2000
        files.arm(times=1 << 30)
        with pytest.raises(segstore.StorageError):
            store.partition("t").append(b"no")
        (done,) = store.sweep()
        assert "no room" in str(done.error)
        assert done.deleted_segments == sealed
        (done,) = store.sweep()
        assert (done.deleted_segments, done.error is None) == (0, False)
        files.arm(0)
        (done,) = store.sweep()
        assert (done.deleted_segments, done.error) == (1, None)
        assert store.partition("t").append(b"on") == 20
