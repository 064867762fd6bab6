"""Promise: Java's share consumer sees of a server what it sees of a broker of Kafka 4.4: which records are
given, how often, what becomes of acknowledgements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import built_programs as built
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka_broker import Broker
from kafka_tools import classpath, why_not

import segstore

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.skipif(bool(built.missing("javac")), reason=str(built.missing("javac"))),
    pytest.mark.timeout(600),
    pytest.mark.kind("Java's clients"),
]
SHORTEST_LOCK = "group.share.min.record.lock.duration.ms"
MORE = f"""\
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
{SHORTEST_LOCK}=1000
"""
COUNTS = {"types": 10, "implicit": 10, "late": 10, "limit": 16}
"""The scenarios of tests/server/programs/share_java/Share.java, and the records that each needs."""
SETTINGS = {"late": {"share.record.lock.duration.ms": "1000"}}
FROM_START = {"share.auto.offset.reset": "earliest"}
TEN = " ".join(f"{offset}/1" for offset in range(10))


def seen(address: str) -> dict[str, list[str]]:
    """Return what each scenario prints; each has a topic and a group of its own."""
    admin = AdminClient({"bootstrap.servers": address})
    made = admin.create_topics([NewTopic(name, 1) for name in COUNTS])
    for future in made.values():
        future.result()
    for name in COUNTS:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in {**FROM_START, **SETTINGS.get(name, {})}.items()
        ]
        resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()
        fill(address, name)
    return {name: built.java_lines("share_java", "Share", name, address, name, name) for name in COUNTS}


def fill(address: str, name: str) -> None:
    """Produce a scenario's records, in one batch."""
    settings = {"bootstrap.servers": address, "linger.ms": 1000, "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    for number in range(COUNTS[name]):
        producer.produce(name, b"r%d" % number)
    producer.flush()


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is seen of a server."""
    path = tmp_path_factory.mktemp("share") / "store"
    with segstore.open(path, config={SHORTEST_LOCK: 1000}) as store, segstore.serve(store, port=0) as server:
        found = seen(server.bootstrap_servers)
    assert segstore.check(path) == []
    return found


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """What is seen of a broker."""
    with Broker(classpath(), tmp_path_factory.mktemp("broker"), more=MORE).running() as address:
        yield seen(address)


def comparable(lines: Sequence[str]) -> list[str]:
    """Return lines without the order in which a callback is told of the offsets of one call."""

    def told(match: re.Match[str]) -> str:
        return "[" + ", ".join(sorted(match[1].split(", "), key=int)) + "]"

    return [re.sub(r"\[([\d, ]+)\]", told, line) for line in lines]


def test_all_types_of_acknowledgements(mine: dict[str, list[str]]) -> None:
    assert comparable(mine["types"]) == [
        f"first {TEN}",
        f"callback ok {{0={list(range(10))}}}",
        "commit 0=ok",
        "renewed 8/1 9/1",
        "callback ok {0=[8, 9]}",
        "commit 0=ok",
        "released 3/2 4/2 5/2",
        "lock 30000",
        "callback ok {0=[3, 4, 5]}",
        "closed",
    ]


def test_polls_acknowledge(mine: dict[str, list[str]]) -> None:
    assert comparable(mine["implicit"]) == [f"first {TEN}", f"callback ok {{0={list(range(10))}}}", "closed"]


def test_q31_locks_that_have_run_out_fail_the_whole_commit(mine: dict[str, list[str]]) -> None:
    assert comparable(mine["late"]) == [
        f"first {TEN}",
        f"callback InvalidRecordStateException {{0={list(range(10))}}}",
        "commit 0=InvalidRecordStateException",
        "again " + " ".join(f"{offset}/2" for offset in range(10)),
        f"callback ok {{0={list(range(10))}}}",
        "commit 0=ok",
    ]


def test_q24_records_near_the_limit_of_deliveries(mine: dict[str, list[str]]) -> None:
    given = answers(mine["limit"])
    assert sorted(map(len, given)) == [1] * 16 + [8, 8, 16, 16, 16]
    assert Counter(each for answer in given for each in answer) == Counter(
        f"{offset}/{count}" for offset in range(16) for count in range(1, 6)
    )


def answers(lines: Sequence[str]) -> list[list[str]]:
    return [line.split()[1:] for line in lines if line.startswith("given ")]


@pytest.mark.parametrize("name", ["types", "implicit", "late"])
def test_a_broker_shows_the_same(mine: dict[str, list[str]], theirs: dict[str, list[str]], name: str) -> None:
    assert comparable(mine[name]) == comparable(theirs[name])


def test_a_broker_gives_the_same_near_the_limit(
    mine: dict[str, list[str]], theirs: dict[str, list[str]]
) -> None:
    """The order of its answers depends on when a fetch is under way."""
    assert sorted(answers(mine["limit"])) == sorted(answers(theirs["limit"]))
