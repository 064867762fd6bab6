"""Writes of share partitions that fail, and locks that run out (Q33 to Q38; S3)."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from faults import FailingFiles
from groups import Monotonic
from share_stores import ACCEPT, LOCK_MS, REJECT, RELEASE, RENEW, ShareStore, filled
from waiting import until

from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import AckBatch
from segstore.coordinator.share.partitions import ShareTurn
from segstore.errors import InvalidRecordStateError, SegstoreError, StorageError

FULL = OSError(28, "No space left on device")


def failing() -> FailingFiles:
    return FailingFiles({"pwrite", "pwritev"}, FULL, nth=0)


def test_q34_a_write_that_fails_gives_the_records_back_to_their_owner(store_dir: Path) -> None:
    files = failing()
    with filled(store_dir, 4, files=files) as group:
        group.runs()
        files.arm(1, 100)
        assert isinstance(group.acknowledge((0, 1, ACCEPT), (2, 2, RELEASE)), StorageError)
        files.arm(0)
        assert group.runs(member="n") == []
        assert isinstance(group.acknowledge((0, 0, ACCEPT), member="n"), InvalidRecordStateError)
        group.pass_ms(LOCK_MS - 1)
        group.ack((0, 1, ACCEPT))
        group.pass_ms(1)  # the locks that hold again end in their time
        assert group.runs(member="n") == [(2, 3, 2)]
        assert group.share.offsets("g")[group.key()] == (2, 0, 2)


def test_q34_locks_that_hold_again_end_though_the_timer_has_looked_meanwhile(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = failing()
    with filled(store_dir, 4, files=files) as group:
        group.runs(2, mode=1)
        group.ack((0, 1, ACCEPT))
        group.time.now += LOCK_MS / 2
        group.runs()
        write = group.states.write

        def late(writes: object) -> object:
            group.pass_ms(LOCK_MS / 2)  # the timer was planned for the first grant
            return write(writes)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(group.share._effects._states, "write", late)
            files.arm(1, 100)
            assert isinstance(group.acknowledge((2, 3, ACCEPT)), StorageError)
        files.arm(0)
        group.pass_ms(LOCK_MS / 2)
        assert group.durable() == (2, [(2, 3, 0, 1)])


def test_q34_a_lock_that_ran_out_meanwhile_is_over(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = failing()
    with filled(store_dir, 4, files=files) as group:
        group.alter(share_delivery_count_limit=2)
        group.runs()
        group.ack((0, 3, RELEASE))
        assert group.runs() == [(0, 3, 2)]
        write = group.states.write

        def late(writes: object) -> object:
            group.time.now += LOCK_MS
            found = write(writes)  # type: ignore[arg-type]
            files.arm(0)
            return found

        monkeypatch.setattr(group.share._effects._states, "write", late)
        files.arm(1, 100)
        assert isinstance(group.acknowledge((0, 1, ACCEPT)), StorageError)
        group.pass_ms(0)
        assert group.start() == 4  # at the limit: archived, and that is durable
        assert group.durable() == (2, [(2, 3, 4, 2)])


def test_q33_while_a_write_is_under_way_nobody_else_gets_the_records(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(store_dir, 4) as group:
        group.runs()
        reached, go_on = threading.Event(), threading.Event()
        write = group.states.write

        def slowly(writes: object) -> object:
            reached.set()
            go_on.wait()
            return write(writes)  # type: ignore[arg-type]

        monkeypatch.setattr(group.share._effects._states, "write", slowly)
        answers: list[SegstoreError | None] = []
        thread = threading.Thread(target=lambda: answers.append(group.acknowledge((0, 1, RELEASE))))
        thread.start()
        assert reached.wait(60)
        monkeypatch.undo()
        assert group.runs(member="n") == []
        assert isinstance(group.acknowledge((1, 1, ACCEPT)), InvalidRecordStateError)
        group.ack((2, 3, ACCEPT))  # another write of the share partition may overtake
        assert group.start() == 0
        group.pass_ms(LOCK_MS)
        assert group.runs(member="n") == []
        assert answers == []
        go_on.set()
        thread.join()
        assert answers == [None]
        assert group.runs(member="n") == [(0, 1, 2)]


def test_two_writes_of_a_share_partition_in_one_turn_are_both_made(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        group.runs()
        (leader,) = group.share._leaders.all()
        limits = group_settings(group.store).share_limits("g")
        turn = ShareTurn()
        for first in (0, 2):
            acks = [AckBatch(first, first + 1, (ACCEPT,))]
            leader.change(
                turn, partial(SharePartition.acknowledge, member="m", batches=acks, now=0, limits=limits)
            )
        assert group.share._effects.settle(turn) == {}
        assert group.durable() == (0, [(0, 3, 2, 1)])
        assert group.start() == 4


def test_q36_locks_run_out_in_memory_first_and_a_failure_takes_nothing_back(store_dir: Path) -> None:
    files = failing()
    with filled(store_dir, 4, files=files) as group:
        group.runs()
        files.arm(1, 100)
        group.pass_ms(LOCK_MS)
        assert group.runs(member="n") == [(0, 3, 2)]
        files.arm(0)
        assert group.durable() == (0, [])
        group.ack((0, 3, RELEASE), member="n")
        assert group.durable() == (0, [(0, 3, 0, 2)])


def test_q36_the_timer_goes_on_from_lock_to_lock(store_dir: Path) -> None:
    with ShareStore(store_dir, partitions=2) as group:
        for partition in (0, 1):
            group.store.partition("t", partition).append(b"x")
        group.begin()
        alarm = group.share._timer._alarm
        for count in (1, 2):
            group.runs()
            began = group.time.now
            group.time.now += LOCK_MS / 2
            group.runs(partition=1)
            assert alarm.due == began + LOCK_MS
            group.pass_ms(LOCK_MS / 2)
            assert group.durable()[1] == [(0, 0, 0, count)]
            assert alarm.due == began + 1.5 * LOCK_MS
            group.pass_ms(LOCK_MS / 2)
            assert group.durable(partition=1)[1] == [(0, 0, 0, count)]
            assert alarm.due == math.inf


def test_q36_q37_each_acquire_looks_at_the_locks(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        group.runs(2, mode=1)
        group.time.now += LOCK_MS / 2
        assert group.runs(1, mode=1) == [(2, 2, 1)]
        group.ack((0, 0, RENEW))
        group.time.now += LOCK_MS / 2
        assert group.runs(member="n") == [(1, 1, 2), (3, 3, 1)]  # without the timer
        assert group.durable()[1] == [(1, 1, 0, 1)]
        group.pass_ms(LOCK_MS / 2)
        assert group.runs(member="n") == [(0, 0, 2), (2, 2, 2)]


class Running(Monotonic):
    """A clock that goes on by itself, and can be set forward."""

    def __call__(self) -> float:
        return self.now + time.monotonic() * 1000


def test_q36_the_scheduler_ends_locks_by_itself(store_dir: Path) -> None:
    with ShareStore(store_dir, time=Running()) as group:
        group.log.append(b"x")
        group.begin()
        group.time.now -= LOCK_MS - 50  # of the lock, 50 ms are left
        group.runs()
        group.time.now += LOCK_MS - 50
        (leader,) = group.share._leaders.all()
        group.share._timer._alarm.clear()
        leader.planned = math.inf
        group.share._timer.plan(leader)
        until(lambda: group.durable()[1] == [(0, 0, 0, 1)])


def test_q102_settings_act_at_the_next_event(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        assert group.share.lock_timeout_ms("g") == LOCK_MS
        group.runs(1, mode=1)
        group.alter(share_record_lock_duration_ms=60_000, share_delivery_count_limit=2)
        assert group.share.lock_timeout_ms("g") == 60_000
        group.runs(1, mode=1)
        group.pass_ms(LOCK_MS)
        assert group.runs(member="n") == [(0, 0, 2), (2, 3, 1)]
        group.ack((0, 0, RELEASE), (2, 2, REJECT), member="n")
        assert group.durable()[1] == [(0, 0, 4, 2), (2, 2, 4, 1)]
        group.pass_ms(LOCK_MS)
        assert group.runs() == [(1, 1, 2)]
