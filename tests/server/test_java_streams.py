"""Promise: Kafka Streams counts exactly once, though its processes and the server are killed; and so it does
with a broker of Kafka's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import built_programs as built
import kafka_tools
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from java_programs import POM, JavaProgram
from kafka_broker import Broker
from killed_servers import SERVERS, KilledServer, committed, ends, server
from waiting import PATIENCE, until

pytestmark = [
    pytest.mark.judge("Kafka Streams"),
    pytest.mark.skipif(bool(kafka_tools.why_not()), reason=str(kafka_tools.why_not())),
    pytest.mark.skipif(bool(built.missing("javac")), reason=str(built.missing("javac"))),
    pytest.mark.kind("Java's clients"),
]
APPLICATION = "word-count"
INTERNAL = (f"{APPLICATION}-words-repartition", f"{APPLICATION}-counted-changelog")
PARTITIONS = 2
LINES, WORDS = 3000, 50
CLASSIC = ("session.timeout.ms=6000", "heartbeat.interval.ms=1000", "commit.interval.ms=20")


class Instance:
    """A process of the application, which may be started again with the state that it had."""

    def __init__(self, directory: Path, address: str, settings: Sequence[str] = ()) -> None:
        directory.mkdir()
        self._directory, self._arguments = directory, [address, directory / "state", *settings]
        self.start()

    def start(self) -> None:
        classes = built.compiled("streams", kafka_tools.classpath(POM))
        self.program = JavaProgram("WordCount", self._arguments, self._directory / "log", classes)

    def await_running(self) -> None:
        """Wait until it has tasks, and its stores are restored; for the first time."""
        self.program.until(lambda: "RUNNING" in self.program.told.split())


class Text:
    """The topic of lines, and the words in it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.counts: Counter[str] = Counter()
        self._sent = 0
        make_topics(address)

    def write_midway(self) -> None:
        """Write lines of two words, and wait until about a quarter of the new counts is committed."""
        before = self._ends()
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True})
        for number in range(self._sent, self._sent + LINES):
            words = [f"word{number % WORDS}", f"word{number * 7 % WORDS}"]
            self.counts.update(words)
            producer.produce("lines", " ".join(words), f"{number}")
        self._sent += LINES
        assert producer.flush(PATIENCE) == 0
        until(lambda: self._ends() >= before + LINES // 2)

    def _ends(self) -> int:
        return sum(ends(self.address, "counts", PARTITIONS))

    def await_counts(self) -> None:
        """Wait until all words are counted. Each word has had each count once, in order."""
        wanted = sum(self.counts.values())
        until(lambda: self._ends() >= wanted and sum(map(len, self._counts().values())) >= wanted)
        assert self._counts() == {word: list(range(1, 1 + n)) for word, n in self.counts.items()}

    def _counts(self) -> dict[str, list[int]]:
        found = defaultdict(list)
        for partition in committed(self.address, "counts", PARTITIONS):
            for word, count in partition:
                assert word is not None
                assert count is not None
                found[word.decode()].append(int(count))
        return dict(found)


def make_topics(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    wanted = [NewTopic(name, PARTITIONS, 1) for name in ("lines", "counts")]
    for made in admin.create_topics(wanted).values():
        made.result(PATIENCE)


@pytest.fixture
def at(request: pytest.FixtureRequest, tmp_path: Path, store_dir: Path) -> Iterator[KilledServer]:
    """A server of the name that is the test's parameter."""
    directory = store_dir if request.param == "segstore" else tmp_path / "kafka"
    with server(request.param, directory, {}) as found:
        yield found
    if request.param == "segstore":
        names = ("lines", "counts", *INTERNAL)
        partitions = [store_dir / f"{name}-{number}" for name in names for number in range(PARTITIONS)]
        assert kafka_tools.judge(*(path for path in partitions if path.exists())).errors == []


@pytest.fixture
def instances() -> Iterator[list[Instance]]:
    """Processes that end with the test."""
    found: list[Instance] = []
    yield found
    for each in found:
        each.program.kill()


@pytest.mark.parametrize("at", SERVERS, indirect=True)
def test_words_are_counted_exactly_once(at: KilledServer, instances: list[Instance], tmp_path: Path) -> None:
    text = Text(at.address)
    instances += [Instance(tmp_path / name, at.address, CLASSIC) for name in ("first", "second")]
    for instance in instances:
        instance.await_running()
    for instance in instances:
        text.write_midway()
        instance.program.kill()
        text.write_midway()
        instance.start()
    text.write_midway()
    at.kill()
    at.start()
    text.write_midway()
    at.kill()
    for instance in instances:
        instance.program.kill()
    at.start()
    for instance in instances:
        instance.start()
    text.await_counts()
    for instance in instances:
        instance.program.end()


REFUSED = (
    "org.apache.kafka.common.errors.UnsupportedVersionException: The cluster does not support the STREAMS"
    " group protocol or does not support the versions of the STREAMS group protocol used by this client"
)


def refused(address: str, instances: list[Instance], directory: Path) -> None:
    """The protocol of streams groups ends a process with an error that names it."""
    make_topics(address)
    instances.append(Instance(directory, address, ["group.protocol=streams"]))
    instance = instances[-1]
    instance.program.process.wait(PATIENCE)
    assert REFUSED in instance.program.told
    assert "RUNNING" not in instance.program.told.split()


@pytest.mark.parametrize("at", ["segstore"], indirect=True)
def test_streams_groups_are_refused(at: KilledServer, instances: list[Instance], tmp_path: Path) -> None:
    refused(at.address, instances, tmp_path / "instance")


def test_a_broker_without_streams_groups_refuses_alike(instances: list[Instance], tmp_path: Path) -> None:
    broker = Broker(kafka_tools.classpath(kafka_tools.POM_4_1), tmp_path / "broker")
    with broker.running() as address:
        refused(address, instances, tmp_path / "instance")
