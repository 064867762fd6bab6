"""The log cleaner's rules, one case each: which records stay, what batches they lie in, what is chosen."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from compaction import DAY, bases, batches, clean, latest, open_compacted, pairs, put, roll
from stores import START_MS, Clock, raw_batches, write_segment

import segstore
from segstore.records import Columns
from segstore.records.header import DELETE_HORIZON_FLAG
from segstore.storage import cleaner
from segstore.storage.cleaner import Dirty, cleanable, dirtiness
from segstore.storage.producing import append_batches, append_record


def test_the_latest_of_each_key_stays_with_its_offset(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        for value in (b"1", b"2", b"3"):
            put(log, (b"a", value), (b"b", value), (b"", value))
        put(log, (b"a", b"4"))
        roll(store)
        done = clean(store)
        assert pairs(log) == [(7, b"b", b"3"), (8, b"", b"3"), (9, b"a", b"4")]
        assert (log.start_offset, log.end_offset) == (0, 10)
        assert (done.end_offset, done.records_before, done.records_after) == (10, 10, 3)
        assert done.bytes_after < done.bytes_before
        assert done[1:4] == (1, 1, 1)


def test_what_is_active_stays_as_it_is(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        put(log, (b"a", b"1"))
        roll(store)
        put(log, (b"a", b"2"), (b"a", b"3"))
        assert clean(store).end_offset == 1
        assert pairs(log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]


def test_a_log_that_is_clean_is_left_alone(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        put(store.partition("t"), (b"a", b"1"), (b"a", b"2"))
        roll(store)
        clean(store)
        before = store.partition("t")._writing().view.segments
        assert clean(store) == cleaner.CleanResult(2)
        assert clean(store, checkpoint=False) == cleaner.CleanResult(2)
        assert store.partition("t")._writing().view.segments == before


def test_nothing_is_written_where_nothing_changes(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        put(store.partition("t"), (b"a", b"1"), (b"b", b"2"))
        roll(store)
        before = store.partition("t")._writing().view.segments
        done = clean(store)
        assert (done.end_offset, done.segments_before, done.bytes_before) == (2, 0, 0)
        assert store.partition("t")._writing().view.segments == before
        assert not list((store_dir / "t-0").glob("*.cleaned"))


def test_headers_stamps_and_null_and_empty_stay(store_dir: Path) -> None:
    with open_compacted(store_dir, Clock(START_MS)) as store:
        log = store.partition("t")
        headers = [[("h", b"x"), ("h", None)], [], [("", b"")], []]
        stamps = [START_MS - 5, START_MS - 9, -1, START_MS - 7]
        values = [b"x" * 300, b"", None, b"dead"]
        log.append_batch(values, [b"a", b"b", b"c", b"d"], stamps, headers)
        put(log, (b"d", b"new"))
        roll(store)
        before = [r for r in log.read(0) if r.value != b"dead"]
        clean(store)
        assert list(log.read(0)) == before


TOMBSTONE = [(b"a", b"1"), (b"b", b"1"), (b"a", None)]


def test_a_tombstone_lives_for_delete_retention_ms(store_dir: Path) -> None:
    clock = Clock(START_MS)
    with open_compacted(store_dir, clock) as store:
        log = store.partition("t")
        put(log, *TOMBSTONE)
        roll(store)
        clean(store)
        (batch,) = batches(store)
        assert batch["attributes"] & DELETE_HORIZON_FLAG
        assert batch["base_timestamp"] == START_MS + DAY
        assert batch["max_timestamp"] == START_MS
        for now, expected in ((START_MS + DAY - 1, [b"b", b"a"]), (START_MS + DAY, [b"b"])):
            clock.now = now
            put(log, (b"c", b"%d" % now))
            roll(store)
            clean(store)
            assert [key for _, key, _ in pairs(log) if key != b"c"] == expected
        assert [r.timestamp for r in log.read(0)] == [START_MS, START_MS + DAY]
        assert batches(store)[0]["base_timestamp"] == START_MS + DAY  # it keeps its horizon


def test_records_without_a_key_are_dropped_and_counted(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_compacted(store_dir, cleanup_policy="delete") as store:
        log = store.partition("t")
        log.append_batch([b"1", b"2", b"3"], keys=[None, b"k", None])
        roll(store)
        store.alter_topic("t", {"cleanup.policy": "compact"})
        assert clean(store).keyless == 2
        assert pairs(log) == [(1, b"k", b"2")]
        assert "2 records without a key" in caplog.text


def test_what_lies_below_the_log_start_is_no_matter(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        for i in range(6):
            put(log, (b"a", b"%d" % i), (b"b%d" % i, b""))
        roll(store)
        put(log, (b"z", b""))
        log.delete_records(5)
        assert dirtiness(log._writing(), None, 0).first_dirty == 5
        clean(store)
        assert log.start_offset == 5
        assert pairs(log) == [
            (5, b"b2", b""),
            (7, b"b3", b""),
            (9, b"b4", b""),
            (10, b"a", b"5"),
            (11, b"b5", b""),
            (12, b"z", b""),
        ]


# --- several passes, several segments -----------------------------------------------------------


def fill(store: segstore.Store, n: int, keys: int, size: int = 20) -> dict[bytes, bytes]:
    log = store.partition("t")
    for i in range(n):
        log.append(b"%d" % i * size, key=b"k%d" % (i * 7 % keys))
    return latest(log)


def test_keys_that_do_not_fit_take_several_passes(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        expected = fill(store, 300, 40)
        roll(store)
        advanced: list[int] = []
        partition = store.partition("t")._writing()
        config = segstore.config.StoreConfig.parse({"log.cleaner.io.buffer.load.factor": 0.02})
        done = cleaner.clean(partition, config, 0, cleaner.Throttle(), None, advanced.append)
        assert done.passes > 3
        assert len(advanced) == done.passes
        assert advanced == sorted(set(advanced))
        assert advanced[-1] == done.end_offset == 300
        assert latest(store.partition("t")) == expected
        assert len(pairs(store.partition("t"))) == 40


def test_small_neighbours_become_one_segment(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        expected = fill(store, 200, 12)
        roll(store)
        before = bases(store)
        clean(store)
        assert bases(store) == before  # sizes were looked at before anything went
        put(store.partition("t"), (b"k1", b"x"))
        roll(store)
        clean(store)
        assert len(bases(store)) == 4 < len(before)
        assert latest(store.partition("t")) == expected | {b"k1": b"x"}
        snapshots = {int(p.stem) for p in (store_dir / "t-0").glob("*.snapshot")}
        assert snapshots <= set(bases(store))


@pytest.mark.parametrize(
    ("far", "segments"), [(2**31 - 20, 2), (2**31 - 1, 2), (2**31, 3)], ids=["near", "just", "too far"]
)
def test_offsets_in_a_segment_fit_an_int32(store_dir: Path, far: int, segments: int) -> None:
    for base, offsets in ((0, [0, 1]), (far, [far]), (far + 1, [far + 1])):
        write_segment(store_dir / "t-0", base, raw_batches(offsets))
    with segstore.open(store_dir) as store:
        store.alter_topic("t", {"cleanup.policy": "compact", "compression.type": "lz4"})
        before = pairs(store.partition("t"))
        clean(store)
        assert len(bases(store)) == segments
        assert pairs(store.partition("t")) == before


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
@pytest.mark.parametrize("source", ["none", "zstd"])
def test_batches_get_the_topics_codec(store_dir: Path, source: str, target: str) -> None:
    codes = {"producer": source, "uncompressed": "none"}
    with open_compacted(store_dir, compression_type="producer", segment_bytes=30_000) as store:
        log = store.partition("t")
        for i in range(3):
            put(log, *[(b"k%d" % k, b"%d" % i * 400) for k in range(3 * i, 9)], compression=source)
        roll(store)
        expected = latest(log)
        store.alter_topic("t", {"compression.type": target})
        clean(store)
        found = [segstore.records.CODECS[b["attributes"] & 7] for b in batches(store)]
        assert found == [codes.get(target, target)] * 3
        assert latest(log) == expected


def test_what_grows_becomes_several_segments(store_dir: Path) -> None:
    with open_compacted(store_dir, segment_bytes=4000) as store:
        log = store.partition("t")
        for i in range(12):
            put(log, *[(b"k%d-%d" % (i, j), b"x" * 100) for j in range(9)], compression="gzip")
        roll(store)
        before, expected = bases(store), latest(log)
        store.alter_topic("t", {"compression.type": "uncompressed"})
        clean(store)
        assert len(bases(store)) > len(before)
        assert all(s.size <= 4000 for s in log._writing().view.segments)
        assert latest(log) == expected


def test_append_time_stays(store_dir: Path) -> None:
    clock = Clock(START_MS)
    with open_compacted(store_dir, clock, message_timestamp_type="LogAppendTime") as store:
        log = store.partition("t")
        put(log, (b"a", b"1"), (b"b", b"1"))
        clock.now += 1000
        put(log, (b"a", b"2"), (b"c", None))
        roll(store)
        clean(store)
        assert [(r.key, r.timestamp) for r in log.read(0)] == [
            (b"b", START_MS),
            (b"a", START_MS + 1000),
            (b"c", START_MS + 1000),
        ]
        assert log.read(0).timestamp_types.tolist() == [1, 1, 1]
        assert log.offset_for_time(START_MS + 1) == 2


def test_times_are_found_afterwards(store_dir: Path) -> None:
    with open_compacted(store_dir, index_interval_bytes=100) as store:
        log = store.partition("t")
        for i in range(150):
            log.append(b"x" * 30, key=b"k%d" % (i % 60), timestamp=START_MS - 1000 + i * i % 997)
        roll(store)
        clean(store)
        held = [(r.offset, r.timestamp) for r in log.read(0, 1 << 20)]
        for stamp in range(START_MS - 1010, START_MS + 10, 7):
            assert log.offset_for_time(stamp) == next((o for o, t in held if t >= stamp), None)


# --- the choice --------------------------------------------------------------------------------


def dirty_of(store: segstore.Store, checkpoint: int | None = None, now: int = START_MS) -> Dirty | None:
    return cleanable(store.partition("t")._writing(), checkpoint, now)


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
        assert dirtiness(store.partition("t")._writing(), 1, 0).ratio == 0.5


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


# --- what can go wrong --------------------------------------------------------------------------


def test_damage_is_not_compacted_over(tmp_path: Path) -> None:
    with open_compacted(tmp_path) as store:
        fill(store, 50, 5)
        roll(store)
        path = sorted((tmp_path / "t-0").glob("*.log"))[1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        store._context.pool.forget(str(path))
        before = {p.name: p.read_bytes() for p in (tmp_path / "t-0").glob("*.log")}
        with pytest.raises(segstore.CorruptRecordError) as told:
            clean(store)
        assert told.value.file == str(path)
        assert {p.name: p.read_bytes() for p in (tmp_path / "t-0").glob("*.log")} == before
        assert not list((tmp_path / "t-0").glob("*.cleaned"))


class Stop:
    """Does something at the n-th look at the throttle."""

    def __init__(self, nth: int, what: Any) -> None:
        self.left, self.what = nth, what

    def __call__(self, nbytes: int) -> None:
        self.left -= 1
        if not self.left:
            self.what()


def stopped(throttle: cleaner.Throttle) -> Any:
    def stop() -> None:
        throttle.stop()
        throttle(0)

    return stop


@pytest.mark.parametrize("nth", [1, 3, 8, 12])
def test_a_cleaning_can_be_stopped(store_dir: Path, nth: int) -> None:
    with open_compacted(store_dir) as store:
        expected = fill(store, 100, 10)
        roll(store)
        done = clean(store, throttle=Stop(nth, stopped(cleaner.Throttle())))
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

    throttle = cleaner.Throttle(1000, clock=lambda: now[0], wait=wait)
    with open_compacted(store_dir) as store:
        fill(store, 100, 10)
        roll(store)
        done = clean(store, throttle=throttle)
    assert len(waits) > 5
    assert now[0] >= 2 * done.bytes_before / 1000 - cleaner.throttle.INTERVAL


def test_a_wait_ends_at_a_stop() -> None:
    throttle = cleaner.Throttle(1, wait=lambda seconds: True)
    with pytest.raises(cleaner.CleaningStopped):
        throttle(10**6)


def test_every_size_of_buffer_gives_the_same_log(tmp_path: Path) -> None:
    found = []
    for number, size in enumerate((1 << 10, 1 << 14, 1 << 22)):
        with open_compacted(tmp_path / str(number), Clock(START_MS)) as store:
            fill(store, 150, 20, size=60)
            roll(store)
            clean(store, log_cleaner_io_buffer_size=size)
            logs = sorted((tmp_path / str(number) / "t-0").glob("*.*"))
            found.append({p.name: p.read_bytes() for p in logs if p.suffix != ".metadata"})
    assert all(a == b for a, b in itertools.pairwise(found))


# --- records without a key ------------------------------------------------------------------------


def sent(log: segstore.PartitionLog, keys: list[bytes | None]) -> object:
    return append_batches(log, Columns([b"v"] * len(keys), keys))


APPENDS: dict[str, Any] = {
    "append": lambda log: log.append(b"v"),
    "append_batch without keys": lambda log: log.append_batch([b"v"]),
    "append_batch with some": lambda log: log.append_batch([b"v", b"w"], keys=[b"k", None]),
    "append_batch of Arrow": lambda log: log.append_batch([b"v", b"w"], keys=pa.array([None, b"k"])),
    "a producer's batch": lambda log: sent(log, [b"k", None]),
    "a producer's record": lambda log: append_record(log, b"v", None, (), START_MS),
}


@pytest.mark.parametrize("name", APPENDS)
def test_a_compacted_topic_takes_no_record_without_a_key(store_dir: Path, name: str) -> None:
    with open_compacted(store_dir, Clock(START_MS), cleanup_policy="compact,delete") as store:
        log = store.partition("t")
        with pytest.raises(segstore.errors.InvalidRecordError, match="no key"):
            APPENDS[name](log)
        assert log.end_offset == 0
        log.append_batch([b"", b""], keys=pa.array([None, b"k", b""])[1:])
        sent(log, [b"", b"k"])
        assert log.end_offset == 4
        store.alter_topic("t", {"cleanup.policy": "delete"})
        APPENDS[name](log)
