"""Share partitions in memory: load, first start, fences, logs that were cut (Q13, Q46, Q48, Q60, Q61, Q106;
S13, S26).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from share_stores import ACCEPT, LOCK_MS, REJECT, RELEASE, ShareStore, filled
from stores import killed

from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group.share.member import ShareHeartbeat
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.partitions import IDLE_MS
from segstore.coordinator.share.state_log import Update
from segstore.coordinator.shared import shared
from segstore.errors import (
    IllegalStateError,
    InvalidRecordStateError,
    NotLeaderOrFollowerError,
    SegstoreError,
    StorageError,
    UnknownTopicOrPartitionError,
)


def leader(group: ShareStore) -> Any:
    return group.share._leaders.get("g", group.topic_id, 0)


# --- the first start ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reset", "start"),
    [
        ("latest", 8),
        ("earliest", 2),
        ("by_duration:PT50S", 5),
        ("by_duration:PT0.5S", 8),
        ("by_duration:P1D", 2),
    ],
)
def test_s26_q13_the_first_start_is_found_and_durable(store_dir: Path, reset: str, start: int) -> None:
    with ShareStore(store_dir) as group:
        for n in range(8):
            group.clock.now += 10_000 if n == 5 else 1000
            group.log.append(b"x", timestamp=group.clock.now)
        group.clock.now += 40_000
        group.log.delete_records(2)
        group.alter(share_auto_offset_reset=reset)
        group.begin(-1)
        runs = group.runs()
        assert runs == ([(start, 7, 1)] if start < 8 else [])
        assert group.durable() == (start, [])
        assert group.share.offsets("g")[group.key()].lag == 8 - start


def test_s26_d2_a_crash_behind_the_first_grant_loses_nothing(store_dir: Path, tmp_path: Path) -> None:
    with ShareStore(store_dir) as group:
        group.log.append_batch([b"old"] * 3)
        group.begin(-1)
        assert group.runs() == []
        group.log.append_batch([b"new"] * 4)
        assert group.runs() == [(3, 6, 1)]
        after = killed(store_dir, tmp_path / "after")
    with ShareStore(after) as group:
        group.log.append_batch([b"newer"])
        assert group.runs() == [(3, 7, 1)]


def test_d2_nothing_is_granted_before_the_start_is_durable(store_dir: Path) -> None:
    files = FailingFiles({"pwrite", "pwritev"}, OSError(28, "No space left on device"), nth=0)
    with ShareStore(store_dir, files) as group:
        group.log.append(b"x")
        group.alter(share_auto_offset_reset="earliest")
        group.begin(-1)
        files.arm(1, 1000)
        with pytest.raises(StorageError):
            group.acquire()
        assert leader(group) is None
        files.arm(0)
        assert group.runs() == [(0, 0, 1)]


# --- load and fences ------------------------------------------------------------------------------------


def test_q61_a_state_that_contradicts_itself_is_not_served(
    store_dir: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with ShareStore(tmp_path / "store") as group:
        group.begin()
        bad = (StateBatch(5, 9, 2, 1), StateBatch(8, 12, 0, 1))
        state = Durable(1, 3, 0, 2, 5, bad, 1, 1)

        class Contradicting:
            def read(self, key: object) -> Durable:
                return state

        group.share._leaders._states = Contradicting()  # type: ignore[assignment]
        with pytest.raises(IllegalStateError, match="is not served"):
            group.acquire()


def test_q60_a_fenced_share_partition_begins_anew(store_dir: Path) -> None:
    with filled(store_dir, 6) as group:
        woken: list[int] = []
        group.share.on_available("g", lambda: woken.append(1))
        group.runs(3, mode=1)
        group.begin(2, epoch=5)  # as an administrator alters the start, while a session is open
        error = group.acknowledge((0, 2, ACCEPT))
        assert isinstance(error, NotLeaderOrFollowerError)
        assert woken
        assert isinstance(group.acknowledge((0, 2, ACCEPT)), UnknownTopicOrPartitionError)
        assert group.runs() == [(2, 5, 1)]
        group.share.fence([group.key(), group.key(7)])
        assert leader(group) is None
        assert group.runs(member="n") == [(2, 5, 1)]
        group.share.drop_group("other")
        group.share.drop_group("g")
        assert group.runs() == [(2, 5, 1)]


def test_q99_deleted_states_are_refused_at_once(store_dir: Path) -> None:
    with filled(store_dir, 6) as group:
        group.runs()
        group.states.delete([group.key()])
        assert isinstance(group.acknowledge((0, 2, ACCEPT)), NotLeaderOrFollowerError)
        with pytest.raises(IllegalStateError):
            group.acquire()


def test_q99_the_group_coordinator_fences(store_dir: Path) -> None:
    with ShareStore(store_dir) as group:
        groups = shared(group.store, GroupCoordinator)
        groups.share_heartbeat("g", ShareHeartbeat(member_id="m", epoch=0, topic_names=frozenset({"t"})))
        group.log.append_batch([b"x"] * 3)
        assert group.runs() in ([], [(0, 2, 1)])
        assert leader(group) is not None
        groups.share_heartbeat("g", ShareHeartbeat(member_id="m", epoch=-1))
        assert groups.delete_share_offsets("g", ["t"]) == {"t": None}
        assert leader(group) is None


def test_q46_a_deleted_topic_takes_its_share_partitions_along(store_dir: Path) -> None:
    with filled(store_dir, 6) as group:
        group.runs()
        old, at = group.key(), (group.topic_id, 0)
        group.store.delete_topic("t")
        assert group.states.read(old) is None
        (found,) = group.share.acquire("g", "m", [at])
        assert isinstance(found.error, UnknownTopicOrPartitionError)
        group.store.create_topic("t")
        group.log = group.store.partition("t")
        with pytest.raises(IllegalStateError):
            group.acquire()
        group.begin()
        group.log.append(b"new")
        assert group.runs() == [(0, 0, 1)]


def test_q106_idle_share_partitions_are_dropped(store_dir: Path) -> None:
    with filled(store_dir, 6) as group:
        group.runs()
        group.ack((0, 1, ACCEPT), (2, 2, RELEASE))
        group.time.now += IDLE_MS
        group.share.drop_idle()
        assert leader(group) is not None  # it holds locks
        group.pass_ms(LOCK_MS)
        group.share.drop_idle()
        assert leader(group) is None
        assert group.runs() == [(2, 5, 2)]
        group.ack((2, 5, ACCEPT))
        group.time.now += IDLE_MS - 1
        group.share.drop_idle()
        assert leader(group) is not None


def test_an_error_within_the_core_fences(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(store_dir, 4) as group:
        group.runs()

        def broken(*_: object) -> None:
            raise AssertionError("runs overlap")

        with monkeypatch.context() as patched:
            patched.setattr(type(leader(group).core), "acknowledge", broken)
            with pytest.raises(AssertionError):
                group.acknowledge((0, 1, ACCEPT))
        assert isinstance(group.acknowledge((0, 1, ACCEPT)), NotLeaderOrFollowerError)
        assert group.runs() == [(0, 3, 1)]
        group.ack((0, 3, ACCEPT))


# --- logs that were cut -------------------------------------------------------------------------------------


def cut_log(path: Path, size: int) -> None:
    """Cut the data log, whose end a power cut has taken, and forget that the store was closed."""
    (log,) = (path / "t-0").glob("*.log")
    data = log.read_bytes()
    log.write_bytes(data[:size])


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_s13_q48_a_state_above_the_end_of_its_log_swallows_nothing(
    store_dir: Path, tmp_path: Path, kept: int
) -> None:
    """Batches of 4: 0-7 done, 8-9 acquired, 10 released, 11 done. `kept` of them are left."""
    sizes = [0]
    with ShareStore(store_dir) as group:
        group.alter(share_auto_offset_reset="earliest")
        groups = shared(group.store, GroupCoordinator)
        groups.share_heartbeat("g", ShareHeartbeat(member_id="m", epoch=0, topic_names=frozenset({"t"})))
        for _ in range(3):
            group.log.append_batch([b"old"] * 4)
            sizes.append(group.log.size)
        assert group.runs() == [(0, 11, 1)]
        group.ack((0, 7, ACCEPT))
        group.ack((10, 10, RELEASE), (11, 11, REJECT))
        before = group.states.read(group.key())
        assert before is not None
        assert group.durable() == (8, [(10, 10, 0, 1), (11, 11, 4, 1)])
        after = killed(store_dir, tmp_path / "after")
    cut_log(after, sizes[kept])
    (after / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    with ShareStore(after) as group:
        end = 4 * kept
        assert group.log.end_offset == end
        state = group.states.read(group.key())
        assert state is not None
        assert state.start == min(8, end)
        if kept == 3:
            assert state == before
        else:
            assert state.batches == ()
            assert state.state_epoch == before.state_epoch + 1
            described = shared(group.store, GroupCoordinator).describe_share("g")
            assert described is not None
            assert described.epoch >= state.state_epoch
        group.log.append_batch([b"new"] * 10)
        new = {n for first, last, _ in group.runs() for n in range(first, last + 1)}
        assert new == set(range(min(8, end), end + 10)) - ({11} if kept == 3 else set())


def test_q48_a_cut_that_fails_at_open_is_made_at_load(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from segstore.coordinator.share.cut_logs import CutLogs

    with filled(store_dir, 4, 4) as group:
        group.runs()
        group.ack((0, 7, ACCEPT))
        group.ack()
        first = group.log.read(0, 1).batches["size"][0]
        after = killed(store_dir, tmp_path / "after")
    cut_log(after, int(first))
    (after / "recovery-point-offset-checkpoint").unlink(missing_ok=True)

    def fails(*_: object) -> None:
        raise StorageError(5, "Input/output error", "t-0")

    with monkeypatch.context() as patched:
        patched.setattr(CutLogs, "_cut", fails)
        group = ShareStore(after)
        group.log.append_batch([b"new"] * 6)
        with pytest.raises(SegstoreError):
            group.acquire()
    assert group.runs() == [(4, 9, 1)]
    group.store.close()


def test_updates_by_others_fence_at_the_next_write(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        group.runs()
        group.states.write({group.key(): Update(2, 9, lead=True)})  # another leader
        assert isinstance(group.acknowledge((0, 0, ACCEPT)), NotLeaderOrFollowerError)
        assert group.runs() == [(0, 3, 1)]
        group.ack((0, 0, ACCEPT))
        state = group.states.read(group.key())
        assert state is not None
        assert state.leader_epoch == 9
        assert isinstance(group.acknowledge((1, 1, ACCEPT), member="n"), InvalidRecordStateError)
