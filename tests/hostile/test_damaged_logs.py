"""Reads of a damaged log: nothing is skipped silently, and every sound batch can be reached."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import logs, raw_batches, value_of, write_segment, write_topic

import segstore
from segstore.files import Files, Handle

PER_BATCH, N = 10, 100
LENGTH_AT, MAGIC_AT, DELTA_AT = 8, 16, 23
Edit = Callable[[list[Path]], None]


def batches(path: Path) -> list[int]:
    """Where the batches of a log begin."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        found.append(at)
        at += struct.unpack_from(">i", data, at + LENGTH_AT)[0] + 12
    return found


def poke(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def field(log: int, batch: int, at: int, data: bytes) -> Edit:
    """An edit of some bytes of a batch's header."""
    return lambda paths: poke(paths[log], batches(paths[log])[batch] + at, data)


def cut(log: int, batch: int, more: int) -> Edit:
    return lambda paths: os.truncate(paths[log], batches(paths[log])[batch] + more)


def remove(log: int) -> Edit:
    def edit(paths: list[Path]) -> None:
        for suffix in (".log", ".index", ".timeindex"):
            paths[log].with_suffix(suffix).unlink()

    return edit


MANY = struct.pack(">i", 1 << 20)
# What is edited of four segments of 30 offsets (the last has ten); the offsets that can't be read then,
# and where each of them leads.
CASES: list[tuple[str, Edit, range]] = [
    ("a length that is too large", field(0, 1, LENGTH_AT, MANY), range(10, 20)),
    ("a length that is too large, the segment's last", field(0, 2, LENGTH_AT, MANY), range(20, 30)),
    ("a length that is too large, the log's last", field(3, 0, LENGTH_AT, MANY), range(90, 100)),
    ("a last offset delta that is too small", field(0, 1, DELTA_AT, bytes(4)), range(10, 20)),
    ("a last offset delta that is too small, the last", field(0, 2, DELTA_AT, bytes(4)), range(20, 30)),
    ("a last offset delta that is too large", field(0, 1, DELTA_AT, MANY), range(10, 20)),
    ("a last offset delta that is too large, the log's last", field(3, 0, DELTA_AT, MANY), range(90, 100)),
    ("a magic, the segment's first", field(1, 0, MAGIC_AT, b"\7"), range(30, 40)),
    ("a magic, the segment's last", field(0, 2, MAGIC_AT, b"\7"), range(20, 30)),
    ("a magic, the log's last", field(3, 0, MAGIC_AT, b"\7"), range(90, 100)),
    ("the first segment missing", remove(0), range(30)),
    ("a middle segment missing", remove(1), range(30, 60)),
    ("a sealed segment cut between batches", cut(0, 2, 0), range(20, 30)),
    ("a sealed segment cut within a batch", cut(0, 2, 100), range(20, 30)),
    ("a sealed segment cut within a header", cut(0, 2, 20), range(20, 30)),
    ("a sealed segment emptied", cut(1, 0, 0), range(30, 60)),
]  # fmt: skip


@pytest.fixture(params=CASES, ids=[name for name, _, _ in CASES])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, range]:
    root = tmp_path / "store"
    write_topic(
        root,
        [[value_of(o) for o in range(at, at + PER_BATCH)] for at in range(0, N, PER_BATCH)],
        {"segment.bytes": 1000},
    )
    assert [int(path.stem) for path in logs(root)] == [0, 30, 60, 90]
    _, edit, lost = request.param
    edit(logs(root))
    return root, lost


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_damage_is_told_with_the_way_on(damaged: tuple[Path, range], mode: str) -> None:
    root, lost = damaged
    with segstore.open(root, mode) as store:
        log = store.partition("t")
        if mode == "rw" and log.start_offset > lost.start:
            assert log.start_offset == lost.stop  # a first segment that is gone is below the start
            return
        for offset in range(N):
            if offset not in lost:
                record = log.read(offset, 1)[0]
                assert (record.offset, record.value) == (offset, value_of(offset))
                continue
            for most in (1, 1 << 20):
                with pytest.raises(segstore.CorruptRecordError) as told:
                    log.read(offset, most)
                assert told.value.next_offset == (log.end_offset if lost.stop == N else lost.stop)


def test_the_documented_loop_reaches_all_that_is_good(damaged: tuple[Path, range]) -> None:
    root, lost = damaged
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        at, found = log.start_offset, []
        while at < log.end_offset:
            before = at
            try:
                records = log.read(at)
                found += records.offsets.tolist()
                at = records.next_offset
            except segstore.CorruptRecordError as error:
                at = error.next_offset or 0
            assert at > before
        assert found == [o for o in range(N) if o not in lost]
        assert at == N


class RefusingFiles(Files):
    """The disk refuses the `nth` header that is looked for, and those behind it."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def seek_batch(self, handle: Handle, position: int, end: int, target: int, out: Any) -> int:
        self.left -= 1
        return super().seek_batch(handle, position, end, target, out) if self.left > 0 else -errno.EIO


@pytest.mark.parametrize("nth", range(1, 7))
def test_a_disk_that_refuses_is_no_damage(tmp_path: Path, nth: int) -> None:
    """Behind a damaged batch, too, where headers are looked for one by one."""
    with segstore.open(tmp_path) as store:
        store.create_topic("t")
        for i in range(3):
            store.partition("t").append(b"%d" % i * 50)
    poke(tmp_path / "t-0" / f"{0:020d}.log", 80, b"?")
    files = RefusingFiles(nth)
    with segstore.open(tmp_path, "r", files=files) as store, pytest.raises(segstore.StorageError) as caught:
        store.partition("t").read(0)
    assert files.left <= 0
    assert caught.value.errno == errno.EIO


def test_offsets_beyond_the_log_are_no_way_on_without_crcs(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_topic(root, [[value_of(o) for o in range(at, at + 10)] for at in (0, 10, 20)])
    field(0, 1, DELTA_AT, MANY)(logs(root))
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        assert log.read(0, check_crcs=False).next_offset == 10
        with pytest.raises(segstore.CorruptRecordError) as told:
            log.read(15, check_crcs=False)
        assert told.value.next_offset == 20
        assert log.read(25, check_crcs=False).next_offset == 30


def compacted(root: Path) -> Path:
    """A broker's directory: offsets 15 to 19, 30 to 39 and 45 to 59 were compacted away, segments end at
    20 and 40.
    """
    parts = (0, [*range(15)]), (20, [*range(20, 30)]), (40, [*range(40, 45), 60, 61]), (62, [62])
    for base, offsets in parts:
        write_segment(root / "t-0", base, raw_batches(offsets))
    return root


@pytest.mark.parametrize(
    ("offset", "first"), [(15, 20), (19, 20), (30, 40), (39, 40), (45, 60), (59, 60), (61, 61)]
)
def test_gaps_that_compaction_leaves_are_no_damage(tmp_path: Path, offset: int, first: int) -> None:
    with segstore.open(compacted(tmp_path), "r") as store:
        assert store.partition("t").read(offset, 1)[0].offset == first


def test_a_compacted_log_is_read_over_its_gaps(tmp_path: Path) -> None:
    with segstore.open(compacted(tmp_path), "r") as store:
        offsets = store.partition("t").read(0).offsets.tolist()
    assert offsets == [*range(15), *range(20, 30), *range(40, 45), 60, 61, 62]


@pytest.mark.parametrize(
    ("log", "batch", "offset", "back"),
    [(0, 2, 12, 20), (1, 1, 27, 40), (2, 0, 43, 60)],
    ids=["segment's last", "before a gap of segments", "before a gap of batches"],
)
def test_a_gap_behind_a_damaged_batch_is_not_believed(
    tmp_path: Path, log: int, batch: int, offset: int, back: int
) -> None:
    root = compacted(tmp_path)
    field(log, batch, DELTA_AT, bytes(4))(logs(root))
    with segstore.open(root, "r") as store, pytest.raises(segstore.CorruptRecordError) as told:
        store.partition("t").read(offset)
    assert told.value.next_offset == back


@pytest.mark.parametrize(
    ("cleaned", "legal"), [(None, False), (15, False), (16, True)], ids=["never", "up to it", "beyond"]
)
def test_a_gap_in_a_log_that_was_once_compacted(tmp_path: Path, cleaned: int | None, legal: bool) -> None:
    root = tmp_path / "store"
    write_topic(root, [])
    for path in (root / "t-0").iterdir():
        if path.suffix in (".log", ".index", ".timeindex"):
            path.unlink()
    compacted(root)
    if cleaned is not None:
        (root / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {cleaned}\n")
    (root / ".segstore/ends").unlink()
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        if legal:
            assert log.read(15)[0].offset == 20
        else:
            with pytest.raises(segstore.CorruptRecordError) as told:
                log.read(15)
            assert told.value.next_offset == 20


def timed(root: Path, config: dict | None = None) -> None:
    """Ten batches of ten records, stamped 1000 to 1099."""
    with segstore.open(root) as store:
        store.create_topic("t", config=config)
        for at in range(0, N, PER_BATCH):
            stamps = list(range(1000 + at, 1000 + at + PER_BATCH))
            store.partition("t").append_batch([b"v"] * PER_BATCH, timestamps=stamps)


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("at", [MAGIC_AT, LENGTH_AT, 70], ids=["magic", "length", "payload"])
def test_a_time_that_damage_may_hold_is_told(tmp_path: Path, at: int, sealed: bool) -> None:
    timed(tmp_path / "store")
    root = tmp_path / "store"
    if sealed:
        write_segment(root / "t-0", N, raw_batches([N]))
        (root / ".segstore/ends").unlink()
    field(0, 3, at, b"\7")(logs(root))
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        assert log.offset_for_time(1005) == 5
        assert log.offset_for_time(1029) == 29
        for time in (1030, 1035) if at == 70 else (1030, 1035, 1055, 1095):
            with pytest.raises(segstore.CorruptRecordError) as told:
                log.offset_for_time(time)
            assert told.value.next_offset == 40
        if at == 70:
            assert log.offset_for_time(1055) == 55


def test_an_index_leads_a_time_past_damage(tmp_path: Path) -> None:
    timed(tmp_path, {"index.interval.bytes": 1})
    field(0, 3, MAGIC_AT, b"\7")(logs(tmp_path))
    with segstore.open(tmp_path, "r") as store:
        log = store.partition("t")
        assert [log.offset_for_time(1000 + o) for o in (5, 29, 55, 95)] == [5, 29, 55, 95]
        assert log.offset_for_time(1100) is None
        with pytest.raises(segstore.CorruptRecordError):
            log.offset_for_time(1035)


def test_a_read_decompresses_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    size, count = 1 << 20, 150
    with segstore.open(tmp_path) as store:
        store.create_topic("t", config={"compression.type": "zstd", "segment.bytes": 2000})
        log = store.partition("t")
        for _ in range(0, count, 10):
            log.append_batch([bytes(size)] * 10, batch_bytes=size)
        assert log.size < 1 << 20
        at, held = 0, []
        while at < count:
            records = log.read(at)
            assert int(records.offsets[0]) == at
            assert records.next_offset == int(records.offsets[-1]) + 1
            at = records.next_offset
            held.append(len(records.arena))
        assert max(held) <= (64 << 20) + 2 * size
        assert len(held) == 3
