"""R39: consumers with a `client_rack` read the follower in that directory, where it is in sync (KIP-392)."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from replicated_stores import Directories, await_in_sync, follower_of
from waiting import until

import segstore
from segstore.coordinator.structs import TopicPartition
from segstore.replication.metadata.image import PartitionKey

pytestmark = pytest.mark.kind("replicated stores")

T0 = TopicPartition("t", 0)


class Reads:
    """Counts the reads of the topic's logs by directory."""

    def __init__(self, three: Directories) -> None:
        self._logs = [f"{path}/t-0/" for path in three.paths]
        self.count, self._before = [0, 0, 0], three.files.before
        three.files.before = self  # type: ignore[method-assign]

    def __call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name.startswith("pread"):
            for number, log in enumerate(self._logs):
                self.count[number] += any(str(getattr(each, "path", "")).startswith(log) for each in args)
        self._before(name, args, kwargs)


def read_all(consumer: Any, count: int) -> list[int]:
    """The offsets of the next `count` records, or more."""
    seen: list[int] = []

    def more() -> bool:
        for some in consumer.poll(100).values():
            seen.extend(record.offset for record in some)
        return len(seen) >= count

    until(more)
    return seen


def consuming(store: Any, rack: str) -> Any:
    consumer = segstore.Consumer(store, client_rack=rack, auto_offset_reset="none")
    consumer.assign([T0])
    consumer.seek(T0, 0)
    return consumer


def filled(three: Directories, **config: Any) -> tuple[Any, Any, int]:
    """A store with 200 records, which all replicas have and show; its log, and a follower."""
    store = three.open(**config)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    log.append_batch([b"value %d" % n for n in range(200)], batch_bytes=500)
    await_in_sync(store)
    follower = follower_of(store.describe_partition("t", 0))
    replica = store.replicated.manager.find(follower, PartitionKey("t", 0))
    until(lambda: replica.replica.high_watermark == 200)
    return store, log, follower


def test_r39_the_follower_is_read(three: Directories) -> None:
    store, _, follower = filled(three)
    reads = Reads(three)
    with consuming(store, str(follower)) as consumer:
        assert read_all(consumer, 200) == [*range(200)]
    assert reads.count[follower] > 0
    assert sum(reads.count) == reads.count[follower]


@pytest.mark.parametrize("rack", ["", "7", "elsewhere"])
def test_r39_without_such_a_directory_the_leader_is_read(three: Directories, rack: str) -> None:
    store, _, _ = filled(three)
    leader, reads = store.describe_partition("t", 0).leader, Reads(three)
    with consuming(store, rack) as consumer:
        assert read_all(consumer, 200) == [*range(200)]
    assert reads.count[leader] == sum(reads.count)


@pytest.mark.parametrize("calls", [("pread", "pread_into"), None], ids=["its reads fail", "all calls fail"])
def test_r39_where_the_follower_fails_the_leader_is_read(three: Directories, calls: Any) -> None:
    """No record is lost, and none comes twice."""
    store, log, follower = filled(three)
    with consuming(store, str(follower)) as consumer:
        seen = [record.offset for some in consumer.poll(1000, max_records=3).values() for record in some]
        consumer._fetcher._buffers.clear()
        three.files.fail(three.paths[follower], errno.EIO, calls)
        end = log.append(b"last", timeout_ms=60_000) + 1
        seen += read_all(consumer, end - len(seen))
        assert seen == [*range(end)]


@pytest.mark.hangs
def test_r39_a_follower_that_is_not_in_sync_is_not_read(three: Directories) -> None:
    """Its disk hangs: a read there would, too."""
    store, log, follower = filled(three)
    three.files.hang(three.paths[follower])
    log.append(b"last", timeout_ms=60_000)
    until(lambda: follower not in store.describe_partition("t", 0).isr)
    with consuming(store, str(follower)) as consumer:
        assert read_all(consumer, 201) == [*range(201)]


def test_r39_what_comes_is_read_there_too(three: Directories) -> None:
    """A follower shows a record a little later than the leader; a consumer that waits gets it then."""
    store, log, follower = filled(three)
    with consuming(store, str(follower)) as consumer:
        read_all(consumer, 200)
        for number in range(200, 203):
            assert log.append(b"more") == number
            assert read_all(consumer, 1) == [number]
