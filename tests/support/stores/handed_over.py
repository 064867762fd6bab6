"""Replicated stores whose appends are handed over to native threads of the followers' directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from replicated_stores import Directories
from waiting import until

from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey

KEY = PartitionKey("t", 0)


@contextmanager
def opened(directories: Directories, **config: Any) -> Iterator[Any]:
    """A store with one topic of three replicas, which must be sound and equal at the end."""
    settings = {"replica_lag_time_max_ms": 60_000, "broker_session_timeout_ms": 60_000, **config}
    try:
        made = directories.open(min_insync_replicas=2, **settings)
        made.create_topic("t", replication_factor=len(directories.paths))
        yield made
    finally:
        directories.close()
    directories.judge()


@pytest.fixture
def three(tmp_path: Path) -> Directories:
    return Directories(tmp_path, 3)


def replicas(store: Any, key: PartitionKey = KEY) -> list[LocalReplica]:
    return [store.engine.manager.find(broker, key) for broker in range(3)]


def leader_of(store: Any, key: PartitionKey = KEY) -> LocalReplica:
    found = store.engine.manager.leader(key)
    assert isinstance(found, LocalReplica)
    return found


def is_joined(tail: Any) -> bool:
    return tail is not None and tail.is_open and all(each.is_open for each in tail.followers)


def lent(store: Any, key: PartitionKey = KEY) -> Any:
    """Append until the next append is handed over; return the leader's tail."""
    log, leader = store.partition(*key), leader_of(store, key)

    def look() -> bool:
        log.append(b"before")
        return is_joined(leader.partition.tail.native)

    until(look)
    return leader.partition.tail.native


def handed_over(store: Any, append: Callable[[], Any], key: PartitionKey = KEY) -> Any:
    """Append until that was done by one call of C, which all replicas took: on a busy machine their threads
    may be late. Return the last answer.
    """
    made: list[Any] = []

    def look() -> bool:
        tail = lent(store, key)
        before = tail.c.appends
        made.append(append())
        return tail.c.appends > before and is_joined(tail)

    until(look)
    return made[-1]


BULK = {
    "a batch with no room in a job": [b"v" * 20_000],
    "more batches than a job has room for": [b"v" * 9_000] * 10,
    "a call of 1 MB": [b"%04d" % n * 100 for n in range(2_500)],
}
