"""Durable states of share partitions in a replicated store: what was acknowledged is there after a failover,
and a state whose write is not decided is not written again before it is.
"""

from __future__ import annotations

from typing import Any

import pytest
from replicated_stores import PATIENT, Directories, await_in_sync
from share_states import folded, held, key_of, states_of
from waiting import until

from segstore.coordinator.retriable import passes
from segstore.coordinator.share.core.values import StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import TOPIC, Update
from segstore.errors import OffsetNotAvailableError, RequestTimedOutError

pytestmark = pytest.mark.kind("replicated stores")

B = StateBatch


def opened(three: Directories, **config: Any) -> Any:
    settings = {
        "share_coordinator_state_topic_num_partitions": 1,
        "share_coordinator_snapshot_update_records_per_snapshot": 5,
        "min_insync_replicas": 2,
    }
    store = three.open(**{**settings, **config})
    store.create_topic("t", 2, replication_factor=3, exist_ok=True)
    return store


def accept(store: Any, key: ShareKey, n: int) -> None:
    """Acknowledge offset `n`; repeat that while the error passes."""
    update = {key: Update(1, 0, 0, n + 1, (B(n, n, 2, 1),))}

    def is_written() -> bool:
        error = states_of(store).write(update)[key]
        assert error is None or passes(error), error
        return error is None

    until(is_written, 60)


def test_states_survive_failovers_and_restarts(three: Directories) -> None:
    store = opened(three)
    key, idle = key_of(store), key_of(store, "idle", "t", 1)
    states_of(store).initialise({key: (1, 0), idle: (1, 3)})
    for n in range(7):
        accept(store, key, n)
    three.lose(store.describe_partition(TOPIC, 0).leader)
    for n in range(7, 15):
        accept(store, key, n)
    known = held(store, [key, idle])
    assert known[key].batches == (B(0, 14, 2, 1),)
    assert folded(store, [key, idle]) == known
    three.close()
    three.bring_back()
    store = opened(three)
    await_in_sync(store)
    assert held(store, [key, idle]) == known
    states_of(store).delete([idle])
    states_of(store).prune()
    log = store.partition(TOPIC)
    assert log.start_offset > 7
    assert folded(store, [key, idle]) == {key: known[key]}
    accept(store, key, 15)
    three.close()
    store = opened(three)
    assert held(store, [key, idle])[key].batches == (B(0, 15, 2, 1),)
    store.delete_topic("t")
    assert states_of(store).read(key) is None


@pytest.mark.hangs
def test_q59_a_late_write_is_decided_before_the_next(three: Directories) -> None:
    store = opened(three, share_coordinator_write_timeout_ms=200, **PATIENT)
    key = key_of(store)
    states_of(store).initialise({key: (1, 0)})
    leader = store.describe_partition(TOPIC, 0).leader
    for number in {0, 1, 2} - {leader}:
        three.files.hang(three.paths[number])
    try:
        found = states_of(store).write({key: Update(1, 0, 0, 1, (B(0, 0, 2, 1),))})
        assert isinstance(found[key], RequestTimedOutError)
        end = store.partition(TOPIC).log_end_offset
        found = states_of(store).write({key: Update(1, 0, 0, 2, (B(1, 1, 2, 1),))})
        assert isinstance(found[key], OffsetNotAvailableError)
        assert store.partition(TOPIC).log_end_offset == end
    finally:
        three.files.mend()
    await_in_sync(store)
    accept(store, key, 1)
    assert held(store, [key])[key].batches == (B(0, 1, 2, 1),)
    assert held(store, [key]) == folded(store, [key])
