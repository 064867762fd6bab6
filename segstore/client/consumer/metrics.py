"""What a consumer measures, by Kafka's names. Nothing on disk. Threads: recorded by the consumer's."""

from __future__ import annotations

import math

from segstore.client.consumer.config import ConsumerConfig
from segstore.coordinator.metrics import Sensor, monotonic_ms
from segstore.coordinator.structs import TopicPartition


class ConsumerMetrics:
    """Sums over all partitions, and lag and lead of each by Kafka's older names ("flights-0.records-lag")."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._bytes, self._records, self._latency = self._sensor(), self._sensor(), self._sensor()
        self._lag, self._between_polls = self._sensor(), self._sensor()
        self._throttle = self._sensor()
        self._lags: dict[TopicPartition, tuple[int, int]] = {}
        self._polled = math.nan

    def _sensor(self) -> Sensor:
        return Sensor(self._config.metrics_num_samples, self._config.metrics_sample_window_ms)

    def fetched(self, stored: int, records: int, took_ms: float) -> None:
        """One read of a partition: bytes as stored, records, time."""
        self._bytes.record(stored)
        self._records.record(records)
        self._latency.record(took_ms)

    def given(self, tp: TopicPartition, at: int, start: int, end: int) -> None:
        """Records were given to the application, which is at offset `at` of `start` to `end` now."""
        self._lags[tp] = end - at, at - start
        self._lag.record(end - at)

    def throttled(self, wait_ms: int) -> None:
        """So long has the client to wait after what it fetched, for its byte rate."""
        self._throttle.record(wait_ms)

    def polled(self) -> None:
        """A call of poll began."""
        now = monotonic_ms()
        if not math.isnan(self._polled):
            self._between_polls.record(now - self._polled)
        self._polled = now

    def forget(self, assigned: set[TopicPartition]) -> None:
        """Keep no figures of partitions that are not assigned any more."""
        self._lags = {tp: lag for tp, lag in self._lags.items() if tp in assigned}

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Group of metrics to name to value."""
        prefix = self._config.metric_group_prefix
        return {f"{prefix}-fetch-manager-metrics": self._fetching(), f"{prefix}-metrics": self._polling()}

    def _fetching(self) -> dict[str, float]:
        size, count, latency = self._bytes, self._records, self._latency
        measured = {
            "bytes-consumed-rate": size.rate,
            "bytes-consumed-total": size.total,
            "fetch-size-avg": size.avg,
            "fetch-size-max": size.max,
            "records-consumed-rate": count.rate,
            "records-consumed-total": count.total,
            "records-per-request-avg": count.avg,
            "fetch-latency-avg": latency.avg,
            "fetch-latency-max": latency.max,
            "fetch-rate": latency.count_rate,
            "fetch-total": latency.count,
            "fetch-throttle-time-avg": self._throttle.avg if self._throttle.count else 0.0,
            "fetch-throttle-time-max": self._throttle.max if self._throttle.count else 0.0,
            "records-lag-max": self._lag.max,
        }
        for tp, (lag, lead) in self._lags.items():
            measured[f"{tp.topic}-{tp.partition}.records-lag"] = lag
            measured[f"{tp.topic}-{tp.partition}.records-lead"] = lead
        return measured

    def _polling(self) -> dict[str, float]:
        since = monotonic_ms() - self._polled
        return {
            "last-poll-seconds-ago": -1 if math.isnan(since) else since // 1000,
            "time-between-poll-avg": self._between_polls.avg,
            "time-between-poll-max": self._between_polls.max,
        }


class NoMetrics(ConsumerMetrics):
    """metrics_enabled=False."""

    def fetched(self, stored: int, records: int, took_ms: float) -> None:
        """Nothing is measured."""

    def given(self, tp: TopicPartition, at: int, start: int, end: int) -> None:
        """Nothing is measured."""

    def throttled(self, wait_ms: int) -> None:
        """Nothing is measured."""

    def polled(self) -> None:
        """Nothing is measured."""

    def snapshot(self) -> dict[str, dict[str, float]]:
        return {}
