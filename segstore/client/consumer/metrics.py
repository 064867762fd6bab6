"""`ConsumerMetrics` and `GroupMetrics`: the metrics of a consumer, and of a member of a group, with Kafka's
names. `ConsumerInterceptors`: calls a consumer's interceptors.

Threads: one, the consumer's. It records the values, and calls the interceptors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.no_group import Offsets
from segstore.client.consumer.records import ConsumerRecord
from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.metrics import Sensor, monotonic_ms
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidTypeError
from segstore.logger import Logger
from segstore.mutex import calls_out

# The list of recorded values has at most about this many items.
_MOST_NOTED = 3000


class ConsumerMetrics:
    """The metrics of one consumer: sums over all partitions, and each partition's lag and lead by Kafka's
    older names ("flights-0.records-lag"). Reads and polls append values and times to a list. The values are
    passed to the sensors at the next snapshot, or when the list has more than _MOST_NOTED items.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._bytes, self._records, self._latency = self._sensor(), self._sensor(), self._sensor()
        self._lag, self._between_polls = self._sensor(), self._sensor()
        self._throttle = self._sensor()
        self._lags: dict[TopicPartition, tuple[int, int]] = {}
        self._polled = math.nan
        # The list is flat, because a tuple for each value would make the garbage collector scan the whole
        # process often.
        # The items are: sensor, value, ms, sensor, value, ms, and so on.
        self._noted: list[Any] = []
        self.singles: list[Any] | None = []
        """Five items for each record that the C code has read within a wait: partition, log start offset,
        offset of the record, bytes of the record's batch, and time of the read in monotonic seconds. None if
        metrics are off.
        """

    def _sensor(self) -> Sensor:
        return Sensor(self._config.metrics_num_samples, self._config.metrics_sample_window_ms)

    def fetched(self, stored: int, records: int, took_ms: float) -> None:
        """Record one read of a partition: `stored` bytes of batches, and the number of `records`. The read
        took `took_ms`.
        """
        now = time.monotonic() * 1000
        self._noted += self._bytes, stored, now, self._records, records, now, self._latency, took_ms, now
        if len(self._noted) > _MOST_NOTED:
            self._take_in()

    def given(self, tp: TopicPartition, at: int, start: int, end: int) -> None:
        """Record the lag and lead of a partition after its records were returned. The position is now `at`,
        and the log begins at offset `start` and ends at `end`.
        """
        if self.singles:
            # The records in `singles` were returned earlier, so their values are passed to the sensors first.
            self._take_in()
        self._lags[tp] = end - at, at - start
        self._noted += self._lag, end - at, time.monotonic() * 1000

    def throttled(self, wait_ms: int) -> None:
        """Record the ms that the client must wait after a fetch because of the client's byte rate."""
        self._throttle.record(wait_ms)

    def polled(self, now: float) -> None:
        """Record the start of a poll, at `now` in seconds."""
        now *= 1000
        if self.singles and len(self.singles) > _MOST_NOTED:
            self._take_in()
        # The condition is false if `_polled` is NaN, before the first poll.
        if self._polled == self._polled:
            self._noted += self._between_polls, now - self._polled, now
            if len(self._noted) > _MOST_NOTED:
                self._take_in()
        self._polled = now

    def _take_in(self) -> None:
        noted_singles = self.singles or []
        singles = noted_singles[:]
        noted_singles.clear()
        for tp, start, offset, stored, ended in zip(*[iter(singles)] * 5, strict=True):
            now = ended * 1000
            self._noted += self._bytes, stored, now, self._records, 1, now
            self._noted += self._latency, 0.0, now, self._lag, 0, now
            self._lags[tp] = 0, offset + 1 - start
        noted, self._noted = self._noted, []
        for sensor, value, now in zip(*[iter(noted)] * 3, strict=True):
            sensor.record(value, now)

    def forget(self, assigned: set[TopicPartition]) -> None:
        """Drop the lag and lead of partitions that are not `assigned`."""
        self._take_in()
        self._lags = {tp: lag for tp, lag in self._lags.items() if tp in assigned}

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return {group of metrics: {name: value}}."""
        self._take_in()
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
    """The metrics of a consumer with metrics_enabled=False."""

    def __init__(self, config: ConsumerConfig) -> None:
        super().__init__(config)
        self.singles = None

    def fetched(self, stored: int, records: int, took_ms: float) -> None:
        """Record nothing."""

    def given(self, tp: TopicPartition, at: int, start: int, end: int) -> None:
        """Record nothing."""

    def throttled(self, wait_ms: int) -> None:
        """Record nothing."""

    def polled(self, now: float) -> None:
        """Record nothing."""

    def snapshot(self) -> dict[str, dict[str, float]]:
        return {}


# --- group metrics -----------------------------------------------------------------------------

# The metrics of a group's member, by Kafka's names (ConsumerCoordinatorMetrics, AbstractCoordinator).

_HOUR = 3600


class GroupMetrics:
    """The metrics of a group's member. Times are in ms."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._commit, self._join, self._sync = self._sensor(), self._sensor(), self._sensor()
        self._rebalance, self._failed = self._sensor(), self._sensor()
        self._listener = {kind: self._sensor() for kind in ("revoked", "assigned", "lost")}
        self._began = self._joined = self._ended = math.nan

    def _sensor(self) -> Sensor:
        return Sensor(self._config.metrics_num_samples, self._config.metrics_sample_window_ms)

    # --- events ----------------------------------------------------------------------------------

    def committed(self, took_ms: float) -> None:
        """Record a commit of offsets."""
        self._commit.record(took_ms)

    def joining(self) -> None:
        """Record a join request of the member. If the previous rebalance was not completed, count it as
        failed.
        """
        now = monotonic_ms()
        if not math.isnan(self._began):
            self._failed.record(1)
        self._began = self._joined = now

    def joined(self) -> None:
        """Record that all members have joined."""
        now = monotonic_ms()
        self._join.record(now - self._joined)
        self._joined = now

    def synced(self) -> None:
        """Record that the member has its assignment; this completes the rebalance."""
        self._sync.record(monotonic_ms() - self._joined)
        self.rebalanced()

    def rebalanced(self) -> None:
        """Record that the rebalance is complete."""
        self._ended = monotonic_ms()
        self._rebalance.record(self._ended - self._began)
        self._began = math.nan

    @contextmanager
    def listener(self, kind: str) -> Iterator[None]:
        """Measure the time in a method of the application's listener; `kind` names the sensor."""
        began = monotonic_ms()
        try:
            yield
        finally:
            self._listener[kind].record(monotonic_ms() - began)

    # --- snapshot ----------------------------------------------------------------------------------

    def snapshot(self, assigned: int, pulse: Pulse | None, now: float) -> dict[str, dict[str, float]]:
        """Return {group of metrics: {name: value}}. With metrics_enabled=False the dict is empty. `now` is a
        time of the pulse's clock.
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


# --- interceptors ------------------------------------------------------------------------------

# `ConsumerInterceptors` calls a consumer's interceptors (Kafka: ConsumerInterceptors).

Polled = dict[TopicPartition, list[ConsumerRecord]]

log = Logger(__name__)


class ConsumerInterceptors:
    """The interceptors of a consumer. An exception of an interceptor is logged, and the next interceptor is
    called, as in Kafka.
    """

    def __init__(self, interceptors: Sequence[Any]) -> None:
        self.all = interceptors

    @calls_out
    def on_consume(self, records: Polled) -> Polled:
        """Pass `records` through all interceptors in order, and return the last result."""
        for interceptor in self.all:
            method = getattr(interceptor, "on_consume", None)
            if method is not None:
                try:
                    records = _polled(method(records))
                except Exception:
                    log.exception("interceptor %r failed in on_consume", interceptor)
        return records

    def on_commit(self, offsets: Offsets) -> None:
        """Call `on_commit` of all interceptors with the committed offsets."""
        self._call("on_commit", offsets)

    def close(self) -> None:
        """Close all interceptors."""
        self._call("close")

    @calls_out
    def _call(self, name: str, *arguments: Any) -> None:
        for interceptor in self.all:
            method = getattr(interceptor, name, None)
            if method is not None:
                try:
                    method(*arguments)
                except Exception:
                    log.exception("interceptor %r failed in %s", interceptor, name)


def _polled(made: Any) -> Polled:
    if not isinstance(made, dict):
        raise InvalidTypeError(f"on_consume must return a dict of records, not {type(made).__name__}")
    return made
