"""Promise: a member of a classic group keeps its partitions over a kill of the server, as with a broker of
Kafka's.
"""

from __future__ import annotations

from pathlib import Path

import kafka_tools
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from killed_servers import SERVERS, server
from waiting import PATIENCE, until

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(bool(kafka_tools.why_not()), reason=str(kafka_tools.why_not())),
    pytest.mark.kind("Java's clients"),
]
FENCED = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)


@pytest.mark.parametrize("name", SERVERS)
def test_a_classic_member_keeps_its_partitions(name: str, store_dir: Path, tmp_path: Path) -> None:
    with server(name, store_dir if name == "segstore" else tmp_path / "kafka", {}) as at:
        producer = Producer({"bootstrap.servers": at.address})
        producer.produce("t", b"x")
        assert producer.flush(PATIENCE) == 0
        group = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        member = Consumer({"bootstrap.servers": at.address, **group})
        given: list[str] = []
        member.subscribe(
            ["t"],
            on_assign=lambda _, parts: given.append(f"{len(parts)} assigned"),
            on_revoke=lambda _, parts: given.append(f"{len(parts)} revoked"),
            on_lost=lambda _, parts: given.append(f"{len(parts)} lost"),
        )

        def reads() -> bool:
            message = member.poll(0.1)
            return message is not None and message.value() == b"x"

        def commits() -> bool:
            member.poll(0)
            try:
                return bool(member.commit(asynchronous=False))
            except KafkaException as told:
                if told.args[0].code() in FENCED:
                    raise
                return False  # the server is not there yet

        until(reads)
        at.kill()
        at.start()
        until(commits)
        assert given == ["1 assigned"]
        member.close()
