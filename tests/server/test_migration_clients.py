"""Promise: librdkafka's consumers of both protocols roll over one by one, forwards and back, under load: no
record is lost, and no partition is two members' at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from waiting import until

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.shared import shared

PARTITIONS = 6
CONFIG = {"group.consumer.heartbeat.interval.ms": 100, "offsets.topic.num.partitions": 1}
LATE = {
    confluent_kafka.KafkaError.ILLEGAL_GENERATION,
    confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
    confluent_kafka.KafkaError.STALE_MEMBER_EPOCH,
}
CLASSIC = {"heartbeat.interval.ms": 100, "session.timeout.ms": 30_000}


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG) as store:
        store.create_topic("t", PARTITIONS)
        yield store


class Rolling:
    """Consumers of one group that are polled in turn, while records are appended. `owner` has who has which
    partition, as the consumers' listeners were told; `read` counts each record that was read. `asked` and
    `answered` count commits.
    """

    def __init__(self, server: segstore.Server, store: segstore.Store) -> None:
        self._server, self._store = server, store
        self.members: dict[str, confluent_kafka.Consumer] = {}
        self.owner: dict[int, str] = {}
        self.read: Counter[bytes] = Counter()
        self.written = self.asked = self.answered = 0

    def add(self, name: str, **settings: Any) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._server.bootstrap_servers,
                "group.id": "g",
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "on_commit": self._committed,
                **settings,
            }
        )

        def assigned(_: Any, partitions: list[Any]) -> None:
            for each in partitions:
                assert self.owner.setdefault(each.partition, name) == name

        def revoked(_: Any, partitions: list[Any]) -> None:
            for each in partitions:
                assert self.owner.pop(each.partition) == name

        consumer.subscribe(["t"], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        self.members[name] = consumer

    def remove(self, name: str) -> None:
        self.members[name].close()
        del self.members[name]
        assert name not in self.owner.values()

    def turn(self) -> None:
        """Write a record to each partition; read, and commit what was read."""
        for number in range(PARTITIONS):
            self._store.partition("t", number).append(b"%d-%d" % (number, self.written))
        self.written += 1
        for consumer in self.members.values():
            self._poll(consumer)

    def _poll(self, consumer: confluent_kafka.Consumer) -> None:
        for message in consumer.consume(50, 0.05):
            assert message.error() is None
            value = message.value()
            assert value is not None
            self.read[value] += 1
            self._commit(consumer, message)

    def _commit(self, consumer: confluent_kafka.Consumer, message: confluent_kafka.Message) -> None:
        # A commit that this thread waits for may time out: librdkafka sends it behind the member's
        # JoinGroup, which a broker answers once the others have joined, and these need to be polled for that.
        self.asked += 1
        consumer.commit(message=message, asynchronous=True)

    def _committed(self, error: confluent_kafka.KafkaError | None, _: Any) -> None:
        # The group may have gone on, and the consumer does not know it yet: the next commit tells more.
        self.answered += 1
        assert error is None or error.code() in LATE, error

    def settle(self) -> None:
        """Go on until all partitions are shared fairly."""

        def settled() -> bool:
            self.turn()
            sizes = [len(consumer.assignment()) for consumer in self.members.values()]
            return sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

        until(settled)

    def finish(self) -> None:
        def all_read() -> bool:
            for consumer in self.members.values():
                self._poll(consumer)
            return len(self.read) == PARTITIONS * self.written and self.answered == self.asked

        until(all_read)


@pytest.fixture
def rolling(server: segstore.Server, store: segstore.Store) -> Iterator[Rolling]:
    rolling = Rolling(server, store)
    yield rolling
    for consumer in rolling.members.values():
        consumer.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_rolls_over_and_back(rolling: Rolling, store: segstore.Store, strategy: str) -> None:
    old = {**CLASSIC, "group.protocol": "classic", "partition.assignment.strategy": strategy}
    new = {"group.protocol": "consumer"}
    groups = shared(store, GroupCoordinator)
    rolling.add("old-1", **old)
    rolling.add("old-2", **old)
    rolling.settle()
    for number in (1, 2):
        rolling.add(f"new-{number}", **new)
        rolling.settle()
        assert groups.describe_consumers("g") is not None
        rolling.remove(f"old-{number}")
        rolling.settle()
    for number in (1, 2):
        rolling.add(f"back-{number}", **old)
        rolling.settle()
        rolling.remove(f"new-{number}")
        rolling.settle()
    assert groups.describe_consumers("g") is None
    rolling.finish()
