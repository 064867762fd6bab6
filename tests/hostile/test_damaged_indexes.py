"""Promise: an index that is lost, zeroed or full of garbage is rebuilt; a reader changes nothing."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from stores import START_MS, killed, logs, stamps, tree, values, write_topic

import segstore

pytestmark = pytest.mark.kind("damage")

Damage = Callable[[Path, random.Random], None]
N = 120


def _entries(path: Path) -> tuple[struct.Struct, list[tuple[int, int]]]:
    entry = struct.Struct(">ii" if path.suffix == ".index" else ">qi")
    data = path.read_bytes()
    return entry, list(entry.iter_unpack(data[: len(data) - len(data) % entry.size]))


def _write(path: Path, entry: struct.Struct, entries: list[tuple[int, int]]) -> None:
    path.write_bytes(b"".join(entry.pack(*e) for e in entries))


def lost(path: Path, rng: random.Random) -> None:
    path.unlink()


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def zeroed(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def zeros_within(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    third = len(data) // 3
    data[third : 2 * third] = bytes(third)
    path.write_bytes(data)


def garbage(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def small_garbage(path: Path, rng: random.Random) -> None:
    """Rising numbers inside the segment that point nowhere in particular."""
    entry, _ = _entries(path)
    pairs = zip(sorted(rng.sample(range(N), 10)), sorted(rng.sample(range(2000), 10)), strict=True)
    made = [(a, b) if path.suffix == ".index" else (START_MS + b, a) for a, b in pairs]
    _write(path, entry, made)


def short(path: Path, rng: random.Random) -> None:
    entry, entries = _entries(path)
    _write(path, entry, entries[: len(entries) // 2])


def torn(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def out_of_order(path: Path, rng: random.Random) -> None:
    entry, entries = _entries(path)
    rng.shuffle(entries)
    _write(path, entry, entries)


def pointing_outside(path: Path, rng: random.Random) -> None:
    entry, entries = _entries(path)
    last = (2**31 - 2, 2**31 - 1) if path.suffix == ".index" else (2**62, 2**31 - 1)
    _write(path, entry, [*entries[:-1], last])


def another_segments(path: Path, rng: random.Random) -> None:
    """The entries of a segment whose batches lie elsewhere."""
    entry, entries = _entries(path)
    _write(path, entry, [(a + 1, b + 1) for a, b in entries])


def preallocated(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + bytes(65536))


DAMAGES: list[Damage] = [
    lost, empty, zeroed, zeros_within, garbage, small_garbage, short, torn, out_of_order,
    pointing_outside, another_segments, preallocated,
]  # fmt: skip


def built(path: Path, state: str, tmp_path: Path) -> None:
    """Three segments or so of small batches, each with an index entry."""
    live = path if state != "unclean" else tmp_path / "live"
    batches = [[b"%05d" % i] for i in range(N)]
    store = write_topic(live, batches, {"segment.bytes": 4096, "index.interval.bytes": 100}, close=False)
    if state == "unclean":
        killed(live, path)
    store.close()


def check_reads(log: segstore.PartitionLog, rng: random.Random) -> None:
    everything = [b"%05d" % i for i in range(N)]
    assert values(log) == everything
    stamps_of = [r.timestamp for r in log.read(0, max_bytes=1 << 30)]
    for offset in [*rng.sample(range(N), 20), 0, N - 1]:
        assert log.read(offset, max_bytes=0)[0].value == everything[offset]
        assert log.offset_for_time(stamps_of[offset]) == offset
    assert log.offset_for_time(stamps_of[-1] + 1) is None


@pytest.mark.parametrize("state", ["clean", "unclean"])
@pytest.mark.parametrize("which", ["sealed", "active"])
@pytest.mark.parametrize("kinds", [[".index"], [".timeindex"], [".index", ".timeindex"]], ids="+".join)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_damaged_index(
    tmp_path: Path,
    store_dir: Path,
    damage: Damage,
    kinds: list[str],
    which: str,
    state: str,
    rng: random.Random,
) -> None:
    built(store_dir, state, tmp_path)
    log = logs(store_dir)[0 if which == "sealed" else -1]
    for kind in kinds:
        damage(log.with_suffix(kind), rng)
    before, held = stamps(store_dir), tree(store_dir)
    with segstore.open(store_dir, mode="r") as store:
        check_reads(store.partition("t"), rng)
    assert stamps(store_dir) == before
    assert tree(store_dir) == held
    with segstore.open(store_dir) as store:
        check_reads(store.partition("t"), rng)
        store.partition("t").append(b"more")
    with segstore.open(store_dir) as store:
        assert store.partition("t").read(N)[0].value == b"more"


def test_half_a_time_entry(store_dir: Path) -> None:
    """A power cut has left its timestamp, and of its offset zeros: that of the batch's first record."""
    write_topic(store_dir, [[b"a", b"b"]], {"index.interval.bytes": 1})
    path = logs(store_dir)[0].with_suffix(".timeindex")
    entry, [(stamp, last)] = _entries(path)
    assert last == 1
    _write(path, entry, [(stamp, 0)])
    with segstore.open(store_dir, mode="r") as store:
        assert store.partition("t").offset_for_time(stamp) == 0
    assert len(segstore.check(store_dir)) == 1
    with segstore.open(store_dir) as store:
        store.partition("t").append(b"c")
    assert _entries(path)[1][0] == (stamp, 1)
