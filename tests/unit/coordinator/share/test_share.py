"""Share groups over real stores: acquire, acknowledge, release (rules Q16 to Q40 of docs/queue-rules.md)."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from share_stores import ACCEPT, GAP, LOCK_MS, REJECT, RELEASE, RENEW, ShareStore, filled

from segstore.coordinator.share.core.values import AckBatch, AcquireMode
from segstore.coordinator.share.grants import AcquireTerms
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared
from segstore.errors import (
    IllegalStateError,
    InvalidRecordStateError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.producers.aborted_transactions import MOST_SEARCHED


def test_s1_records_are_acquired_once_and_acknowledged_for_good(store_dir: Path) -> None:
    with filled(store_dir, 10) as group:
        found = group.acquire()
        assert found is not None
        assert found.acquired == ((0, 9, 1),)
        assert [record.value for part in found.reads() for record in part] == [b"%d" % n for n in range(10)]
        assert group.acquire() is None
        group.ack((0, 2, ACCEPT), (3, 5, RELEASE), (6, 7, REJECT), (8, 9, RENEW))
        assert group.durable() == (0, [(0, 2, 2, 1), (3, 5, 0, 1), (6, 7, 4, 1)])
        assert group.start() == 3
        assert group.runs(member="n") == [(3, 5, 2)]
        group.ack((8, 9, ACCEPT))
        assert group.durable()[0] == 3  # Q39: the start before this write
        group.ack((3, 5, ACCEPT), member="n")
        assert group.start() == 10
    with ShareStore(store_dir) as group:
        assert group.runs() == []
        group.log.append(b"more")
        assert group.runs() == [(10, 10, 1)]


def test_s3_a_lock_that_is_over_fails_the_whole_late_acknowledgement(store_dir: Path) -> None:
    with filled(store_dir, 16) as group:
        assert group.runs() == [(0, 15, 1)]
        group.pass_ms(LOCK_MS - 1)
        group.ack((0, 0, ACCEPT))
        group.pass_ms(1)
        assert isinstance(group.acknowledge((0, 0, ACCEPT), (1, 3, ACCEPT)), InvalidRecordStateError)
        assert group.runs(member="n") == [(1, 15, 2)]
        assert group.durable() == (1, [(1, 15, 0, 1)])


def test_s4_records_near_the_limit_come_in_ever_smaller_parts(store_dir: Path) -> None:
    with filled(store_dir, 16) as group:
        rounds: list[list[tuple[int, int, int]]] = []
        while runs := group.runs():
            rounds.append(runs)
            while runs := group.runs():
                rounds[-1] += runs
            group.ack(*((first, last, RELEASE) for first, last, _ in rounds[-1]))
        assert rounds[:4] == [[(0, 15, 1)], [(0, 15, 2)], [(0, 15, 3)], [(0, 7, 4), (8, 15, 4)]]
        assert rounds[4:] == [[(n, n, 5) for n in range(16)]]
        assert group.start() == 16


@pytest.mark.parametrize(("limit", "last"), [(2, [(0, 3, 2)]), (3, [(0, 0, 3)])])
def test_s5_the_last_delivery_is_made_alone_above_a_limit_of_two(
    store_dir: Path, limit: int, last: list[tuple[int, int, int]]
) -> None:
    with filled(store_dir, 4) as group:
        group.alter(share_delivery_count_limit=limit)
        parts: list[list[tuple[int, int, int]]] = []
        while runs := group.runs():
            parts.append(runs)
            group.ack(*((first, last, RELEASE) for first, last, _ in runs))
        assert last in parts
        assert Counter(
            n for part in parts for first, to, _ in part for n in range(first, to + 1)
        ) == dict.fromkeys(range(4), limit)


def test_q16_a_fetch_passes_by_a_partition_that_another_one_reads(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    with filled(store_dir, 4) as group:
        handle = group.share.on_available("g", lambda: woken.append("g"))
        other = group.share.on_available("h", lambda: woken.append("h"))
        group.runs(1, mode=AcquireMode.RECORD_LIMIT)
        leader = group.share._leaders.get("g", group.topic_id, 0)
        assert leader is not None
        from segstore.coordinator.share import grants

        read = grants.read_batches

        def slowly(*args: object, **named: object) -> object:
            monkeypatch.setattr(grants, "read_batches", read)
            assert group.acquire(member="n") is None
            assert woken == []
            return read(*args, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(grants, "read_batches", slowly)
        assert group.runs(1, mode=AcquireMode.RECORD_LIMIT) == [(1, 1, 1)]
        assert woken == ["g"]
        handle.cancel()
        other.cancel()
        handle.cancel()
        group.ack((1, 1, RELEASE))
        assert woken == ["g"]


def test_q28_waiters_hear_of_what_becomes_available(store_dir: Path) -> None:
    woken: list[int] = []
    with filled(store_dir, 4) as group:
        group.runs()
        group.share.on_available("g", lambda: woken.append(1))
        group.ack((2, 2, ACCEPT))
        assert len(woken) == 0  # nothing is available, and the start stays
        group.ack((1, 1, RELEASE))
        assert len(woken) == 1
        group.ack((0, 0, ACCEPT))
        assert len(woken) == 1  # the start moved, and the window was not full
        group.pass_ms(LOCK_MS)
        assert len(woken) == 2


def test_q29_q30_q31_acknowledgements_are_all_or_nothing(store_dir: Path) -> None:
    with filled(store_dir, 10) as group:
        group.runs()
        assert isinstance(group.acknowledge((0, 1, ACCEPT), member="other"), InvalidRecordStateError)
        assert isinstance(group.acknowledge((0, 10, ACCEPT)), InvalidRequestError)
        group.ack((4, 4, ACCEPT))
        assert isinstance(group.acknowledge((0, 3, ACCEPT), (4, 4, ACCEPT)), InvalidRecordStateError)
        group.ack((0, 3, ACCEPT))
        assert group.start() == 5
        before = group.states.read(group.key())
        group.ack((0, 2, RELEASE))  # below the start: success, and nothing is written
        assert group.states.read(group.key()) == before
        group.ack((5, 9, [GAP, ACCEPT, REJECT, ACCEPT, RELEASE]))
        assert group.runs() == [(9, 9, 2)]
        assert isinstance(group.acknowledge((9, 9, [7])), InvalidRequestError)


def test_q32_a_renewal_keeps_the_record_and_writes_nothing(store_dir: Path) -> None:
    with filled(store_dir, 2) as group:
        group.runs()
        before = group.states.read(group.key())
        for _ in range(3):
            group.time.now += LOCK_MS - 1
            group.ack((0, 1, RENEW))
        assert group.states.read(group.key()) == before
        group.pass_ms(LOCK_MS - 1)
        assert group.runs(member="n") == []
        group.alter(share_renew_acknowledge_enable=False)
        assert isinstance(group.acknowledge((0, 1, RENEW)), InvalidRecordStateError)
        group.pass_ms(1)
        assert group.runs(member="n") == [(0, 1, 2)]


def test_q35_a_session_that_ends_gives_its_records_back(store_dir: Path) -> None:
    with filled(store_dir, 6) as group:
        assert group.runs(2, mode=AcquireMode.RECORD_LIMIT) == [(0, 1, 1)]
        assert group.runs(2, member="n", mode=AcquireMode.RECORD_LIMIT) == [(2, 3, 1)]
        group.share.release("g", "m", [(group.topic_id, 0), (group.topic_id, 7)])
        assert group.durable() == (0, [(0, 1, 0, 1)])
        assert group.runs(member="x") == [(0, 1, 2), (4, 5, 1)]


def test_q94_what_is_cancelled_was_never_granted(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        found = group.acquire()
        assert found is not None
        before = group.states.read(group.key())
        group.share.cancel(found)
        assert group.states.read(group.key()) == before
        assert group.runs(member="n") == [(0, 3, 1)]
        group.share.cancel(found)
        assert group.runs() == []


def test_q97_offsets_are_the_durable_ones(store_dir: Path) -> None:
    with filled(store_dir, 10) as group:
        key, nobody = group.key(), group.key(5)
        assert [tuple(each) for each in group.share.offsets("g").values()] == [(0, 0, 10)]
        group.runs()
        group.ack((0, 2, ACCEPT), (5, 6, REJECT), (7, 7, RELEASE))
        assert group.share.offsets("g", [key, nobody]) == {key: (0, 0, 5), nobody: (-1, 0, -1)}
        group.ack((3, 4, ACCEPT))
        assert group.share.offsets("g")[key] == (3, 0, 3)


def test_several_partitions_and_groups_are_apart(store_dir: Path) -> None:
    with ShareStore(store_dir, partitions=3) as group:
        for partition in range(3):
            group.store.partition("t", partition).append_batch([b"x"] * 4)
        group.begin()
        group.begin(group="h")
        wanted = [(group.topic_id, number) for number in (0, 1, 2, 9)]
        found = group.share.acquire("g", "m", wanted)
        assert isinstance(found[0].error, UnknownTopicOrPartitionError)
        assert [(each.partition, each.acquired) for each in found[1:]] == [
            (n, ((0, 3, 1),)) for n in range(3)
        ]
        assert group.share.acquire("g", "m", wanted[:3]) == []
        assert len(group.share.acquire("h", "m", wanted[:3])) == 3
        acks = [AckBatch(0, 3, [ACCEPT])]
        ended = group.share.acknowledge("g", "m", dict.fromkeys(wanted, acks))
        assert {at: type(error) for at, error in ended.items()} == {
            **dict.fromkeys(wanted[:3], type(None)),
            wanted[3]: UnknownTopicOrPartitionError,
        }


def test_q105_acknowledgements_of_several_partitions_are_one_append(store_dir: Path) -> None:
    with ShareStore(store_dir, partitions=4) as group:
        wanted = [(group.topic_id, number) for number in range(4)]
        for _, partition in wanted:
            group.store.partition("t", partition).append_batch([b"x"] * 4)
        group.begin()
        group.share.acquire("g", "m", wanted)
        log = group.store.partition("__share_group_state")
        before = log.end_offset
        group.share.acknowledge("g", "m", {at: [AckBatch(0, 3, [ACCEPT])] for at in wanted})
        stretch = log.read(before).batches
        assert len(stretch) == 1
        assert stretch["count"].tolist() == [4]


def test_q19_the_record_limit_counts_over_all_partitions(store_dir: Path) -> None:
    with ShareStore(store_dir, partitions=3) as group:
        wanted = [(group.topic_id, number) for number in range(3)]
        for _, partition in wanted:
            group.store.partition("t", partition).append_batch([b"x"] * 4)
        group.begin()
        terms = AcquireTerms(6, 6, AcquireMode.RECORD_LIMIT)
        found = group.share.acquire("g", "m", wanted, terms)
        assert [each.acquired for each in found] == [((0, 3, 1),), ((0, 1, 1),)]
        again = group.share.acquire("g", "m", wanted, terms)
        assert [(each.partition, each.acquired) for each in again] == [(1, ((2, 3, 1),)), (2, ((0, 3, 1),))]


def test_no_records_are_asked_for_and_no_bytes(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        at = [(group.topic_id, 0)]
        assert group.share.acquire("g", "m", at, AcquireTerms(max_records=0)) == []
        assert group.share.acquire("g", "m", at, AcquireTerms(max_bytes=0)) == []
        assert group.runs(max_bytes=1) == [(0, 3, 1)]


def test_a_partition_that_no_heartbeat_has_initialised_is_refused(store_dir: Path) -> None:
    with ShareStore(store_dir) as group:
        with pytest.raises(IllegalStateError, match="is not initialised"):
            group.acquire()
        group.begin()
        assert group.runs() == []


def test_threads_get_each_record_once(store_dir: Path, rng: random.Random) -> None:
    """Four members acknowledge, release and reject; each offset ends once, and no two hold it at a time."""
    with filled(store_dir, *[rng.randint(1, 9) for _ in range(60)]) as group:
        end, seeds = group.log.end_offset, [rng.random() for _ in range(4)]
        held: list[int] = [0] * end
        accepted: list[int] = []
        faults: list[str] = []
        begun = threading.Barrier(4)

        def work(number: int) -> None:
            draw, member = random.Random(seeds[number]), f"m{number}"
            begun.wait()
            while len(accepted) < end and not faults:
                want = draw.randint(1, 12)
                for first, last, _ in group.runs(want, member=member, mode=draw.randint(0, 1)):
                    for offset in range(first, last + 1):
                        held[offset] += 1
                        if held[offset] != 1:
                            faults.append(f"{offset} is held twice")
                    for offset in range(first, last + 1):
                        held[offset] -= 1
                        gives_back = draw.random() < 0.2
                        group.ack((offset, offset, RELEASE if gives_back else ACCEPT), member=member)
                        if not gives_back:
                            accepted.append(offset)

        group.alter(share_delivery_count_limit=10)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert faults == []
        archived = {n for n in range(end) if n not in accepted}
        assert sorted(accepted) == [n for n in range(end) if n not in archived]
        assert group.start() == end
    with ShareStore(store_dir) as group:
        assert group.runs() == []


def test_metrics_have_kafkas_names(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        group.runs()
        group.ack((0, 0, ACCEPT), (1, 2, [REJECT, RELEASE]))
        group.pass_ms(LOCK_MS)
        found = group.store.metrics()
        assert found["ackType=Accept"] == {"RecordAcknowledgementsPerSec": 1}
        assert found["ackType=Release"] == {"RecordAcknowledgementsPerSec": 1}
        assert found["group=g,topic=t,partition=0"] == {
            "InFlightMessageCount": 2,
            "InFlightBatchCount": 1,
            "InFlightBatchMessageCount": 2,
            "AcquisitionLockTimeoutPerSec": 1,
        }
        assert found["t-0"]["LogEndOffset"] == 4
        text = group.store.metrics_text()
        assert 'segstore_share_in_flight{group="g",partition="0",topic="t"} 2.0' in text
        assert 'segstore_share_acknowledgements_total{ackType="Accept"} 1.0' in text


def test_a_closed_store_refuses_and_wakes(store_dir: Path) -> None:
    woken: list[int] = []
    group = filled(store_dir, 4)
    found = group.acquire()
    assert found is not None
    group.share.on_available("g", lambda: woken.append(1))
    leader = group.share._leaders.get("g", group.topic_id, 0)
    assert leader is not None
    group.store.close()
    assert woken
    with pytest.raises(StoreClosedError):
        group.acquire()
    with pytest.raises(StoreClosedError):
        group.acknowledge((0, 3, ACCEPT))
    with pytest.raises(NotLeaderOrFollowerError):
        leader.ask(lambda core: core.start)
    group.share.cancel(found)


def test_a_store_has_one_coordinator(store: object, store_dir: Path) -> None:
    assert shared(store, ShareCoordinator) is shared(store, ShareCoordinator)  # type: ignore[arg-type]


# --- what may wait -----------------------------------------------------------------------------------


def test_what_is_in_memory_waits_for_nothing(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        at = group.topic_id, 0
        assert group.share.may_wait("g", [at])  # it is to be loaded
        group.acquire()
        assert not group.share.may_wait("g", [at])
        assert not group.share.may_wait("g", [])
        assert group.share.may_wait("g", [at, (group.topic_id, 1)])
        assert group.share.may_wait("other", [at])


def test_a_log_is_to_be_searched_for_a_group_that_reads_committed_records(store_dir: Path) -> None:
    with filled(store_dir, 4) as group:
        group.alter(**{"share.isolation.level": "read_committed"})
        group.acquire()
        assert not group.share.may_wait("g", [(group.topic_id, 0)])
        group.log.append_batch([b"v"] * MOST_SEARCHED)
        assert group.share.may_wait("g", [(group.topic_id, 0)])


def test_what_cant_be_told_is_said_to_wait(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: StateLog, key: object) -> bool:
        raise StorageError("planted")

    with filled(store_dir, 4) as group:
        group.acquire()
        monkeypatch.setattr(StateLog, "write_may_wait", failing)
        assert group.share.may_wait("g", [(group.topic_id, 0)])
