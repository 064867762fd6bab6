"""R30: partitions move to other directories while they are written and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from replicated_stores import Directories, Writer, await_in_sync, found
from waiting import until

from segstore import errors

pytestmark = pytest.mark.kind("replicated stores")


def moved(store: Any) -> None:
    until(lambda: store.reassignments() == {})


def replica_directories(three: Directories) -> list[int]:
    return [number for number, path in enumerate(three.paths) if Path(path, "t-0").is_dir()]


MOVES: dict[str, tuple[list[int], list[int]]] = {
    "the follower": ([0, 1], [0, 2]),
    "the leader": ([0, 1], [2, 1]),
    "one more": ([0, 1], [0, 1, 2]),
    "one less": ([0, 1, 2], [0, 1]),
    "the leader leaves": ([0, 1, 2], [1, 2]),
    "another order": ([0, 1, 2], [2, 0, 1]),
    "all but one": ([0, 1], [1, 2]),
    "a single replica": ([0], [2]),
}


@pytest.mark.parametrize("name", MOVES)
def test_r30_a_partition_moves_while_it_is_written(three: Directories, name: str) -> None:
    before, target = MOVES[name]
    store = three.open()
    store.create_topic("t", assignments={0: before})
    log = store.partition("t", 0)
    log.append_batch([b"%d" % number * 100 for number in range(5_000)])
    with Writer(log) as writer:
        writer.more(5)
        epoch = store.describe_partition("t", 0).leader_epoch
        store.reassign({("t", 0): target})
        moved(store)
        writer.more(5)
    state = store.describe_partition("t", 0)
    assert (list(state.replicas), {*state.isr}) == (target, {*target})
    assert state.leader in target
    assert (state.leader_epoch > epoch) == (not {*before} <= {*target}), "R25"
    here = found(log)
    assert writer.acked.items() <= here.items()
    assert len(here) >= 5_000 + len(writer.acked)
    until(lambda: replica_directories(three) == sorted(target))


@pytest.mark.hangs
def test_r30_a_move_that_can_t_end_is_cancelled(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", assignments={0: [0, 1]})
    log = store.partition("t", 0)
    log.append(b"before")
    three.files.hang(three.paths[2])
    store.reassign({("t", 0): [0, 2]})
    (state,) = store.reassignments().values()
    assert (state.adding, state.removing, {*state.replicas}) == ((2,), (1,), {0, 1, 2})
    assert log.append(b"meanwhile", acks="all") == 1
    store.reassign({("t", 0): None})
    assert store.reassignments() == {}
    assert store.describe_partition("t", 0).replicas == (0, 1)
    three.files.mend()
    await_in_sync(store)
    assert found(log) == {0: b"before", 1: b"meanwhile"}
    with pytest.raises(errors.NoReassignmentInProgressError):
        store.reassign({("t", 0): None})


@pytest.mark.parametrize("target", [[], [0, 0], [0, 7], [-1]], ids=["none", "twice", "unknown", "negative"])
def test_r30_a_bad_target(three: Directories, target: list[int]) -> None:
    store = three.open()
    store.create_topic("t", assignments={0: [0, 1]})
    before = store.describe_partition("t", 0)
    with pytest.raises(errors.InvalidReplicaAssignmentError):
        store.reassign({("t", 0): target})
    assert store.describe_partition("t", 0).replicas == before.replicas
    assert store.reassignments() == {}


@pytest.mark.hangs
def test_r30_a_move_goes_on_after_a_reopening(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", assignments={0: [0, 1]})
    store.partition("t", 0).append_batch([b"%d" % number for number in range(1000)])
    three.files.hang(three.paths[2])
    store.reassign({("t", 0): [1, 2]})
    three.files.mend()
    store.close()
    with three.open() as again:
        moved(again)
        assert again.describe_partition("t", 0).replicas == (1, 2)
        assert len(found(again.partition("t", 0))) == 1000


def test_r30_a_directory_is_emptied_of_all_it_has(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", partitions=12, replication_factor=2)
    for number in range(12):
        store.partition("t", number).append(b"%d" % number)
    store.reassign({("t", number): [1, 2] for number in range(12)})
    moved(store)
    until(lambda: not list(three.paths[0].glob("t-*")))
    for number in range(12):
        assert found(store.partition("t", number)) == {0: b"%d" % number}
