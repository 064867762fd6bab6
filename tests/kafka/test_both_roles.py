"""A real Kafka broker is the other replica of ours: it leads and we follow, then we lead and it follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka_tools import why_not

from segstore.records import CODECS

pytest.importorskip("confluent_kafka", reason="Kafka's broker needs a client with every codec")
pytest.importorskip("kafka.protocol.consumer.fetch", reason="kafka-python encodes what brokers send")
pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("replicas of a real broker"),
]
if TYPE_CHECKING:
    from kafka_pair import Pair


def test_a_partition_goes_from_kafka_to_us_and_back(pair: Pair) -> None:
    from kafka_pair import values

    pair.create(leader=pair.kafka, min_insync_replicas="2", segment_bytes="1048576")
    for codec in CODECS:
        pair.produce(values(f"kafka {codec}", 200, 2000), codec=codec)
    pair.elect(pair.node)
    for codec in CODECS:
        pair.ask("append", pair.topic, values(f"ours {codec}", 200, 2000), codec)
    pair.elect(pair.kafka)
    pair.produce(values("kafka again"))
    batches = pair.judge()
    assert {batch["codec"].upper() for batch in batches} == {codec.upper() for codec in CODECS}
    assert len({batch["partitionLeaderEpoch"] for batch in batches}) >= 3
