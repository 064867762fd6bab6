"""The metrics of a share consumer, with Kafka's names (Kafka: ShareFetchMetricsManager,
KafkaShareConsumerMetrics).

Threads: one, the consumer's.
"""

from __future__ import annotations

import math
import time

from segstore.client.share.config import ShareConsumerConfig
from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.metrics import Sensor, monotonic_ms

_HOUR = 3600


class ShareConsumerMetrics:
    """The metrics of one share consumer. With metrics_enabled=False nothing is recorded. Times are in ms."""

    def __init__(self, config: ShareConsumerConfig) -> None:
        self._is_on, self._prefix = config.metrics_enabled, config.metric_group_prefix
        names = (
            *("bytes", "records", "latency", "between_polls", "idle", "acknowledged", "refused", "rebalance"),
            "throttle",
        )
        samples, window = config.metrics_num_samples, config.metrics_sample_window_ms
        self._sensors = {name: Sensor(samples, window) for name in names}
        self._polled = self._left = math.nan

    def _record(self, name: str, value: float) -> None:
        if self._is_on:
            self._sensors[name].record(value)

    # --- events ----------------------------------------------------------------------------------

    def polled(self) -> None:
        """Record that a poll begins."""
        if self._is_on:
            now = monotonic_ms()
            if not math.isnan(self._polled):
                self._record("between_polls", now - self._polled)
                if not math.isnan(self._left):
                    took, apart = self._left - self._polled, now - self._polled
                    self._record("idle", took / apart if apart > 0 else 0.0)
            self._polled = now

    def left(self) -> None:
        """Record that a poll returns."""
        if self._is_on:
            self._left = time.monotonic() * 1000

    def fetched(self, stored: int, records: int, took_ms: float) -> None:
        """Record one fetch of a partition: `stored` bytes of batches, and the number of `records`. The fetch
        took `took_ms`.
        """
        self._record("bytes", stored)
        self._record("records", records)
        self._record("latency", took_ms)

    def throttled(self, wait_ms: int) -> None:
        """Record the ms that the client must wait after a fetch because of the client's byte rate."""
        self._record("throttle", wait_ms)

    def acknowledged(self, sent: int, failed: int) -> None:
        """Count acknowledgements. `sent` is the number of accepted ones, `failed` the number of refused
        ones.
        """
        if self._is_on:
            self._sensors["acknowledged"].record(sent + failed)
            if failed:
                self._sensors["refused"].record(failed)

    def rebalanced(self) -> None:
        """Count a change of the member's partitions."""
        self._record("rebalance", 1)

    # --- snapshot ----------------------------------------------------------------------------------

    def snapshot(self, pulse: Pulse | None, now: float) -> dict[str, dict[str, float]]:
        """Return {group of metrics: {name: value}}. `now` is a time of the pulse's clock."""
        if not self._is_on:
            return {}
        prefix = f"{self._prefix}-share"
        return {
            f"{prefix}-metrics": self._polling(),
            f"{prefix}-coordinator-metrics": self._coordination(pulse, now),
            f"{prefix}-fetch-manager-metrics": self._fetching(),
        }

    def _polling(self) -> dict[str, float]:
        since = monotonic_ms() - self._polled
        between = self._sensors["between_polls"]
        return {
            "last-poll-seconds-ago": -1 if math.isnan(since) else since // 1000,
            "poll-idle-ratio-avg": self._sensors["idle"].avg,
            "time-between-poll-avg": between.avg,
            "time-between-poll-max": between.max,
        }

    def _coordination(self, pulse: Pulse | None, now: float) -> dict[str, float]:
        beaten = math.nan if pulse is None else now - pulse.beaten
        rebalance = self._sensors["rebalance"]
        return {
            "heartbeat-total": 0 if pulse is None else pulse.beats,
            "last-heartbeat-seconds-ago": -1 if math.isnan(beaten) else beaten // 1000,
            "rebalance-total": rebalance.count,
            "rebalance-rate-per-hour": rebalance.count_rate * _HOUR,
        }

    def _fetching(self) -> dict[str, float]:
        sensors = self._sensors
        size, count, latency = sensors["bytes"], sensors["records"], sensors["latency"]
        throttle = sensors["throttle"]
        return {
            "acknowledgements-send-rate": sensors["acknowledged"].rate,
            "acknowledgements-send-total": sensors["acknowledged"].total,
            "acknowledgements-error-rate": sensors["refused"].rate,
            "acknowledgements-error-total": sensors["refused"].total,
            "bytes-consumed-rate": size.rate,
            "bytes-consumed-total": size.total,
            "fetch-size-avg": size.avg,
            "fetch-size-max": size.max,
            "records-consumed-rate": count.rate,
            "records-consumed-total": count.total,
            "records-per-request-avg": count.avg,
            "records-per-request-max": count.max,
            "fetch-latency-avg": latency.avg,
            "fetch-latency-max": latency.max,
            "fetch-rate": latency.count_rate,
            "fetch-total": latency.count,
            "fetch-throttle-time-avg": throttle.avg if throttle.count else 0.0,
            "fetch-throttle-time-max": throttle.max if throttle.count else 0.0,
        }
