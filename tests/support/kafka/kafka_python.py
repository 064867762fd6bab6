"""Consumers of kafka-python that join a group only when they know its topics.

kafka-python 3.0.12 may join before it has the topics' metadata (KAFKA-3949). As the leader it then gives
nobody a partition ("No partition metadata for topic"), and joins once more as the metadata comes. Where the
answers of that second join come between two polls, the member forgets them: it has no partition, sends no
heartbeat, and is expelled as its session ends.
"""

from __future__ import annotations

from collections.abc import Iterable

import kafka
from waiting import until


def member(*topics: str, **settings: object) -> kafka.KafkaConsumer:
    """Return a consumer that is subscribed to `topics`, which exist, and knows their partitions."""
    return knowing(kafka.KafkaConsumer(*topics, **settings), topics)


def knowing(consumer: kafka.KafkaConsumer, topics: Iterable[str]) -> kafka.KafkaConsumer:
    """Return `consumer` once it knows the partitions of `topics`."""
    for topic in topics:
        until(lambda topic=topic: consumer.partitions_for_topic(topic))
    return consumer
