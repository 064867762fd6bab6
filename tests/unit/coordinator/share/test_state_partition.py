"""Writes of share states that come together, that fail, or of which it is not known whether they took place
(rules Q59, Q105).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import SYNCS, WRITES, FailingFiles
from groups import Unsynced
from share_states import folded, held, key_of, kinds, opened, states_of, written
from undecided import Undecided
from waiting import PATIENCE, until

import segstore
from segstore import errors, mutex
from segstore.coordinator.share import state_partition
from segstore.coordinator.share.core.values import StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import TOPIC, StateLog, Update
from segstore.coordinator.share.state_partition import StatePartition
from segstore.coordinator.share.state_requests import ColdRequest, UpdateRequest
from segstore.coordinator.share.state_table import load
from segstore.coordinator.share.state_topic import StateWriter

B = StateBatch


def one(n: int) -> Update:
    """Return an update that acknowledges offset `n`."""
    return Update(1, 0, 0, n + 1, (B(n, n, 2, 1),))


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with opened(store_dir, snapshot_update_records_per_snapshot=4) as store:
        yield store


@pytest.fixture
def key(store: segstore.Store) -> ShareKey:
    key = key_of(store)
    states_of(store).initialise({key: (1, 0)})
    return key


def partition_of(store: segstore.Store) -> StatePartition:
    return states_of(store)._partition(0)


def undecided(store: segstore.Store) -> Undecided:
    return Undecided(store.partition(TOPIC, 0).partition_for_write())


# --- together --------------------------------------------------------------------------------------


def together(store: segstore.Store, *writes: dict[ShareKey, Update]) -> list[dict]:
    """Return the outcomes of these writes, each of a thread of its own; all wait while the lock is held, in
    this order.
    """
    held, found = partition_of(store), [{} for _ in writes]
    threads = []

    def write(n: int) -> None:
        found[n] = states_of(store).write(writes[n])

    with held._lock:
        for n in range(len(writes)):
            threads.append(threading.Thread(target=write, args=(n,)))
            threads[-1].start()
            until(lambda n=n: len(held._queue) == n + 1)
    for thread in threads:
        thread.join(PATIENCE)
    return found


def test_q105_writes_that_wait_become_one_append(store: segstore.Store, key: ShareKey) -> None:
    """Those of one share partition too, and one that is refused does not harm the others."""
    others = [key_of(store, group) for group in "abc"]
    states_of(store).initialise(dict.fromkeys(others, (1, 0)))
    writes = [{key: one(0), others[0]: one(0)}, {key: one(2)}, {others[1]: one(0)}, {key: Update(0, 0)}]
    found = together(store, *writes)
    assert found[:3] == [dict.fromkeys(write) for write in writes[:3]]
    assert isinstance(found[3][key], errors.FencedStateEpochError)
    batches = store.partition(TOPIC).read(0).batches
    assert batches["count"].tolist() == [1, 3, 4]
    assert [each for each, _ in written(store)][4:] == [key, others[0], key, others[1]]
    assert held(store, [key, *others]) == folded(store, [key, *others])
    assert held(store, [key])[key].batches == (B(0, 0, 2, 1), B(2, 2, 2, 1))


def test_q105_a_snapshot_is_an_append_of_its_own_for_its_share_partition(
    store: segstore.Store, key: ShareKey
) -> None:
    """It has all that stands before it."""
    found = together(store, *({key: one(2 * n)} for n in range(10)))
    assert found == [{key: None}] * 10
    assert kinds(store) == "suuuusuuuus"
    assert held(store, [key]) == folded(store, [key])
    assert held(store, [key])[key].batches == tuple(B(2 * n, 2 * n, 2, 1) for n in range(10))


def test_q105_a_leader_s_epoch_fences_what_comes_behind_it(store: segstore.Store, key: ShareKey) -> None:
    found = together(
        store,
        {key: Update(1, 3, lead=True)},
        {key: Update(1, 2)},
        {key: Update(1, 3, lead=True)},
        {key: one(0)},
    )
    assert found[0] == found[2] == {key: None}
    assert isinstance(found[1][key], errors.FencedLeaderEpochError)
    assert isinstance(found[3][key], errors.FencedLeaderEpochError)
    assert kinds(store) == "su"


def test_updates_of_one_append_have_the_start_and_count_after_those_before(
    store: segstore.Store, key: ShareKey
) -> None:
    together(store, {key: Update(1, 0, 10, 3)}, {key: Update(1, 0, 4, 9, (B(4, 20, 0, 1),))})
    assert [content[2:] for _, content in written(store)[1:]] == [  # type: ignore[index]
        (10, 3, ()),
        (10, 3, (B(10, 20, 0, 1),)),
    ]
    assert held(store, [key]) == folded(store, [key])


def test_deletion_and_a_new_beginning_come_one_after_the_other(store: segstore.Store, key: ShareKey) -> None:
    partition, done = partition_of(store), []

    def run(call: object) -> None:
        call()  # type: ignore[operator]
        done.append(call)

    calls = [
        lambda: states_of(store).write({key: one(0)}),
        lambda: states_of(store).delete([key]),
        lambda: states_of(store).write({key: one(1)}),
        lambda: states_of(store).initialise({key: (1, 5)}),
        lambda: states_of(store).write({key: Update(1, 0, 5, 1, (B(5, 5, 2, 1),))}),
    ]
    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    with partition._lock:
        for n, thread in enumerate(threads):
            thread.start()
            until(lambda n=n: len(partition._queue) == n + 1)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(done) == 5
    assert kinds(store) == "sutsu"
    assert held(store, [key]) == folded(store, [key])
    assert held(store, [key])[key].batches == (B(5, 5, 2, 1),)


def test_q57_no_cold_snapshot_follows_another_that_was_written_meanwhile(
    store: segstore.Store, key: ShareKey
) -> None:
    state = held(store, [key])[key]
    for before, expected in ((state.written_ms - 1, "s"), (state.written_ms, "ss")):
        request = ColdRequest(key, before)
        partition_of(store).write([request])
        assert (request.is_done, request.error, kinds(store)) == (True, None, expected)


def test_many_threads_write_and_read(store: segstore.Store) -> None:
    keys = [key_of(store, "g", "t", n) for n in range(4)]
    states, wrong = states_of(store), []
    states.initialise(dict.fromkeys(keys, (1, 0)))

    def work(thread: int) -> None:
        for n in range(thread, 200, 5):
            for key in keys:
                error = states.write({key: Update(1, 0, 0, 0, (B(n, n, 2, 1),))})[key]
                state = states.read(key)
                there = state is not None and any(b.first <= n <= b.last for b in state.batches)
                if error is not None or not there:
                    wrong.append((n, error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {state.batches for state in held(store, keys).values()} == {(B(0, 199, 2, 1),)}
    assert held(store, keys) == folded(store, keys)


# --- Q59: the disk refuses -------------------------------------------------------------------------

FAULTS = {
    "no room": (WRITES, errno.ENOSPC, False),
    "a write fails": (WRITES, errno.EIO, False),
    "the sync behind a write fails": (SYNCS, errno.EIO, True),
}


def outcome(states: StateLog, call: str, key: ShareKey, other: ShareKey) -> list[object]:
    """Return the errors of a call."""
    try:
        if call == "initialise":
            states.initialise({key: (3, 7)})
        elif call == "delete":
            states.delete([key])
        else:
            both = {key: one(2), other: one(0)}
            return list(states.write(both if call.startswith("two") else {key: one(2)}).values())
    except errors.SegstoreError as error:
        return [error]
    return []


@pytest.mark.parametrize("call", ["update", "snapshot", "two share partitions", "initialise", "delete"])
@pytest.mark.parametrize("name", FAULTS)
def test_q59_a_write_that_the_disk_refuses(
    name: str, call: str, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is what the log has, whether the record is there or not, also after the next call."""
    names, code, synced = FAULTS[name]
    files = FailingFiles(names, OSError(code, "refused"), nth=0)
    limit = 0 if call == "snapshot" else 500
    with opened(store_dir, files=files, snapshot_update_records_per_snapshot=limit) as store:
        states, key, other = states_of(store), key_of(store), key_of(store, "other")
        store.partition("t").append_batch([b"x"] * 10)  # states above the end of a log are cut (Q48)
        states.initialise({key: (1, 0), other: (1, 0)})
        states.write({key: one(0)})
        if synced:
            store._alter_topic(TOPIC, {"flush.messages": 1})
        loads: list[object] = []
        monkeypatch.setattr(state_partition, "load", lambda *a: loads.append(a) or load(*a))
        files.arm(1, times=1)
        assert set(map(type, outcome(states, call, key, other))) == {errors.StorageError}
        assert files.hits == 1
        files.arm(0)
        known = held(store, [key, other])
        assert known == folded(store, [key, other])
        assert bool(loads) == synced  # nothing is read anew if it is known that nothing was written
        if call == "update":
            assert known[key].complete == (3 if synced else 1)
        again = states.write({other: one(4)})[other]
        assert (
            isinstance(again, errors.StorageError) == synced
        )  # after a failed sync the log takes nothing more
        known = held(store, [key, other])
        assert known == folded(store, [key, other])
    with opened(store_dir) as store:
        assert held(store, [key, other]) == folded(store, [key, other])
        assert states_of(store).write({other: one(6)}) == {other: None}


def test_q59_a_topic_that_cannot_be_made(store_dir: Path) -> None:
    files = FailingFiles({"mkdir"}, OSError(errno.ENOSPC, "No space left"), nth=0)
    with opened(store_dir, files=files) as store:
        key = key_of(store)
        files.arm(1)
        with pytest.raises(errors.StorageError):
            states_of(store).initialise({key: (1, 0)})
        files.arm(0)
        assert states_of(store).read(key) is None
        states_of(store).initialise({key: (1, 0)})
        assert held(store, [key]) == folded(store, [key])


def test_a_log_that_cannot_be_read(store_dir: Path) -> None:
    with opened(store_dir) as store:
        key = key_of(store)
        states_of(store).initialise({key: (1, 0)})

    class Unreadable(Unsynced):
        broken = False

        def pread(self, *args: object, **options: object) -> object:
            if self.broken:
                raise OSError(errno.EIO, "unreadable")
            return super().pread(*args, **options)  # type: ignore[arg-type]

    files = Unreadable()
    with opened(store_dir, files=files) as store:
        files.broken = True
        with pytest.raises(errors.StorageError):
            states_of(store).read(key)
        assert isinstance(states_of(store).write({key: one(0)})[key], errors.StorageError)
        files.broken = False
        assert states_of(store).write({key: one(0)}) == {key: None}
        assert held(store, [key]) == folded(store, [key])


# --- Q59: replicas do not answer -------------------------------------------------------------------


def test_q59_nothing_is_written_before_an_undecided_write_is_decided(
    store: segstore.Store, key: ShareKey
) -> None:
    states, log = states_of(store), undecided(store)
    before = states.read(key)
    assert isinstance(states.write({key: one(0)})[key], errors.RequestTimedOutError)
    end = store.partition(TOPIC).log_end_offset
    for _ in range(2):
        error = states.write({key: one(2)})[key]
        assert isinstance(error, errors.OffsetNotAvailableError)
        assert "not known yet" in str(error)
        with pytest.raises(errors.OffsetNotAvailableError):
            states.initialise({key: (2, 0)})
        with pytest.raises(errors.OffsetNotAvailableError):
            states.delete([key])
    states.prune()
    states.snapshot_cold()
    assert store.partition(TOPIC).log_end_offset == end
    assert states.read(key) == before  # as readers see it
    log.commit()
    state = states.read(key)
    assert state is not None
    assert state.batches == (B(0, 0, 2, 1),)
    assert states.write({key: one(2)}) == {key: None}
    assert held(store, [key]) == folded(store, [key])


def test_q59_an_undecided_write_that_is_lost(
    store: segstore.Store, key: ShareKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica leads, which has nothing of it."""
    states, log = states_of(store), undecided(store)
    before = states.read(key)

    def lose(acks: int) -> None:
        raise errors.NotLeaderOrFollowerError("another replica leads")

    with monkeypatch.context() as patched:
        patched.setattr(log, "check", lose)
        assert isinstance(states.write({key: one(0)})[key], errors.NotLeaderOrFollowerError)
    log.commit()
    assert states.read(key) == before
    assert states.write({key: one(2)}) == {key: None}
    assert held(store, [key]) == folded(store, [key])


def test_q59_an_interrupted_write_is_read_from_the_log(
    store: segstore.Store, key: ShareKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a thread whose write was part of the same append."""
    states, log, partition = states_of(store), undecided(store), partition_of(store)
    before = states.read(key)

    def wait(end_offset: int, acks: int, timeout_ms: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "wait", wait)
    other = UpdateRequest(key, one(4))
    partition._queue.append([other])
    with pytest.raises(KeyboardInterrupt):
        states.write({key: one(0)})
    assert isinstance(other.error, errors.OffsetNotAvailableError)
    assert "interrupted" in str(other.error)
    assert not partition._queue
    assert states.read(key) == before
    log.commit()
    assert held(store, [key]) == folded(store, [key])
    assert held(store, [key])[key].batches == (B(0, 0, 2, 1), B(4, 4, 2, 1))


# --- the lock --------------------------------------------------------------------------------------


def test_who_waits_too_long_for_the_lock_writes_nothing(
    store: segstore.Store, key: ShareKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutex, "PATIENCE", 0.02)
    partition, found = partition_of(store), []
    with partition._lock:
        thread = threading.Thread(target=lambda: found.append(states_of(store).write({key: one(0)})))
        thread.start()
        thread.join(PATIENCE)
    [told] = found
    assert isinstance(told[key], errors.OffsetNotAvailableError)
    assert "takes long" in str(told[key])
    assert not partition._queue
    assert states_of(store).write({key: one(2)}) == {key: None}
    assert kinds(store) == "su"


def test_a_handler_that_interrupts_a_write_writes_nothing(store: segstore.Store, key: ShareKey) -> None:
    partition = partition_of(store)
    with partition._lock:
        found = states_of(store).write({key: one(0)})
    assert isinstance(found[key], errors.ReentrantCallError)
    assert states_of(store).write({key: one(2)}) == {key: None}
    assert kinds(store) == "su"


# --- whether a write may wait ------------------------------------------------------------------------


def test_what_a_write_may_wait_for(store: segstore.Store, key: ShareKey) -> None:
    held = partition_of(store)
    assert not held.may_wait
    unread = StatePartition(0, held._topic, store.writer().config, store.context.clock)
    assert unread.may_wait
    unread._is_sure, unread._table = False, held._table
    assert unread.may_wait
    store.alter_topic(TOPIC, {"flush.messages": 1})
    assert held.may_wait


def test_a_write_may_wait_for_one_under_way(
    store: segstore.Store, key: ShareKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, seen = partition_of(store), []
    append = StateWriter.append

    def appending(*args: object) -> int:
        seen.append(held.may_wait)
        return append(*args)

    monkeypatch.setattr(StateWriter, "append", appending)
    states_of(store).write({key: one(0)})
    assert (seen, held.may_wait) == ([True], False)
