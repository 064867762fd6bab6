"""Promise: whatever is appended, cut, shown and reopened, a replica's log is a prefix of its leader's bytes;
all that follows is as a plain model reads it from the bytes below the high watermark.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from producers import Mixture, assert_said, committed
from replica_logs import closed, ends, log_bytes, opened, part_below, read, replica_of

import segstore
from segstore.records import decode, scan
from segstore.records.control import ABORT, parse_control
from segstore.storage.log.replica import Replica
from segstore.storage.segment import index_files

pytestmark = pytest.mark.kind("models")

STEPS = 120


def led_bytes(path: Path, rng: random.Random) -> bytes:
    log = opened(path)
    mixture = Mixture(rng, log)
    for epoch in (1, 3, 4):
        for _ in range(25):
            mixture.step()
        replica_of(log).begin_epoch(epoch)
    closed(log)
    return log_bytes(path / "t-0")


def visible_of(data: bytes, high_watermark: int) -> tuple[int, list[int], list[int]]:
    """The last stable offset, and the offsets that read_uncommitted and read_committed give, by the batches
    below the high watermark alone.
    """
    open_since: dict[int, int] = {}
    mine: dict[int, list[int]] = {}
    seen: list[int] = []
    aborted: set[int] = set()
    batches = scan(data)[0]
    for i in range(len(batches)):
        one = batches[i : i + 1]
        first, last, pid = (int(one[name][0]) for name in ("base_offset", "last_offset", "producer_id"))
        if last >= high_watermark:
            break
        attributes = int(one["attributes"][0])
        if attributes & 32:
            record = decode(data, one, "")[0]
            kind, _ = parse_control(record.key, record.value, file="", position=0, offset=0)
            aborted |= set(mine.pop(pid, [])) if kind == ABORT else set()
            mine.pop(pid, None)
            open_since.pop(pid, None)
            continue
        seen += range(first, last + 1)
        if attributes & 16:
            open_since.setdefault(pid, first)
            mine.setdefault(pid, []).extend(range(first, last + 1))
    stable = min([high_watermark, *open_since.values()])
    return stable, seen, [o for o in seen if o < stable and o not in aborted]


def assert_seen(log: segstore.PartitionLog, data: bytes, high_watermark: int) -> None:
    stable, seen, decided = visible_of(data, high_watermark)
    assert (log.end_offset, log.last_stable_offset) == (high_watermark, stable)
    assert [record.offset for record in read(log)] == seen
    assert committed(log) == decided


def assert_epochs(replica: Replica, batches: NDArray[np.void]) -> None:
    """Each batch's epoch is the one that the file has for its offset (P8)."""
    for epoch, base in batches[["leader_epoch", "base_offset"]].tolist():
        assert max(entry for entry in replica.epochs if entry[1] <= base)[0] == epoch


def assert_indexed(log: segstore.PartitionLog) -> None:
    """The index files of closed segments are those that the log alone gives."""
    for segment in list(log.partition_for_write().segments)[:-1]:
        offsets, times = index_files.build(segment.pool.files, segment, segment.size)
        assert Path(segment.file(".index")).read_bytes() == offsets
        assert Path(segment.file(".timeindex")).read_bytes() == times


class Follower:
    """A replica, the model of its log (`data`), and its steps."""

    def __init__(self, path: Path, led: bytes, rng: random.Random) -> None:
        self.path, self.led, self.rng = path, led, rng
        self.data, self.high_watermark = b"", 0
        self.batches = scan(led)[0]
        self._open()

    def _open(self) -> None:
        self.log = opened(self.path)
        self.replica = replica_of(self.log, self.high_watermark)

    @property
    def end(self) -> int:
        return ends(self.data)[-1] if self.data else 0

    def fetch(self) -> None:
        piece = self.led[len(self.data) :][: self.rng.randrange(70, 4000)]
        whole = int(scan(piece)[0]["size"].sum())
        self.replica.append_as_follower(piece)
        self.data = self.led[: len(self.data) + whole]

    def show(self) -> None:
        self.high_watermark = self.rng.choice([0, *ends(self.data)] if self.data else [0])
        self.log.partition_for_write().visible.set_high_watermark(self.high_watermark)

    def cut(self) -> None:
        offset = self.rng.randrange(self.end + 2)
        below, kept = part_below(self.data, offset), self.replica.truncate_to(offset).kept
        assert b"".join(Path(path).read_bytes() for path in kept) == self.data[len(below) :]
        self.data, self.high_watermark = below, min(self.high_watermark, ends(below)[-1] if below else 0)

    def flush(self) -> None:
        self.log.flush()

    def reopen(self) -> None:
        closed(self.log)
        assert segstore.check(self.path) == []
        assert_said(self.path / "t-0")
        self._open()

    def check(self) -> None:
        assert log_bytes(self.path / "t-0") == self.data
        assert self.log.log_end_offset == self.end
        assert self.log.partition_for_write().recovery_point <= self.end
        assert_seen(self.log, self.data, self.high_watermark)
        assert_epochs(self.replica, self.batches[: len(ends(self.data))])
        assert_indexed(self.log)


def test_a_replica_is_as_its_model(tmp_path: Path, rng: random.Random) -> None:
    follower = Follower(tmp_path / "follower", led_bytes(tmp_path / "leader", rng), rng)
    steps = [follower.fetch, follower.show, follower.cut, follower.flush, follower.reopen]
    for _ in range(STEPS):
        rng.choices(steps, (10, 8, 4, 2, 1))[0]()
        follower.check()
    closed(follower.log)
