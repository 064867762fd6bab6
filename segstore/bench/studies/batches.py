"""What `batching` measures: one run of each kind. On disk: a topic a run, deleted behind it.
Threads: one, and a producer's sender.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from segstore.bench.studies.common import new_log, percentile, seconds
from segstore.client.producer import Producer
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

APPEND, SYNCED, SIZE, LINGER = "append_batch", "append_batch, synced", "batch_size", "linger_ms"
TOPIC = "t"
UNFILLED = 1 << 20  # a batch_size that no paced run fills
TICK = 0.001  # s: a sleep is no more exact


@contextmanager
def _topic(store: Store, **config: int) -> Iterator[PartitionLog]:
    log = new_log(store, TOPIC, **config)
    try:
        yield log
        log.flush()  # not in any time, and not left to the next run
    finally:
        store.delete_topic(TOPIC)


def appended(
    store: Store, values: Sequence[bytes], each: int, calls: int, synced: bool = False
) -> Mapping[str, float]:
    """`append_batch` of `each` values, until all are appended, or `calls` times."""
    with _topic(store, **({"flush_messages": 1} if synced else {})) as log:
        starts = range(0, calls * each, each) if synced else range(0, len(values), each)
        batches = [values[at : at + each] for at in (start % len(values) for start in starts)]
        took = [seconds(lambda b=batch: log.append_batch(b)) for batch in batches]  # type: ignore[misc]
    rate = sum(map(len, batches)) / sum(took)
    return {"records/s": rate, **_latency(took)}


def flooded(store: Store, values: Sequence[bytes], count: int, batch_size: int) -> Mapping[str, float]:
    """`count` records by a Producer, as fast as it takes them."""
    with _topic(store):
        began = time.perf_counter()
        with Producer(store, linger_ms=5, batch_size=batch_size) as producer:
            for at in range(count):
                producer.send(TOPIC, values[at % len(values)])
        return {"records/s": count / (time.perf_counter() - began)}


def paced(
    store: Store, values: Sequence[bytes], rate: int, length: float, linger_ms: int
) -> Mapping[str, float]:
    """`rate` records a second for `length` seconds: how long each takes until it is done."""
    count, took = int(rate * length), list[float]()
    clock = time.perf_counter

    def done(began: float, _: object) -> None:
        took.append(clock() - began)

    with _topic(store), Producer(store, linger_ms=linger_ms, batch_size=UNFILLED) as producer:
        producer.send(TOPIC, b"first").get(timeout=10)  # opens the partition
        began = clock()
        for at in range(count):
            while (ahead := began + at / rate - clock()) > 0:
                time.sleep(max(ahead, TICK))
            producer.send(TOPIC, values[at % len(values)]).add_callback(done, clock())
        producer.flush()
        spent = clock() - began
        metrics = producer.metrics()
        assert metrics is not None  # they are on by default
        batches = metrics["producer-metrics"]["request-total"] - 1  # one partition: each request is a batch
    return {"records/s": count / spent, "records a batch": count / batches, **_latency(took)}


def _latency(took: Sequence[float]) -> dict[str, float]:
    return {"p50 ms": percentile(took, 0.5) * 1e3, "p99 ms": percentile(took, 0.99) * 1e3}
