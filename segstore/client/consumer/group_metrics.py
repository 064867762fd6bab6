"""What a member of a group measures, by Kafka's names (ConsumerCoordinatorMetrics, AbstractCoordinator).

Nothing on disk. Threads: recorded by the consumer's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from segstore.client.consumer.config import ConsumerConfig
from segstore.coordinator.group.membership import Pulse
from segstore.coordinator.metrics import Sensor, monotonic_ms

_HOUR = 3600


class GroupMetrics:
    """Times are ms."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._commit, self._join, self._sync = self._sensor(), self._sensor(), self._sensor()
        self._rebalance, self._failed = self._sensor(), self._sensor()
        self._listener = {kind: self._sensor() for kind in ("revoked", "assigned", "lost")}
        self._began = self._joined = self._ended = math.nan

    def _sensor(self) -> Sensor:
        return Sensor(self._config.metrics_num_samples, self._config.metrics_sample_window_ms)

    # --- what happens ----------------------------------------------------------------------------

    def committed(self, took_ms: float) -> None:
        """Offsets were committed."""
        self._commit.record(took_ms)

    def joining(self) -> None:
        """The member asks to join; a rebalance that had not ended has failed."""
        now = monotonic_ms()
        if not math.isnan(self._began):
            self._failed.record(1)
        self._began = self._joined = now

    def joined(self) -> None:
        """All have joined."""
        now = monotonic_ms()
        self._join.record(now - self._joined)
        self._joined = now

    def synced(self) -> None:
        """The member has its assignment: the rebalance is over."""
        self._ended = monotonic_ms()
        self._sync.record(self._ended - self._joined)
        self._rebalance.record(self._ended - self._began)
        self._began = math.nan

    @contextmanager
    def listener(self, kind: str) -> Iterator[None]:
        """The time that the application's listener takes."""
        began = monotonic_ms()
        try:
            yield
        finally:
            self._listener[kind].record(monotonic_ms() - began)

    # --- what is told ------------------------------------------------------------------------------

    def snapshot(self, assigned: int, pulse: Pulse | None, now: float) -> dict[str, dict[str, float]]:
        """Group of metrics to name to value; nothing with metrics_enabled=False. `now`: of the pulse's
        clock.
        """
        if not self._config.metrics_enabled:
            return {}
        beaten = math.nan if pulse is None else pulse.beaten
        measured = {
            "assigned-partitions": float(assigned),
            "heartbeat-total": 0 if pulse is None else pulse.beats,
            "last-heartbeat-seconds-ago": _ago(now - beaten),
            "last-rebalance-seconds-ago": _ago(monotonic_ms() - self._ended),
            "rebalance-rate-per-hour": self._rebalance.count_rate * _HOUR,
            "failed-rebalance-rate-per-hour": self._failed.count_rate * _HOUR,
            "failed-rebalance-total": self._failed.count,
            "rebalance-total": self._rebalance.count,
            "rebalance-latency-avg": self._rebalance.avg,
            "rebalance-latency-max": self._rebalance.max,
            "rebalance-latency-total": self._rebalance.total,
        }
        for name, sensor in (("commit-latency", self._commit), ("join-time", self._join)):
            measured |= _times(name, sensor)
        measured |= _times("sync-time", self._sync)
        for kind, sensor in self._listener.items():
            measured[f"partition-{kind}-latency-avg"] = sensor.avg
            measured[f"partition-{kind}-latency-max"] = sensor.max
        return {f"{self._config.metric_group_prefix}-coordinator-metrics": measured}


def _times(name: str, sensor: Sensor) -> dict[str, float]:
    what = name.partition("-")[0]
    return {
        f"{name}-avg": sensor.avg,
        f"{name}-max": sensor.max,
        f"{what}-rate": sensor.count_rate,
        f"{what}-total": sensor.count,
    }


def _ago(ms: float) -> float:
    return -1 if math.isnan(ms) else ms // 1000
