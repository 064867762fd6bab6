"""A mirror of two real Kafka brokers, which take the lead from each other: in order, and by an unclean
election, behind which the new leader lacks what the mirror has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_tools import judge, why_not
from mirrors import stored
from waiting import PATIENCE, until

import segstore

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="Kafka's broker needs a client with every codec"
)
pytest.importorskip("kafka.protocol.consumer.fetch", reason="kafka-python encodes what brokers send")
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's broker"),
]
CONFIG = {"metadata.max.age.ms": 500, "reconnect.backoff.max.ms": 200, "sync.group.offsets.enabled": False}


class Brokers:
    """A cluster with two brokers, `first` and `second`, and a mirror's view of it."""

    def __init__(self, directory: Path) -> None:
        from kafka_cluster import Cluster, Node

        self.cluster = Cluster(directory)
        self.first = self.cluster.broker
        self.second = Node(4, "broker", directory / "second", self.cluster.controller.port)

    def start(self) -> None:
        self.cluster.start()
        self.start_second()

    def start_second(self) -> None:
        self.second.start()
        self.second.await_up()
        until(lambda: self.cluster.is_active(self.second.node))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in (self.first.address, self.second.address))

    def create(self, topic: str, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self.cluster.create_topic(topic, [self.first.node, self.second.node], settings)
        until(lambda: self.in_sync(topic) == {self.first.node, self.second.node})

    def in_sync(self, topic: str) -> set[int]:
        found = self.cluster.partition(topic)
        return set() if found is None else set(found.isr)

    def leads(self, topic: str, node: int) -> bool:
        found = self.cluster.partition(topic)
        return found is not None and found.leader == node

    def elect(self, topic: str, leader: int) -> None:
        """Let a broker lead, which may do so already."""
        (other,) = {self.first.node, self.second.node} - {leader}
        if not self.leads(topic, leader):
            self.cluster.prefer(topic, [leader, other])
        until(lambda: self.leads(topic, leader))

    def produce(self, topic: str, values: range, acks: str = "all") -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "acks": acks})
        for n in values:
            producer.produce(topic, b"value %06d " % n * 9)
        assert producer.flush(PATIENCE) == 0

    def end(self) -> None:
        self.second.end()
        self.cluster.end()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("kafka"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def await_end(mirror: segstore.Mirror, topic: str, end: int) -> None:
    def there() -> bool:
        assert mirror._control.failure is None
        return [each.end_offset for each in mirror.partitions()] == [end]

    until(there)


def assert_equal(directory: Path, logs: Path, topic: str) -> None:
    """The same bytes and leader epochs; and nothing is wrong with the mirror."""
    assert stored(directory, topic, 0) == stored(logs, topic, 0)
    ours, leader = directory / f"{topic}-0", logs / f"{topic}-0"
    epochs = "leader-epoch-checkpoint"
    assert (ours / epochs).read_text().split() == (leader / epochs).read_text().split()
    assert judge(ours).errors == []
    assert segstore.check(directory) == []


def test_the_lead_goes_from_one_broker_to_the_other_and_back(brokers: Brokers, tmp_path: Path) -> None:
    first, second, directory = brokers.first, brokers.second, tmp_path / "mirror"
    brokers.create("orderly")
    with segstore.mirror(brokers.bootstrap, directory, "orderly", config=CONFIG) as mirror:
        for turn, leader in enumerate((first, second, first)):
            brokers.elect("orderly", leader.node)
            brokers.produce("orderly", range(turn * 100, turn * 100 + 100))
            await_end(mirror, "orderly", turn * 100 + 100)
            (part,) = mirror.partitions()
            assert part.leader == leader.node
        values = [record.value for record in mirror.store.partition("orderly").scan()]
        assert values == [b"value %06d " % n * 9 for n in range(300)]
    assert_equal(directory, first.logs, "orderly")
    assert not (directory / ".segstore" / "quarantine").exists()


def test_what_an_unclean_election_has_lost_is_cut_and_kept_aside(brokers: Brokers, tmp_path: Path) -> None:
    first, second, directory = brokers.first, brokers.second, tmp_path / "mirror"
    brokers.create("unclean", unclean_leader_election_enable="true")
    with segstore.mirror(brokers.bootstrap, directory, "unclean", config=CONFIG) as mirror:
        brokers.produce("unclean", range(50))
        second.kill()
        until(lambda: brokers.in_sync("unclean") == {first.node})
        brokers.produce("unclean", range(1000, 1050))
        await_end(mirror, "unclean", 100)
        first.kill()
        brokers.start_second()
        until(lambda: brokers.leads("unclean", second.node))
        brokers.produce("unclean", range(2000, 2030), acks="1")
        await_end(mirror, "unclean", 80)
        brokers.cluster.await_broker()
        until(lambda: brokers.in_sync("unclean") == {first.node, second.node})
        brokers.elect("unclean", first.node)
        brokers.produce("unclean", range(3000, 3010))
        await_end(mirror, "unclean", 90)
        expected = [*range(50), *range(2000, 2030), *range(3000, 3010)]
        found = [record.value for record in mirror.store.partition("unclean").scan()]
        assert found == [b"value %06d " % n * 9 for n in expected]
    assert_equal(directory, first.logs, "unclean")
    (kept,) = (directory / ".segstore" / "quarantine").iterdir()
    cut = [record.value for record in segstore.cut_records(directory)]
    assert cut == [b"value %06d " % n * 9 for n in range(1000, 1050)], kept
