"""Which log is compacted, and what may interrupt that: damage, a stop, a delete, the throttle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compaction import batches, clean, fill, latest, open_compacted, pairs, put, roll
from stores import START_MS

import segstore
from segstore.storage import cleaner
from segstore.storage.cleaner import Dirty, cleanable, dirtiness


def dirty_of(store: segstore.Store, checkpoint: int | None = None, now: int = START_MS) -> Dirty | None:
    return cleanable(store.partition("t").partition_for_write(), checkpoint, now)


def test_the_dirty_ratio_chooses(store_dir: Path) -> None:
    with open_compacted(store_dir, min_cleanable_dirty_ratio=0.5) as store:
        assert dirty_of(store) is None
        put(store.partition("t"), (b"a", b"x" * 400))
        assert dirty_of(store) is None  # active
        roll(store)
        put(store.partition("t"), (b"a", b"x" * 400))
        roll(store)
        size = batches(store)[0]["size"]
        assert dirty_of(store) == Dirty(1.0, 2 * size, 0, 2)
        assert dirty_of(store, 1) is None  # half of it is no more than half
        assert dirty_of(store, 2) is None
        store.alter_topic("t", {"min.cleanable.dirty.ratio": 0.49})
        assert dirty_of(store, 1) == Dirty(0.5, size, 1, 2)
        store.alter_topic("t", {"cleanup.policy": "delete"})
        assert dirty_of(store) is None
        assert dirtiness(store.partition("t").partition_for_write(), 1, 0).ratio == 0.5


@pytest.mark.parametrize("checkpoint", [99, -1])
def test_a_checkpoint_outside_of_the_log_is_another_logs(store_dir: Path, checkpoint: int) -> None:
    with open_compacted(store_dir) as store:
        put(store.partition("t"), (b"a", b"1"))
        roll(store)
        found = dirty_of(store, checkpoint)
        assert found is not None
        assert found.first_dirty == 0


def test_min_compaction_lag_ms(store_dir: Path) -> None:
    with open_compacted(store_dir, min_compaction_lag_ms=1000) as store:
        for i in range(3):
            put(store.partition("t"), (b"a", b"%d" % i), timestamps=START_MS + 100 * i)
            roll(store)
        found = {now: dirty_of(store, None, START_MS + now) for now in (999, 1000, 1100, 1200)}
        assert {now: d.until if d else None for now, d in found.items()} == {
            999: None,
            1000: 1,
            1100: 2,
            1200: 3,
        }


def test_max_compaction_lag_ms_forces(store_dir: Path) -> None:
    with open_compacted(store_dir, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=1000) as store:
        put(store.partition("t"), (b"a", b"1"), timestamps=START_MS)
        roll(store)
        assert dirty_of(store, None, START_MS + 1000) is None
        late = dirty_of(store, None, START_MS + 1001)
        assert late is not None
        assert late.late
        assert dirty_of(store, 1, START_MS + 1001) is None


def test_damage_is_not_compacted_over(tmp_path: Path) -> None:
    with open_compacted(tmp_path) as store:
        fill(store, 50, 5)
        roll(store)
        path = sorted((tmp_path / "t-0").glob("*.log"))[1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        store.context.pool.forget(str(path))
        before = {p.name: p.read_bytes() for p in (tmp_path / "t-0").glob("*.log")}
        with pytest.raises(segstore.CorruptRecordError) as told:
            clean(store)
        assert told.value.file == str(path)
        assert {p.name: p.read_bytes() for p in (tmp_path / "t-0").glob("*.log")} == before
        assert not list((tmp_path / "t-0").glob("*.cleaned"))


class Stop:
    """Does something at the n-th look at the throttle."""

    at_once = 1

    def __init__(self, nth: int, what: Any) -> None:
        self.left, self.what = nth, what

    def __call__(self, nbytes: int) -> None:
        self.left -= 1
        if not self.left:
            self.what()


def stopped(throttle: cleaner.Throttler) -> Any:
    def stop() -> None:
        throttle.stop()
        throttle(0)

    return stop


@pytest.mark.parametrize("nth", [1, 3, 8, 12])
def test_a_cleaning_can_be_stopped(store_dir: Path, nth: int) -> None:
    with open_compacted(store_dir) as store:
        expected = fill(store, 100, 10)
        roll(store)
        done = clean(store, throttle=Stop(nth, stopped(cleaner.Throttler())))
        assert done.stopped
        assert not list((store_dir / "t-0").glob("*.cleaned"))
        assert latest(store.partition("t")) == expected
        assert not clean(store).stopped
        assert latest(store.partition("t")) == expected


@pytest.mark.parametrize("nth", [1, 3, 8, 12])
def test_a_topic_may_be_deleted_meanwhile(store_dir: Path, nth: int) -> None:
    with open_compacted(store_dir) as store:
        fill(store, 100, 10)
        roll(store)

        def again() -> None:
            store.delete_topic("t")
            store.create_topic("t")
            store.partition("t").append(b"new")

        assert clean(store, throttle=Stop(nth, again), checkpoint=False).stopped
        assert pairs(store.partition("t")) == [(0, None, b"new")]
        assert not list(store_dir.glob("**/*.cleaned"))


@pytest.mark.parametrize("nth", [1, 4, 8])
def test_the_log_start_may_move_meanwhile(store_dir: Path, nth: int) -> None:
    with open_compacted(store_dir) as store:
        expected = fill(store, 100, 10)
        roll(store)
        log = store.partition("t")
        done = clean(store, throttle=Stop(nth, lambda: log.delete_records(95)))
        assert done.stopped
        clean(store)
        assert log.start_offset == 95
        assert [key for _, key, _ in pairs(log)] == [b"k%d" % (i * 7 % 10) for i in range(95, 100)]
        assert latest(log).items() <= expected.items()


def test_the_throttle_keeps_the_rate(store_dir: Path) -> None:
    now, waits = [0.0], []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return False

    throttle = cleaner.Throttler(1000, clock=lambda: now[0], wait=wait)
    with open_compacted(store_dir) as store:
        fill(store, 100, 10)
        roll(store)
        done = clean(store, throttle=throttle)
    assert len(waits) > 5
    assert now[0] >= 2 * done.bytes_before / 1000 - cleaner.throttle.INTERVAL


def test_a_wait_ends_at_a_stop() -> None:
    throttle = cleaner.Throttler(1, wait=lambda seconds: True)
    with pytest.raises(cleaner.CleaningStopped):
        throttle(10**6)


def test_the_cleaner_rests_in_proportion_to_its_work() -> None:
    worked, waits = [0.0], []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    throttle = cleaner.Throttler(clock=lambda: 0.0, wait=wait, worked=lambda: worked[0])
    for seconds in (0.001, 0.001, 0.02, 0.0, 10.0, -5.0, 0.02):  # below 0: by another thread's clock
        worked[0] += seconds
        throttle(1)
    rest = cleaner.throttle.REST
    assert waits == pytest.approx([0.022 * rest, cleaner.throttle.LONGEST_REST, 0.02 * rest])
