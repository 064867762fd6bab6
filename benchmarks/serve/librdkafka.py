"""Works of confluent-kafka: records in and out, and one record's way from a producer to a consumer.

Threads: librdkafka's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from itertools import cycle, islice

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.peers.records import Records

from .bench import WAIT, Bench
from .terms import CPU_MILLION, RATE

AT_ONCE = 10_000
DISTINCT = 10_000
"""Values; records have them again and again."""
PRODUCER = {"queue.buffering.max.messages": 1_000_000}
CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 1,  # else the client waits a second where its queue was full
    "queued.min.messages": 1_000_000,
}


@cache
def _values(value_bytes: int) -> Sequence[bytes]:
    return Records(DISTINCT, value_bytes).values


def produced(bench: Bench, topic: str, count: int, value_bytes: int, partitions: int = 1) -> dict[str, float]:
    """All of them acknowledged: records/s, and the server's CPU for a million."""
    with closing(Producer({**bench.config, **PRODUCER})) as producer:
        producer.list_topics(topic, timeout=WAIT)  # connected
        values, produce = islice(cycle(_values(value_bytes)), count), producer.produce
        with bench.server.measured() as spent:
            for number, value in enumerate(values):
                produce(topic, value, partition=number % partitions)
            left = producer.flush(WAIT)
        assert left == 0, f"{left} of {count} records were not acknowledged"
    return rates(count, spent.seconds, spent.cpu)


def consumed(bench: Bench, topic: str, count: int, value_bytes: int) -> dict[str, float]:
    """All of them, CRCs checked, from the assignment on."""
    with closing(Consumer({**bench.config, **CONSUMER, "check.crcs": True})) as consumer:
        consumer.list_topics(topic, timeout=WAIT)
        found = size = 0
        with bench.server.measured() as spent:
            consumer.assign([TopicPartition(topic, 0, 0)])
            until = time.monotonic() + WAIT
            while found < count and time.monotonic() < until:
                messages = consumer.consume(AT_ONCE, 0.05)
                found += len(messages)
                size += sum(len(message.value()) for message in messages)
    assert (found, size) == (count, count * value_bytes), f"{found} records of {size} bytes came out"
    return rates(count, spent.seconds, spent.cpu)


def rates(count: int, seconds: float, cpu: float) -> dict[str, float]:
    return {RATE: count / seconds, CPU_MILLION: cpu / count * 1e6}


def followed(bench: Bench, topic: str, count: int) -> list[float]:
    """Seconds from before a record is produced until a consumer that waits for it has it, one at a time
    (Kafka: EndToEndLatency).
    """
    took = []
    with (
        closing(Producer({**bench.config, "linger.ms": 0})) as producer,
        closing(Consumer({**bench.config, **CONSUMER})) as consumer,
    ):
        consumer.assign([TopicPartition(topic, 0, 0)])
        for number in range(count + 1):
            value, began = b"%d" % number, time.perf_counter()
            producer.produce(topic, value, partition=0)
            producer.poll(0)
            message = consumer.poll(WAIT)
            ended = time.perf_counter()
            assert message is not None, f"record {number} did not come"
            assert message.error() is None, message.error()
            assert message.value() == value
            if number:  # the first one connects
                took.append(ended - began)
    return took
