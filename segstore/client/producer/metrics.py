"""`ProducerMetrics`: the metrics of a producer, by Kafka's names.

After an append the sender only adds values to a list, because at that time readers of the log wait for the
GIL. The next snapshot passes the values to the sensors. If the list has more than MOST_NOTED items, the
sender passes them itself.

Threads: the sender records; any thread may call `snapshot`. A snapshot may lack the newest append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from segstore.client.producer.batch import ProducerBatch
from segstore.client.producer.buffer_pool import BufferPool
from segstore.client.producer.config import ProducerConfig
from segstore.coordinator.metrics import Sensor
from segstore.mutex import nesting

Snapshot = dict[str, dict[str, float]]


class _Topic:
    """The sensors of one topic."""

    def __init__(self, samples: int, window_ms: float) -> None:
        self.records, self.bytes = Sensor(samples, window_ms), Sensor(samples, window_ms)
        self.compression = Sensor(samples, window_ms)
        self.retries, self.errors = Sensor(samples, window_ms), Sensor(samples, window_ms)

    def snapshot(self) -> dict[str, float]:
        """Return {Kafka's name of a metric: value}."""
        return {
            "record-send-rate": self.records.rate,
            "record-send-total": self.records.total,
            "byte-rate": self.bytes.rate,
            "byte-total": self.bytes.total,
            "compression-rate": self.compression.avg,
            "record-retry-rate": self.retries.rate,
            "record-retry-total": self.retries.total,
            "record-error-rate": self.errors.rate,
            "record-error-total": self.errors.total,
        }


MOST_NOTED = 1000


class _Sent(NamedTuple):
    """One append of batches of a topic. `batches`: (uncompressed bytes, number of records, creation time) of
    each batch. `stored`: bytes on disk. `began` and `ended`: the times when the append began and ended. Times
    are in monotonic seconds.
    """

    topic: str
    batches: list[tuple[int, int, float]]
    stored: int
    began: float
    ended: float


# `_sizes_of` and `_sent` are implemented in C.
_sizes_of = attrgetter("size", "n", "created")
_sent: Callable[[tuple[Any, ...]], _Sent] = partial(tuple.__new__, _Sent)


class ProducerMetrics:
    """Kafka's producer-metrics and producer-topic-metrics (SenderMetricsRegistry, BufferPool) of one
    producer.
    """

    def __init__(self, config: ProducerConfig, pool: BufferPool) -> None:
        self.enabled, self._pool = config.metrics_enabled, pool
        self._samples, self._window = config.metrics_num_samples, config.metrics_sample_window_ms
        self._all = self._new()
        self._topics: dict[str, _Topic] = {}
        self._batch_size, self._queue_time = self._sensor(), self._sensor()
        self._per_request, self._record_size = self._sensor(), self._sensor()
        self._latency, self._splits = self._sensor(), self._sensor()
        self._throttle = self._sensor()
        self.in_flight = 0
        self.noted: deque[_Sent] = deque()
        """The recorded appends. The C code (`_native/post.c`) also adds its appends to this list."""
        self._taking_in = nesting()

    def _sensor(self) -> Sensor:
        return Sensor(self._samples, self._window)

    def _new(self) -> _Topic:
        return _Topic(self._samples, self._window)

    def _both(self, name: str) -> tuple[_Topic, _Topic]:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._new()
        return self._all, topic

    def sent(self, batches: Sequence[ProducerBatch], stored: int, began: float, ended: float) -> None:
        """Record one append of batches of a partition. `stored` is in bytes on disk; `began` and `ended` are
        monotonic seconds.
        """
        if not self.enabled:
            return
        sizes = list(map(_sizes_of, batches))
        self.noted.append(_sent((batches[0].topic_partition.topic, sizes, stored, began, ended)))
        if len(self.noted) > MOST_NOTED:
            self._take_in()

    def _take_in(self) -> None:
        with self._taking_in:
            while self.noted:
                self._record(self.noted.popleft())

    def _record(self, sent: _Sent) -> None:
        topic, batches, stored, began, ended = sent
        now = ended * 1000
        plain, records = sum(size for size, _, _ in batches), sum(n for _, n, _ in batches)
        for sensors in self._both(topic):
            sensors.records.record(records, now)
            sensors.bytes.record(stored, now)
            if plain:
                sensors.compression.record(min(stored / plain, 1.0), now)
        self._per_request.record(records, now)
        self._latency.record((ended - began) * 1000, now)
        for size, n, created in batches:
            self._batch_size.record(size * stored / plain if plain else stored, now)
            self._queue_time.record((began - created) * 1000, now)
            self._record_size.record(size / n, now)

    def retried(self, batches: Sequence[ProducerBatch]) -> None:
        """Count the records of batches that have failed and will be retried."""
        if self.enabled:
            for sensors in self._both(batches[0].topic_partition.topic):
                sensors.retries.record(sum(batch.n for batch in batches))

    def failed(self, batch: ProducerBatch, records: int) -> None:
        """Count records that failed for good."""
        if self.enabled and records:
            for sensors in self._both(batch.topic_partition.topic):
                sensors.errors.record(records)

    def throttled(self, wait_ms: int) -> None:
        """Record the ms that the client must wait after an append because of the client's byte rate."""
        if self.enabled:
            self._throttle.record(wait_ms)

    def split(self) -> None:
        """Count a batch whose records were appended one by one, because it was too large or contained a bad
        record.
        """
        if self.enabled:
            self._splits.record(1)

    def snapshot(self) -> Snapshot:
        """Return {group: {name: value}}, in the format of kafka-python's `metrics()`."""
        self._take_in()
        groups = {"producer-metrics": {**self._all.snapshot(), **self._sender(), **self._buffer()}}
        for name, topic in list(self._topics.items()):
            groups[f"producer-topic-metrics.{name}"] = topic.snapshot()
        groups["kafka-metrics-count"] = {"count": float(sum(map(len, groups.values())) + 1)}
        return groups

    def _sender(self) -> dict[str, float]:
        return {
            "batch-size-avg": self._batch_size.avg,
            "batch-size-max": self._batch_size.max,
            "batch-split-rate": self._splits.rate,
            "batch-split-total": self._splits.total,
            "compression-rate-avg": self._all.compression.avg,
            "record-queue-time-avg": self._queue_time.avg,
            "record-queue-time-max": self._queue_time.max,
            "records-per-request-avg": self._per_request.avg,
            "record-size-avg": self._record_size.avg,
            "record-size-max": self._record_size.max,
            "produce-throttle-time-avg": self._throttle.avg if self._throttle.count else 0.0,
            "produce-throttle-time-max": self._throttle.max if self._throttle.count else 0.0,
            "request-latency-avg": self._latency.avg,
            "request-latency-max": self._latency.max,
            "request-rate": self._latency.count_rate,
            "request-total": float(self._latency.count),
            "requests-in-flight": float(self.in_flight),
        }

    def _buffer(self) -> dict[str, float]:
        pool = self._pool
        return {
            "buffer-total-bytes": float(pool.total),
            "buffer-available-bytes": float(pool.available),
            "buffer-exhausted-total": float(pool.exhausted),
            "bufferpool-wait-time-ns-total": pool.waited_seconds * 1e9,
            "waiting-threads": float(pool.waiting),
        }
