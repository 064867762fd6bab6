"""What the log cleaner writes: several passes and segments, codecs, stamps; the same with every buffer."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from compaction import bases, batches, clean, fill, latest, open_compacted, pairs, put, roll
from stores import START_MS, Clock, raw_batches, write_segment

import segstore
from segstore.storage import cleaner


def test_keys_that_do_not_fit_take_several_passes(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        expected = fill(store, 300, 40)
        roll(store)
        advanced: list[int] = []
        partition = store.partition("t").partition_for_write()
        config = segstore.config.StoreConfig.parse({"log.cleaner.io.buffer.load.factor": 0.02})
        done = cleaner.clean(partition, config, 0, cleaner.Throttler(), None, advanced.append)
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
        assert all(s.size <= 4000 for s in log.partition_for_write().view.segments)
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
