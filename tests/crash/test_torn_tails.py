"""Logs after a crash and with bit rot: torn tails are cut, gaps are found, bit rot is kept and reported."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from stores import (
    START_MS,
    killed,
    logs,
    values,
    write_topic,
)

import segstore
from segstore import CorruptRecordError

BATCHES = [[b"%d-%d" % (i, j) for j in range(3)] for i in range(4)]


def flat(batches: list[list[bytes]]) -> list[bytes]:
    return [value for batch in batches for value in batch]


def left_by_a_kill(tmp_path: Path, target: Path, batches: list[list[bytes]], synced: int) -> Path:
    """A store of one segment, killed; the first `synced` of the batches lie below the recovery point."""
    live = tmp_path / "live"
    store = write_topic(live, batches[:synced], close=False)
    store.flush()
    for batch in batches[synced:]:
        store.partition("t").append_batch(batch)
    killed(live, target)
    store.close()
    return logs(target)[0]


def batch_positions(log: Path) -> list[int]:
    """Where each batch begins, and where the last one ends."""
    data, at, found = log.read_bytes(), 0, []
    while at < len(data):
        found.append(at)
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    return [*found, at]


def quarantined(path: Path) -> list[bytes]:
    there = path / ".segstore" / "quarantine"
    return [p.read_bytes() for p in sorted(there.iterdir())] if there.exists() else []


# --- torn tails and holes ---------------------------------------------------------------


@pytest.mark.parametrize("left", [1, 7, 8, 12, 17, 60, 61, 62, -1], ids=lambda n: f"{n}-bytes-left")
@pytest.mark.parametrize("synced", [0, 2, 3])
def test_torn_tail_is_cut_at_the_last_whole_batch(
    tmp_path: Path, store_dir: Path, left: int, synced: int
) -> None:
    log = left_by_a_kill(tmp_path, store_dir, BATCHES, synced)
    *_, last, end = batch_positions(log)
    os.truncate(log, last + left if left > 0 else end + left)
    torn = log.stat().st_size - last
    with segstore.open(store_dir) as store:
        (done,) = store.recovered
        assert (done.cut_bytes, done.end_offset, done.quarantined) == (torn, 9, ())
        assert values(store.partition("t")) == flat(BATCHES[:3])
        assert log.stat().st_size == last
        assert store.partition("t").append(b"next") == 9


@pytest.mark.parametrize("zeros", [1, 61, 5000])
def test_a_tail_of_zeros_is_cut(tmp_path: Path, store_dir: Path, zeros: int) -> None:
    log = left_by_a_kill(tmp_path, store_dir, BATCHES, 1)
    size = log.stat().st_size
    os.truncate(log, size + zeros)
    with segstore.open(store_dir) as store:
        assert store.recovered[0].cut_bytes == zeros
        assert values(store.partition("t")) == flat(BATCHES)
    assert (log.stat().st_size, quarantined(store_dir)) == (size, [])


def test_whole_batches_behind_a_hole_are_quarantined(tmp_path: Path, store_dir: Path) -> None:
    log = left_by_a_kill(tmp_path, store_dir, BATCHES, 1)
    at = batch_positions(log)
    data = bytearray(log.read_bytes())
    data[at[1] : at[2]] = bytes(at[2] - at[1])
    log.write_bytes(data)
    with segstore.open(store_dir) as store:
        (done,) = store.recovered
        assert (done.end_offset, done.cut_bytes, len(done.quarantined)) == (3, at[4] - at[1], 1)
        assert values(store.partition("t")) == BATCHES[0]
    assert quarantined(store_dir) == [bytes(data[at[1] :])]


def test_recovery_keeps_what_lies_in_later_segments(tmp_path: Path, store_dir: Path) -> None:
    live = tmp_path / "live"
    store = write_topic(live, [[b"x" * 300]] * 9, {"segment.bytes": 1000}, close=False)
    killed(live, store_dir)
    store.close()
    (store_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    (store_dir / ".segstore" / "ends").unlink()  # after a power cut nothing in it need be true
    first, *later = logs(store_dir)
    cut = [log.read_bytes() for log in later]
    os.truncate(first, first.stat().st_size - 1)
    with segstore.open(store_dir) as store:
        (done,) = store.recovered
        assert (done.end_offset, done.removed_segments) == (1, len(later))
    assert len(later) >= 2
    assert quarantined(store_dir) == cut
    assert logs(store_dir) == [first]


def test_a_time_entry_of_a_batch_that_is_gone_goes_too(tmp_path: Path, store_dir: Path) -> None:
    live = tmp_path / "live"
    store = write_topic(live, [[b"x" * 300]] * 4, {"segment.bytes": 1000}, close=False)
    killed(live, store_dir)
    store.close()
    (store_dir / ".segstore" / "ends").unlink()
    first, *later = logs(store_dir)
    for log in later:
        log.unlink()
    os.truncate(first, first.stat().st_size - 1)  # the sealed time index ends with the batch that is cut
    with segstore.open(store_dir) as store:
        end = store.partition("t").end_offset
        assert store.partition("t").offset_for_time(START_MS + 1000) is None
        assert store.partition("t").append(b"y") == end


# --- bit rot ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["clean", "unclean", "reader"])
@pytest.mark.parametrize("bad", [0, 1, 3])
def test_bit_rot_is_never_cut(tmp_path: Path, how: str, bad: int) -> None:
    path = tmp_path / "store"
    if how == "unclean":
        log = left_by_a_kill(tmp_path, path, BATCHES, 4)
    else:
        write_topic(path, BATCHES)
        log = logs(path)[0]
    at = batch_positions(log)
    data = bytearray(log.read_bytes())
    data[at[bad] + 63] ^= 0x40
    log.write_bytes(data)
    with segstore.open(path, mode="r" if how == "reader" else "rw") as store:
        part = store.partition("t")
        for i, batch in enumerate(BATCHES):
            if i == bad:
                with pytest.raises(CorruptRecordError, match="CRC") as caught:
                    part.read(3 * i + 1)
                error = caught.value
                assert (error.file, error.position) == (str(log), at[bad])
                assert 3 * i <= error.offset <= 3 * i + 1
            else:
                assert list(part.read(3 * i, max_bytes=0).values) == batch
        assert part.end_offset == 12
    assert log.read_bytes() == bytes(data)
    found = segstore.check(path)
    assert (found[0].path, found[0].position) == (str(log), at[bad])
    # The closing entry of the time index may be that batch's.
    assert all(f.path.endswith(".timeindex") for f in found[1:])


def test_a_read_ends_before_a_bad_batch(tmp_path: Path) -> None:
    write_topic(tmp_path / "s", BATCHES)
    log = logs(tmp_path / "s")[0]
    data = bytearray(log.read_bytes())
    data[batch_positions(log)[2] + 63] ^= 1
    log.write_bytes(data)
    with segstore.open(tmp_path / "s", mode="r") as store:
        found = store.partition("t").read(0)
        assert (list(found.values), found.next_offset) == (flat(BATCHES[:2]), 6)
