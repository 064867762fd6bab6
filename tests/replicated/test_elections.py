"""R24, R29: who leads after what, by request and by itself; unclean elections only where they are allowed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from replicated_stores import Directories, append_alone, await_in_sync, found, retrying
from waiting import until

import segstore
from segstore import errors
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.replication.metadata.image import PartitionKey
from segstore.storage.staging import Stager, seal

pytestmark = pytest.mark.kind("replicated stores")


def two_replicas(three: Directories, **config: Any) -> tuple[Any, Any]:
    """A topic on directories 0 and 1; 0 is preferred."""
    store = three.open(auto_leader_rebalance_enable=False)
    store.create_topic("t", assignments={0: [0, 1]}, config=config)
    return store, store.partition("t", 0)


def test_r29_the_preferred_leader_is_elected_by_request(three: Directories) -> None:
    store, log = two_replicas(three)
    log.append(b"by 0")
    three.files.fail(three.paths[0])
    until(lambda: store.describe_partition("t", 0).leader == 1)
    assert retrying(lambda: log.append(b"by 1")) == 1
    store.close()
    three.bring_back()
    with three.open() as again:
        await_in_sync(again)
        assert again.describe_partition("t", 0).leader == 1, "a live leader is kept (R24)"
        epoch = again.describe_partition("t", 0).leader_epoch
        assert again.elect_leaders("preferred", [("t", 0)]) == {("t", 0): None}
        assert again.describe_partition("t", 0).leader == 0
        assert again.describe_partition("t", 0).leader_epoch == epoch + 1
        log = again.partition("t", 0)
        assert retrying(lambda: log.append(b"by 0 again")) == 2
        assert found(log) == {0: b"by 0", 1: b"by 1", 2: b"by 0 again"}
        (refused,) = again.elect_leaders("preferred").values()
        assert isinstance(refused, errors.ElectionNotNeededError)


def test_r38_who_waits_for_what_was_committed_reads_it_from_the_new_leader(three: Directories) -> None:
    """A new leader counts as the leader just before reads are directed to it."""
    store, log = two_replicas(three)
    log.append(b"by 0")
    manager, key = store.replicated.manager, PartitionKey("t", 0)
    redirect = manager._redirect

    def late(*at: Any) -> None:
        time.sleep(0.3)
        redirect(*at)

    manager._redirect = late
    three.files.fail(three.paths[0])
    until(lambda: (leader := manager.leader(key)) is not None and leader.broker == 1)
    log.await_committed()
    assert log.source is manager.leader(key).partition


def test_r29_preferred_leaders_are_elected_regularly(three: Directories) -> None:
    store = three.open(leader_imbalance_check_interval_seconds=1)
    store.create_topic("t", partitions=6, replication_factor=3)
    three.lose(0)
    until(lambda: all(store.describe_partition("t", n).leader not in (0, -1) for n in range(6)))
    store.close()
    three.bring_back()
    with three.open() as again:
        until(lambda: {again.describe_partition("t", n).leader for n in range(6)} == {0, 1, 2})
        assert all(
            again.describe_partition("t", n).leader == again.describe_partition("t", n).replicas[0]
            for n in range(6)
        )


def test_r29_a_preferred_replica_that_is_not_in_sync_is_not_elected(three: Directories) -> None:
    store, _ = two_replicas(three)
    three.files.fail(three.paths[0])
    until(lambda: store.describe_partition("t", 0).leader == 1)
    (refused,) = store.elect_leaders("preferred", [("t", 0)]).values()
    assert isinstance(refused, errors.PreferredLeaderNotAvailableError)
    assert store.describe_partition("t", 0).leader == 1


def left_alone(three: Directories, **config: Any) -> tuple[Any, Any]:
    """Replica 1 hangs, 0 goes on alone and is then lost: nobody is left who has all that was acknowledged."""
    store, log = two_replicas(three, **config)
    log.append(b"both have it")
    append_alone(three, store, log, 1)
    three.files.fail(three.paths[0])
    three.files._hanging[str(three.paths[1])].set()
    three.files._hanging = {}
    until(lambda: store.describe_partition("t", 0).leader != 0)
    return store, log


@pytest.mark.hangs
def test_r24_without_a_replica_in_sync_nobody_leads(three: Directories) -> None:
    store, log = left_alone(three)
    state = store.describe_partition("t", 0)
    assert (state.leader, state.isr, state.elr) == (-1, (), (0,))
    with pytest.raises(segstore.SegstoreError):
        log.append(b"nobody takes it", acks="all", timeout_ms=300)
    store.close()
    three.bring_back()
    with three.open() as again:
        await_in_sync(again)
        assert found(again.partition("t", 0)) == {0: b"both have it", 1: b"lost 0"}


@pytest.mark.hangs
def test_r24_an_unclean_election_by_request_loses_what_it_says(three: Directories) -> None:
    store, log = left_alone(three)
    with pytest.raises(segstore.errors.InvalidArgumentError, match="confirm"):
        store.elect_leaders("unclean", [("t", 0)])
    assert store.describe_partition("t", 0).leader == -1
    assert store.elect_leaders("unclean", [("t", 0)], confirm=True) == {("t", 0): None}
    assert store.describe_partition("t", 0).leader == 1
    assert store.describe_partition("t", 0).isr == (1,)
    assert retrying(lambda: log.append(b"1 goes on", acks="all")) == 1
    assert found(log) == {0: b"both have it", 1: b"1 goes on"}


@pytest.mark.hangs
def test_r24_what_was_decided_is_in_no_unclean_election(three: Directories) -> None:
    """Outcomes of transactions and ids of adoptions are not lost by what is allowed for other topics."""
    one = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    store = three.open(unclean_leader_election_enable=True, **one)
    store.create_topic("t", replication_factor=3)
    with Stager(three.paths[0]) as stager:
        stager.append_batch("t", 0, [b"staged"])
        message = stager.finish()
    seal(three.paths[0], "id", [message], timeout=60)
    shared(store, GroupOffsets).commit("g", {TopicPartition("t", 0): OffsetAndMetadata(1)})
    settings = store.replicated.controller._core.settings
    allowed = {key.topic: one.unclean_leader_election for key, one in settings.items()}
    assert allowed == {
        "t": True,
        "__consumer_offsets": True,
        "__transaction_state": False,
        "__segstore_adopted": False,
    }
    await_in_sync(store)


@pytest.mark.hangs
def test_r24_unclean_elections_that_are_allowed_come_by_themselves(three: Directories) -> None:
    store, log = left_alone(three, **{"unclean.leader.election.enable": True})
    until(lambda: store.describe_partition("t", 0).leader == 1)
    assert retrying(lambda: log.append(b"1 goes on", acks="all")) == 1


BAD: dict[str, tuple[tuple[Any, ...], type[Exception]]] = {
    "another kind": (("best", [("t", 0)]), errors.InvalidArgumentError),
    "an unknown topic": (("preferred", [("u", 0)]), errors.UnknownTopicOrPartitionError),
    "an unknown partition": (("preferred", [("t", 9)]), errors.UnknownTopicOrPartitionError),
    "no partitions": (("preferred", 3), errors.InvalidTypeError),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_election(three: Directories, name: str) -> None:
    arguments, error = BAD[name]
    store, _ = two_replicas(three)
    before = store.describe_partition("t", 0)
    with pytest.raises(error):
        store.elect_leaders(*arguments)
    assert store.describe_partition("t", 0)[:6] == before[:6]


def test_a_replica_that_is_late_to_say_that_it_leads_is_not_believed(three: Directories) -> None:
    """Its thread may have stopped between the two elections that it had won and lost: nobody led then."""
    store, log = two_replicas(three)
    manager, key = store.replicated.manager, PartitionKey("t", 0)
    former = manager.leader(key)
    store.reassign({("t", 0): [1, 0]})
    until(lambda: not store.reassignments())
    assert retrying(lambda: store.elect_leaders("preferred", [("t", 0)])) == {("t", 0): None}
    until(lambda: manager.leader(key) is not None and manager.leader(key).broker == 1)
    manager.leads(former)
    assert manager.leader(key).broker == 1
    assert log.source is manager.leader(key).partition
    assert log.append(b"by 1", timeout_ms=60_000) == 0
