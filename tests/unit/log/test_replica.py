"""Promise: a replica's log is its leader's, byte for byte, with all that follows from the bytes; what is cut
is gone everywhere, kept in the quarantine, and comes back as it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, FailingFiles
from producers import Mixture, assert_live, assert_said, send, state_of
from replica_logs import SMALL, closed, ends, log_bytes, opened, part_below, read, replica_of

import segstore
from segstore import CorruptRecordError, InvalidArgumentError, OffsetOutOfRangeError, StorageError
from segstore.records import scan
from segstore.storage.log.replica import Replica, checked
from segstore.storage.log.transaction_markers import end_transaction

STEPS = 40


@pytest.fixture
def led(tmp_path: Path, rng: random.Random) -> bytes:
    """The bytes of a leader's log: several producers, transactions, several epochs."""
    log = opened(tmp_path / "leader")
    mixture = Mixture(rng, log)
    for epoch in (1, 4):
        for _ in range(STEPS):
            mixture.step()
        replica_of(log).begin_epoch(epoch)
    closed(log)
    return log_bytes(tmp_path / "leader" / "t-0")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[segstore.PartitionLog]:
    log = opened(tmp_path / "follower")
    yield log
    closed(log)
    assert segstore.check(tmp_path / "follower") == []


def fetch(replica: Replica, data: bytes, rng: random.Random) -> None:
    """Append what a leader sends in pieces that end anywhere."""
    at = 0
    while at < len(data):
        piece = data[at : at + rng.randrange(70, 3000)]
        whole = scan(piece)[0]
        replica.append_as_follower(piece)
        at += int(whole["size"].sum())


# --- appends -------------------------------------------------------------------------------------


def test_of_what_was_fetched_the_whole_batches_below_an_end_are_taken(led: bytes, rng: random.Random) -> None:
    """What is read may go on behind the end that the leader gave: the thread that checks it ended there."""
    at = [*scan(led)[0]["position"].tolist(), len(led)]
    for _ in range(100):
        ended, end_offset = rng.randrange(at[0] + 1, len(led) + 1), rng.choice([*ends(led)])
        whole = max(position for position in at if position <= ended)
        expected = min(whole, len(part_below(led, end_offset)))
        found = checked(led[:ended], end_offset)
        assert (0 if found is None else sum(found.batches["size"].tolist())) == expected


def test_damage_in_what_was_fetched_is_told_below_an_end_alone(led: bytes) -> None:
    base, size = scan(led)[0]["base_offset"].tolist(), scan(led)[0]["size"].tolist()
    damaged = bytearray(led)
    damaged[sum(size[:4]) - 1] ^= 1
    found = checked(bytes(damaged), base[3])
    assert found is not None
    assert found.batches["size"].tolist() == size[:3]
    with pytest.raises(CorruptRecordError, match="CRC mismatch"):
        checked(bytes(damaged), base[4])


def test_a_follower_has_its_leaders_bytes(
    tmp_path: Path, led: bytes, log: segstore.PartitionLog, rng: random.Random
) -> None:
    replica = replica_of(log)
    fetch(replica, led, rng)
    directory = tmp_path / "follower" / "t-0"
    assert log_bytes(directory) == led
    assert log.log_end_offset == ends(led)[-1]
    batches = scan(led)[0]
    epochs = [(0, 0), *replica.epochs[1:]]
    assert [epoch for epoch, _ in epochs] == sorted(set(batches["leader_epoch"].tolist()) | {0})
    for epoch, start in epochs:
        assert (batches["base_offset"] >= start).sum() == (batches["leader_epoch"] >= epoch).sum()
    with log.partition_for_write().token:
        log.partition_for_write().visible.set_high_watermark(log.log_end_offset)
    assert_live(log, directory)
    assert_said(directory)
    closed(log)
    again = opened(tmp_path / "follower")
    assert_live(again, directory, reopened=True)
    assert again.end_offset == ends(led)[-1]
    closed(again)


def test_a_batch_that_the_data_end_within_is_left_out(log: segstore.PartitionLog, led: bytes) -> None:
    replica, first = replica_of(log), ends(led)[0]
    size = int(scan(led)[0]["size"][0])
    assert replica.append_as_follower(led[: size + 60]) == first
    assert replica.append_as_follower(b"") == first
    assert replica.append_as_follower(led[size : size + 30]) == first


@pytest.mark.parametrize(("change", "wrong"), [("crc", CorruptRecordError), ("again", InvalidArgumentError)])
def test_what_is_not_appended(
    tmp_path: Path, log: segstore.PartitionLog, led: bytes, change: str, wrong: type[Exception]
) -> None:
    replica, size = replica_of(log), int(scan(led)[0]["size"][:3].sum())
    replica.append_as_follower(led[:size])
    bad = bytearray(led[size:] if change == "crc" else led)
    if change == "crc":
        bad[30] ^= 1
    with pytest.raises(wrong):
        replica.append_as_follower(bytes(bad))
    assert log_bytes(tmp_path / "follower" / "t-0") == led[:size]
    replica.append_as_follower(led[size:])
    assert log_bytes(tmp_path / "follower" / "t-0") == led


def test_leader_epochs_never_fall(log: segstore.PartitionLog, led: bytes) -> None:
    replica = replica_of(log)
    replica.begin_epoch(7)
    with pytest.raises(InvalidArgumentError, match="7"):
        replica.append_as_follower(led)
    with pytest.raises(InvalidArgumentError, match="above the latest one, 7"):
        replica.begin_epoch(7)
    assert log.log_end_offset == 0


def test_a_large_fetch_is_not_lent_to_the_encoders(log: segstore.PartitionLog, tmp_path: Path) -> None:
    """A fetch of just the size of an encoder's buffer must not become one."""
    leader = opened(tmp_path / "leader", config={})
    size = 2 << 20
    leader.append_batch([bytes(1000)] * 3000)
    closed(leader)
    data = log_bytes(tmp_path / "leader" / "t-0")[:size]
    assert len(data) == size
    follower = opened(tmp_path / "large", config={})
    replica_of(follower).append_as_follower(data)
    follower.append_batch([b"x" * 1000] * 3000)
    assert data == log_bytes(tmp_path / "leader" / "t-0")[:size]
    closed(follower)


# --- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 1])
def test_r5_an_abort_that_is_cut_is_in_no_transaction_index(tmp_path: Path, left: int) -> None:
    """The segment stays, with `left` aborts that lie in front of the cut."""
    log, directory = opened(tmp_path / "follower"), tmp_path / "follower" / "t-0"
    for number in range(left + 1):
        end = log.log_end_offset
        send(log, 1, number, txn=True)
        end_transaction([log], 1, 0, 3, False)
    done = replica_of(log, end).truncate_to(end + 1)
    assert done.end_offset == end + 1
    assert len(list(directory.glob("*.log"))) == 1
    assert len(list(directory.glob("*.txnindex"))) == left
    assert_said(directory)
    closed(log)
    assert segstore.check(tmp_path / "follower") == []


@pytest.mark.parametrize("offset", [0, 300])
def test_no_sync_sees_the_view_of_a_log_that_was_cut(
    led: bytes, log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch, rng: random.Random, offset: int
) -> None:
    """Its segments are removed: a sync that looks for one of them would take that for a fault of the disk."""
    replica, partition = replica_of(log), log.partition_for_write()
    fetch(replica, led, rng)
    cut, held = partition.visible.cut, []

    def shown(high_watermark: int) -> None:
        held.append(partition.flusher.lock.owned)
        cut(high_watermark)

    monkeypatch.setattr(partition.visible, "cut", shown)
    replica.truncate_to(offset)
    replica.truncate_fully_and_start_at(500)
    assert held == [True, True]
    log.flush()


def test_what_is_cut_is_gone_and_comes_back(
    tmp_path: Path, led: bytes, log: segstore.PartitionLog, rng: random.Random
) -> None:
    replica, directory = replica_of(log), tmp_path / "follower" / "t-0"
    for _ in range(12):
        there = log_bytes(directory)
        fetch(replica, led[len(there) :], rng)
        offset = rng.randrange(ends(led)[-1])
        below = part_below(led, offset)
        if rng.random() < 0.5:
            log.flush()
        replica_hw = rng.randrange(ends(led)[-1])
        log.partition_for_write().visible.set_high_watermark(replica_hw)
        done = replica.truncate_to(offset)
        assert log_bytes(directory) == below
        assert done.cut_bytes == len(led) - len(below)
        assert b"".join(Path(path).read_bytes() for path in done.kept) == led[len(below) :]
        assert log.log_end_offset == done.end_offset <= offset
        assert log.high_watermark <= done.end_offset
        log.partition_for_write().visible.set_high_watermark(done.end_offset)
        assert_live(log, directory, reopened=True)
        assert_said(directory)
        assert all(start < done.end_offset for _, start in replica.epochs)
        assert log.partition_for_write().recovery_point <= done.end_offset
        if rng.random() < 0.3:
            closed(log)
            assert segstore.check(tmp_path / "follower") == []
            again = opened(tmp_path / "follower")
            log.store, log.source, log._views = again.store, again.source, again._views
            log.context, log._own = again.context, again._own
            replica = replica_of(log)
    fetch(replica, led[len(log_bytes(directory)) :], rng)
    assert log_bytes(directory) == led


def test_behind_the_end_only_epochs_are_forgotten(log: segstore.PartitionLog, led: bytes) -> None:
    replica = replica_of(log)
    end = replica.append_as_follower(led)
    before = replica.epochs
    replica.begin_epoch(9)
    assert replica.epochs == (*before, (9, end))
    assert replica.truncate_to(end + 5) == (end, 0, ())
    assert replica.epochs == before


def test_a_log_that_begins_anew(
    tmp_path: Path, led: bytes, log: segstore.PartitionLog, rng: random.Random
) -> None:
    replica, directory = replica_of(log), tmp_path / "follower" / "t-0"
    replica.append_as_follower(led)
    log.flush()
    batches = scan(led)[0]
    for number in (len(batches) // 2, 1):
        offset = int(batches["base_offset"][number])
        replica.truncate_fully_and_start_at(offset)
        assert (log.start_offset, log.high_watermark, log.log_end_offset) == (offset,) * 3
        assert replica.epochs == ()
        assert not state_of(log).producers
        assert log_bytes(directory) == b""
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset - 1)
        rest = led[int(batches["size"][batches["base_offset"] < offset].sum()) :]
        fetch(replica, rest, rng)
        assert log_bytes(directory) == rest
        closed(log)
        assert segstore.check(tmp_path / "follower") == []
        again = opened(tmp_path / "follower")
        assert again.start_offset == offset
        log.store, log.source, log._views = again.store, again.source, again._views
        log.context, log._own = again.context, again._own
        replica = replica_of(log, log.log_end_offset)


def test_below_the_first_segment_the_log_begins_anew(log: segstore.PartitionLog, led: bytes) -> None:
    replica = replica_of(log)
    replica.truncate_fully_and_start_at(1000)
    assert replica.truncate_to(10).kept == ()
    assert (log.start_offset, log.log_end_offset) == (10, 10)


def test_what_is_cut_below_the_first_segment_is_kept(log: segstore.PartitionLog, led: bytes) -> None:
    """As of an old primary whose retention has passed the offset where its log leaves the new one's."""
    replica = replica_of(log)
    replica.append_as_follower(led)
    replica.set_high_watermark(replica.log_end_offset)
    log.delete_records(replica.log_end_offset // 2)
    first = replica.written.segments[0]
    if first.base_offset == 0:
        pytest.skip("this log has one segment")
    whole = b"".join(Path(each.path).read_bytes() for each in replica.written.segments)
    done = replica.truncate_to(first.base_offset - 1)
    assert b"".join(Path(path).read_bytes() for path in done.kept) == whole


# --- the high watermark --------------------------------------------------------------------------


def test_readers_see_up_to_the_high_watermark(
    tmp_path: Path, led: bytes, log: segstore.PartitionLog, rng: random.Random
) -> None:
    replica = replica_of(log)
    replica.append_as_follower(led)
    visible = log.partition_for_write().visible
    values = [record.offset for record in every(log, ends(led)[-1], visible)]
    with segstore.open(tmp_path / "follower", "r") as other:
        follower = other.partition("t")
        for end in [*rng.sample(ends(led), 20), 0, ends(led)[-1]]:
            visible.set_high_watermark(end)
            for it in (log, follower):
                assert (it.end_offset, it.high_watermark) == (end, end)
                assert it.last_stable_offset <= end
                seen = [r.offset for r in read(it)]
                assert seen == [offset for offset in values if offset < end]
                with pytest.raises(OffsetOutOfRangeError):
                    it.read(ends(led)[-1] + 1)
                if it is log and end < ends(led)[-1]:  # R39: its reader waits
                    assert (len(it.read(end + 1)), it.read(end + 1).next_offset) == (0, end + 1)
                for offset in seen[-1:]:
                    assert it.read_one(offset).offset == offset
                for record in read(it, "read_committed"):
                    assert record.offset < it.last_stable_offset
            assert log.log_end_offset == ends(led)[-1]
    visible.set_high_watermark(1 << 40)
    assert log.high_watermark == log.log_end_offset


def every(log: segstore.PartitionLog, end: int, visible: Any) -> list[segstore.Record]:
    visible.set_high_watermark(end)
    return read(log)


def test_nothing_above_the_high_watermark_is_deleted_or_compacted(tmp_path: Path, led: bytes) -> None:
    log = opened(
        tmp_path / "swept",
        config=SMALL | {"cleanup.policy": "compact,delete", "retention.bytes": 0, "file.delete.delay.ms": 0},
    )
    replica = replica_of(log)
    data = part_below(led, ends(led)[-1])
    replica.append_as_follower(data)
    store = log.store
    assert isinstance(store, segstore.Store)
    store.sweep()
    directory = tmp_path / "swept" / "t-0"
    assert log_bytes(directory) == data
    middle = ends(led)[len(ends(led)) // 2]
    log.partition_for_write().visible.set_high_watermark(middle)
    store.sweep()
    left = log_bytes(directory)
    assert data.endswith(left)
    assert len(left) < len(data)
    assert log.start_offset <= middle
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(middle + 1)
    assert log.delete_records(-1) == middle
    closed(log)


def test_a_flush_goes_up_to_the_log_end(log: segstore.PartitionLog, led: bytes) -> None:
    replica = replica_of(log)
    replica.append_as_follower(led)
    log.flush()
    assert log.partition_for_write().recovery_point == ends(led)[-1]
    assert log.high_watermark == 0


def test_appends_of_a_leader_are_seen_with_the_high_watermark(log: segstore.PartitionLog) -> None:
    replica_of(log)
    for n in range(5):
        assert log.append(b"%d" % n) == n
    send(log, 7, 0, 3)
    assert (log.log_end_offset, log.end_offset) == (8, 0)
    assert log._own is not None
    assert log._own.tail.may_be_open is False
    log.partition_for_write().visible.set_high_watermark(4)
    assert [record.value for record in read(log)] == [b"%d" % n for n in range(4)]


# --- what fails ----------------------------------------------------------------------------------


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("what", ["append", "truncate", "begin anew", "go on"])
def test_each_call_fails(tmp_path: Path, led: bytes, what: str, rng: random.Random) -> None:
    """The log is as before, or as afterwards, or fenced; after the next open it is a part of the leader's."""
    many = 24 if what == "begin anew" else len(ends(led))
    half, led = part_below(led, ends(led)[many // 2]), part_below(led, ends(led)[many // 2 + 8])
    for nth in range(1, 500):
        path = tmp_path / f"{nth}"
        files = FailingFiles(MUTATING, OSError(5, "EIO"), nth=0)
        gaps = {"cleanup.policy": "compact"} if what == "go on" else {}
        log = opened(path, files, SMALL | gaps)
        replica = replica_of(log, 1 << 60)
        replica.append_as_follower(half)
        log.flush()
        files.arm(nth)
        try:
            if what == "append":
                replica.append_as_follower(led[len(half) :])
            elif what == "truncate":
                replica.truncate_to(ends(half)[-9])
            elif what == "go on":
                replica.go_on_at(10_000, 9)
            else:
                replica.truncate_fully_and_start_at(10_000)
        except StorageError:
            failed = True
        else:
            failed = bool(files.hits)
        files.arm(0)
        with suppress(StorageError):  # of a flush in the background
            closed(log)
        found = log_bytes(path / "t-0")
        assert led.startswith(found)
        log = opened(path)
        partition = log.partition_for_write()
        assert (log_bytes(path / "t-0"), log.log_end_offset) in [
            (part, end) for part, end in after(led, half, what)
        ] or log.log_end_offset >= 10_000
        assert_live(log, path / "t-0", reopened=True)
        assert partition.segments.fenced is None
        closed(log)
        assert segstore.check(path) == []
        if not failed:
            assert nth > 5
            return
    raise AssertionError("there are fewer calls than that")


def after(led: bytes, half: bytes, what: str) -> Iterator[tuple[bytes, int]]:
    """What the log may be after a failure, and its end."""
    at = 0
    sizes = scan(led)[0]["size"].tolist()
    yield b"", 0
    for size, end in zip(sizes, ends(led), strict=True):
        at += size
        if what != "append" or at >= len(half):
            yield led[:at], end
