"""The cleaner's two code paths write the same files: C for uncompressed batches, Python for all others."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from compaction import clean, latest, open_compacted, roll
from faults import CountingFiles, FailingFiles
from stores import START_MS, Clock

import segstore
from segstore._native import lib
from segstore.storage.cleaner.offset_map import OffsetMap
from segstore.storage.cleaner.retain import Policy
from segstore.storage.cleaner.segment_reader import SegmentReader


def some(rng: random.Random, log: segstore.PartitionLog) -> None:
    """A batch of puts and deletes, some with headers, some compressed, some large."""
    n = rng.randrange(1, 30)
    values = [rng.choice([None, b"", rng.randbytes(rng.randrange(200))]) for _ in range(n)]
    keys = [b"%d" % rng.randrange(40) for _ in range(n)]
    headers = [[("h", rng.randbytes(3))] * rng.randrange(3) for _ in range(n)]
    log.append_batch(values, keys=keys, headers=headers, compression=rng.choice([None] * 9 + ["zstd"]))


def files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.glob("[0-9]*.*")}


def cleaned(path: Path, seed: int, chunk: int, memory: int) -> Iterator[dict[str, bytes]]:
    """The files after each of some cleanings of a log that a seed makes."""
    clock = Clock(START_MS)
    with open_compacted(path, clock, segment_bytes=20_000, delete_retention_ms=5) as store:
        rng = random.Random(seed)
        for _ in range(4):
            for _ in range(60):
                some(rng, store.partition("t"))
            roll(store)
            want = latest(store.partition("t"))
            clean(store, log_cleaner_io_buffer_size=chunk, log_cleaner_dedupe_buffer_size=memory)
            assert latest(store.partition("t")) == want
            clock.now += 10
            yield files(path / "t-0")


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 12, 1 << 19])
def test_both_ways_give_the_same(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    seed = rng.randrange(1 << 32)
    quick = list(cleaned(tmp_path / "quick", seed, chunk, 2 << 20))
    monkeypatch.setattr(SegmentReader, "put", lambda *_: 0)
    monkeypatch.setattr(Policy, "compresses", True)
    assert list(cleaned(tmp_path / "slow", seed, chunk, 2 << 20)) == quick


def test_plain_batches_take_few_calls(store_dir: Path) -> None:
    counting = CountingFiles()
    with open_compacted(store_dir, files=counting, segment_bytes=1 << 20) as store:
        log = store.partition("t")
        for nth in range(100):
            log.append_batch([b"%d" % nth] * 1000, keys=[b"k%d" % i for i in range(1000)])
        roll(store)
        segments = len(log.partition_for_write().view.segments) - 1
        counting.clear()
        done = clean(store, log_cleaner_io_buffer_size=1 << 16)
    assert done.records_after == 1000
    assert counting.count("read_by") == 2 * segments  # once for the keys, once for what stays
    logs = [args for name, args in counting.calls if name == "pwrite" and ".log" in args[0].path]
    assert len(logs) <= segments


def test_a_disk_that_does_not_read_is_told(store_dir: Path) -> None:
    failing = FailingFiles({"read_by"}, OSError(5, "Input/output error"), nth=0)
    with open_compacted(store_dir, files=failing) as store:
        for nth in range(50):
            store.partition("t").append(b"%d" % nth, key=b"k")
        roll(store)
        for nth in (1, 7):
            failing.arm(nth)
            with pytest.raises(OSError, match="Input/output"):
                clean(store)
        clean(store)
        assert latest(store.partition("t")) == {b"k": b"49"}


def test_what_c_refuses() -> None:
    stretch, offsets = SegmentReader(1 << 10, 1), OffsetMap(1 << 20, 0.9, 10)
    stretch._c.fd, stretch._c.position, stretch._c.end = -1, 0, 100
    assert lib.seg_map_stretch(offsets.c, stretch._c, 0) == -errno.EBADF
    stretch._c.raw_len = 0
    assert lib.seg_map_stretch(offsets.c, stretch._c, 0) == -errno.EINVAL
