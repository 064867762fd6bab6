"""An ordinary program for Kafka. It uses librdkafka's client for Python, and not segstore.

    python wire_program.py HOST:PORT TOPIC RECORDS

The program produces numbered records, reads them as a member of a group, commits, and prints the number of
sent records and of received records. Threads: one, and the threads of librdkafka.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import confluent_kafka

_LONGEST = 60.0  # longest wait, in seconds


def produce(bootstrap_servers: str, topic: str, count: int) -> int:
    """Send `count` records, and return the number of records that were acknowledged."""
    acknowledged = 0

    def delivered(error: Any, _message: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "compression.type": "zstd"}
    )
    for number in range(count):
        value = f"record {number} over the network"
        while True:
            try:
                producer.produce(topic, value, key=str(number), on_delivery=delivered)
                break
            except BufferError:  # librdkafka's queue is full
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(_LONGEST)
    return acknowledged


def consume(bootstrap_servers: str, topic: str, count: int) -> int:
    """Read `count` records as a member of a group, commit, and return the number of distinct records."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "over the network",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: set[tuple[int | None, int | None]] = set()
    end = time.monotonic() + _LONGEST
    while len(found) < count and time.monotonic() < end:
        found |= {(m.partition(), m.offset()) for m in consumer.consume(1000, 0.5) if m.error() is None}
    consumer.commit(asynchronous=False)
    consumer.close()
    return len(found)


if __name__ == "__main__":
    server, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sent = produce(server, name, number)
    sys.stdout.write(json.dumps({"sent": sent, "received": consume(server, name, number)}) + "\n")
