"""Promise: C appends to a follower's log, whose readers see up to the leader's high watermark, as the long
way does: the same bytes, indexes and ends. Nothing is shown before its time.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FailingFiles
from paused_tails import let_tails_open
from producers import Mixture, send, state_of, told
from replica_logs import closed, log_bytes, opened, replica_of

import segstore
from segstore import CorruptRecordError, InvalidArgumentError, StorageError
from segstore._native import lib
from segstore.records import scan
from segstore.storage.log.replica import Replica
from segstore.storage.log.transaction_markers import end_transaction

STEPS = 150


class Twin:
    """A follower that C may append to, or not."""

    def __init__(self, path: Path, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._short, self._monkeypatch = path, short, monkeypatch
        self.log = opened(path, config={"segment.bytes": 4000, "index.interval.bytes": 100})
        self.replica = replica_of(self.log)
        self.replica.follow()
        self.lent = 0

    def do(self, step: Any) -> Any:
        """Return what a step gives, its error, and all that is seen of the log behind it."""
        let_tails_open(self._monkeypatch, self._short)
        try:
            told = step(self.replica)
        except (CorruptRecordError, InvalidArgumentError) as error:
            told = type(error)
        partition = self.log.partition_for_write()
        self.lent += partition.tail.may_be_open
        view, slot = partition.visible.view, partition.visible.publisher._slot
        written = partition.visible.written
        published = partition.visible.publisher._ends._numbers([slot])
        assert published is not None
        # A segment that begins where readers see the end has nothing for them.
        bases = [base for base in view.bases if base < view.end_offset or base == view.start_offset]
        return (
            told, bases, view[2:4], view.stable_offset, written.end_offset, written.end_position,
            published[1:5], published[7],  # syncs in the background move the recovery point
            self.replica.log_end_offset, self.replica.high_watermark,
        )  # fmt: skip

    def files(self) -> dict[str, bytes]:
        closed(self.log)
        found = sorted((self.path / "t-0").iterdir())
        return {each.name: each.read_bytes() for each in found if each.suffix != ".metadata"}


@pytest.fixture
def led(tmp_path: Path, rng: random.Random) -> list[bytes]:
    """The batches of a leader's log: mostly plain ones, some of producers and transactions, of two epochs."""
    log = opened(tmp_path / "leader", config={})
    mixture = Mixture(rng, log)
    for n in range(STEPS):
        if n in (STEPS // 3, STEPS // 2):
            mixture.step()
        elif n == STEPS * 2 // 3:
            replica_of(log).begin_epoch(4)
            replica_of(log).lead(4)
        else:
            log.append_batch(
                [b"v" * rng.randrange(80)] * rng.randrange(1, 4), timestamps=1_000_000_000_000 + n
            )
    closed(log)
    data = log_bytes(tmp_path / "leader" / "t-0")
    found, at = [], 0
    for size in scan(data)[0]["size"].tolist():
        found.append(data[at : at + size])
        at += size
    return found


def _taken(replica: Replica, data: bytes, high_watermark: int) -> int:
    """Append as a fetcher does: the next batches the short way, all else the long way."""
    end = replica.append_next(data, high_watermark) if high_watermark >= replica.high_watermark else None
    return replica.append_as_follower(data, high_watermark) if end is None else end


def test_both_ways_write_the_same(
    tmp_path: Path, led: list[bytes], rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = [Twin(tmp_path / name, name == "short", monkeypatch) for name in ("short", "long")]

    def both(step: Any) -> None:
        short, long = (twin.do(step) for twin in twins)
        assert short == long

    at = 0
    while at < len(led):
        count = rng.choice((1, 1, 1, 1, 2, 5, 20))
        data, end = b"".join(led[at : at + count]), twins[0].log.log_end_offset
        shown = rng.choice((end, end, end - 1, end + 1, end + 1000, 0))
        what = rng.random()
        if what < 0.05:
            bad = bytearray(data)
            bad[rng.randrange(17, len(led[at]))] ^= 1  # of offset and leader epoch the CRC does not tell
            both(lambda replica, bad=bytes(bad), shown=shown: _taken(replica, bad, shown))
            continue
        if what < 0.1 and at:
            both(lambda replica, again=led[at - 1], shown=shown: _taken(replica, again, shown))
            continue
        both(lambda replica, data=data, shown=shown: _taken(replica, data, shown))
        at += count
        end = twins[0].log.log_end_offset
        if what > 0.8:
            to = rng.randrange(end + 1) if what > 0.95 else end
            both(lambda replica, to=to: replica.set_high_watermark(to))
        elif what > 0.77:
            both(lambda replica: replica.flush())
    assert twins[0].lent, "C was not asked"
    assert not twins[1].lent
    assert twins[0].files() == twins[1].files()
    for twin in twins:
        assert segstore.check(twin.path) == []


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_readers_see_all_below_a_high_watermark_that_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    """Also where a segment was begun above it, in which C appends then."""
    log = opened(tmp_path / "leader", config={})
    for n in range(100):
        log.append(b"%d" % n * 40)
    closed(log)
    data = log_bytes(tmp_path / "leader" / "t-0")
    twin, at = Twin(tmp_path / "follower", True, monkeypatch), 0
    for n, size in enumerate(scan(data)[0]["size"].tolist()):
        shown = max(n - lag, 0)
        twin.do(lambda replica, batch=data[at : at + size], shown=shown: _taken(replica, batch, shown))
        if n % 10 == 0:
            shown = n + 1
            twin.do(lambda replica, shown=shown: replica.set_high_watermark(shown))
        values = [record.value for record in twin.log.read(0)]
        assert values == [b"%d" % i * 40 for i in range(twin.log.end_offset)]
        at += size
    assert twin.lent
    assert len(twin.replica.written.segments) > 2
    closed(twin.log)


def test_a_cut_takes_the_tail_back(tmp_path: Path, led: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(tmp_path / "follower", True, monkeypatch)
    for data in led[:20]:
        twin.do(lambda replica, data=data: _taken(replica, data, 0))
    end = int(scan(led[9])[0]["last_offset"][0]) + 1
    assert twin.log.partition_for_write().tail.may_be_open
    assert twin.replica.truncate_to(end).end_offset == end == twin.log.log_end_offset
    for data in led[10:20]:
        twin.do(lambda replica, data=data: _taken(replica, data, 3))
    assert twin.log.partition_for_write().tail.native.c.appends > 5  # type: ignore[union-attr]
    assert log_bytes(twin.path / "t-0") == b"".join(led[:20])
    assert twin.log.end_offset == 3
    closed(twin.log)


def test_a_follower_that_stamps_takes_its_leader_s_times(
    tmp_path: Path, led: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where these are older than the follower's clock lets a segment become."""
    config = {"message.timestamp.type": "LogAppendTime", "segment.ms": 1000}
    twins = [Twin(tmp_path / name, name == "short", monkeypatch) for name in ("short", "long")]
    for twin in twins:
        twin.log.store.alter_topic("t", config)  # type: ignore[attr-defined]
    for data in led[:20]:
        short, long = (twin.do(lambda replica, data=data: _taken(replica, data, 0)) for twin in twins)
        assert short == long
    assert twins[0].log.partition_for_write().tail.native.c.appends > 10  # type: ignore[union-attr]
    assert [log_bytes(twin.path / "t-0") for twin in twins] == [b"".join(led[:20])] * 2
    for twin in twins:
        closed(twin.log)


def test_a_follower_that_stamps_rolls_by_its_leader_s_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the follower's clock is behind these."""
    log = opened(tmp_path / "leader", config={"message.timestamp.after.max.ms": 1 << 62})
    for n in range(10):
        log.append(b"v", timestamp=3_000_000_000_000 + 600 * n)
    closed(log)
    data = log_bytes(tmp_path / "leader" / "t-0")
    size, bases = len(data) // 10, []
    for name in ("short", "long"):
        twin = Twin(tmp_path / name, name == "short", monkeypatch)
        config = {"message.timestamp.type": "LogAppendTime", "segment.ms": 1000}
        twin.log.store.alter_topic("t", config)  # type: ignore[attr-defined]
        for at in range(0, len(data), size):
            twin.do(lambda replica, batch=data[at : at + size]: _taken(replica, batch, 0))
        bases.append([segment.base_offset for segment in twin.replica.written.segments])
        closed(twin.log)
    assert bases == [[0, 2, 4, 6, 8]] * 2


def test_all_that_c_has_appended_is_kept(
    tmp_path: Path, led: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = Twin(tmp_path / "follower", True, monkeypatch)
    for data in led[:20]:
        twin.do(lambda replica, data=data: _taken(replica, data, 0))
    assert twin.log.partition_for_write().tail.native.c.appends > 10  # type: ignore[union-attr]
    kept = twin.replica.keep_all()
    assert b"".join(Path(path).read_bytes() for path in kept) == b"".join(led[:20])
    closed(twin.log)


def sent_by_producers(path: Path, rng: random.Random) -> list[bytes]:
    """The batches of a leader's log of six producers, some in a transaction at times."""
    log = opened(path, config={})
    mixture = Mixture(rng, log)
    for pid in range(1, 7):
        send(log, pid, 0)
        mixture.next[pid] = 0, 1
    for n in range(STEPS):
        if n == STEPS // 2:
            for pid in range(1, 7):
                send(log, pid, mixture.next[pid][1], txn=True)
                end_transaction([log], pid, 0, 3, commit=bool(pid % 2))
                mixture.next[pid] = 0, mixture.next[pid][1] + 1
        pid, count = rng.randrange(1, 7), rng.choice([1, 1, 3])
        send(log, pid, mixture.next[pid][1], count)
        mixture.next[pid] = 0, mixture.next[pid][1] + count
    closed(log)
    data = log_bytes(path / "t-0")
    ends = np.cumsum(scan(data)[0]["size"])
    return [data[end - size : end] for end, size in zip(ends, scan(data)[0]["size"], strict=True)]


def test_r35_a_follower_takes_in_producers_as_the_long_way_does(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = sent_by_producers(tmp_path / "leader", rng)
    twins = [Twin(tmp_path / name, name == "short", monkeypatch) for name in ("short", "long")]
    at = short = 0
    while at < len(sent):
        count = rng.choice([1, 1, 1, 2, 4])
        data, native = b"".join(sent[at : at + count]), twins[0].log.partition_for_write().tail.native
        before = native.c.appends
        both = [
            twin.do(lambda replica, data=data: _taken(replica, data, replica.log_end_offset))
            for twin in twins
        ]
        assert both[0] == both[1]
        short += native.c.appends > before
        at += count
        if rng.random() < 0.05:
            tables = [state_of(twin.log) for twin in twins]
            expected = told(twins[0].path / "t-0").state.producers
            assert tables[0].producers == tables[1].producers == expected
            stamps = [[each.appended_ms for each in table.producers.values()] for table in tables]
            assert stamps[0] == stamps[1]
            assert tables[0].map_end_offset == tables[1].map_end_offset
    assert short > STEPS // 3
    assert twins[0].files() == twins[1].files()


def test_r35_a_follower_leaves_unknown_producers_and_transactions_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In C the table never grows, and neither a transaction nor the last stable offset begins."""
    led = opened(tmp_path / "leader", config={})
    for _ in range(2):  # behind which C appends
        led.append(b"plain")
    for pid, seq in ((7, 0), (7, 1), (8, 0), (8, 1), (7, 2)):
        send(led, pid, seq)
    send(led, 7, 3, txn=True)
    end_transaction([led], 7, 0, 3, commit=True)
    send(led, 7, 4)
    closed(led)
    data, at = log_bytes(tmp_path / "leader" / "t-0"), 0
    twin, by_c = Twin(tmp_path / "follower", True, monkeypatch), list[bool]()
    for end in np.cumsum(scan(data)[0]["size"]).tolist():
        native, led_to = twin.log.partition_for_write().tail.native, twin.log.log_end_offset
        before = native.c.appends
        twin.do(lambda replica, part=data[at:end], shown=led_to + 1: _taken(replica, part, shown))
        by_c.append(native.c.appends > before)
        at = end
    assert by_c == [False, False, False, True, False, True, True, False, False, True]
    closed(twin.log)


@pytest.mark.parametrize("closed_to_c", [False, True])
def test_a_follower_s_flush_that_c_leaves_is_made_by_python(
    tmp_path: Path, led: list[bytes], closed_to_c: bool
) -> None:
    """C leaves it where Python may be about to sync."""
    log = opened(tmp_path / "follower", config={"flush.messages": 1})
    replica = replica_of(log)
    replica.follow()
    for data in led[:5]:
        _taken(replica, data, 0)
    partition = log.partition_for_write()
    tail, commit = partition.tail.native, partition.flusher._commit
    appends = tail.c.appends
    assert lib.seg_tail_syncs(tail.c)
    commit.closed = closed_to_c
    end = replica.append_next(led[5], 0)
    assert tail.c.appends == appends + 1
    assert partition.recovery_point == end == log.log_end_offset
    closed(log)


class HalfWritten(FailingFiles):
    """Files of which a failing `pwrite` has written a half."""

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            super().before(name, args, kwargs)
        except OSError:
            handle, data, position = args
            os.pwrite(handle.fd, data[: len(data) // 2], position)
            raise


def test_a_failed_write_leaves_nothing_at_a_follower(tmp_path: Path, led: list[bytes]) -> None:
    files = HalfWritten({"pwrite"}, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), nth=0)
    log = opened(tmp_path / "follower", files, config={})
    replica = replica_of(log)
    replica.follow()
    for data in led[:5]:
        assert replica.append_next(data, 0) is not None
    assert log.partition_for_write().tail.may_be_open
    files.arm()
    with pytest.raises(StorageError):
        replica.append_next(led[5], 0)
    assert log_bytes(tmp_path / "follower" / "t-0") == b"".join(led[:5])
    for data in led[5:10]:
        assert replica.append_next(data, 0) is not None
    assert log_bytes(tmp_path / "follower" / "t-0") == b"".join(led[:10])
    closed(log)
    assert segstore.check(tmp_path / "follower") == []
