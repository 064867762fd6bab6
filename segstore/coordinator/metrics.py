"""`Sensor`: computes sums, averages and maxima over the last time windows, as Kafka's clients do.

Threads: one thread at a time records values in a sensor; other threads may read the sensor, and may miss the
value that is being recorded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

MonotonicMs = Callable[[], float]


def monotonic_ms() -> float:
    """Return the time of a clock that never goes back, in ms."""
    return time.monotonic() * 1000


class _Window:
    __slots__ = ("began", "count", "most", "total")

    def __init__(self, began: float) -> None:
        self.began, self.count, self.total, self.most = began, 0, 0.0, -math.inf


class Sensor:
    """Records values in time windows of `window_ms` ms, and keeps the last `samples` windows (Kafka:
    SampledStat, Rate, Avg, Max).

    `total` and `count` include values from before these windows. If there is no value in the windows, the
    average and the maximum are NaN, as in Kafka.
    """

    __slots__ = ("_clock", "_samples", "_window_ms", "_windows", "count", "total")

    def __init__(
        self, samples: int = 2, window_ms: float = 30_000, clock: MonotonicMs = monotonic_ms
    ) -> None:
        self._samples, self._window_ms, self._clock = samples, window_ms, clock
        self._windows: list[_Window] = []
        self.count, self.total = 0, 0.0

    def record(self, value: float, now: float | None = None) -> None:
        """Record a value. `now` is the time of the measurement, in ms of the sensor's clock; None stands for
        the present time.
        """
        if now is None:
            now = self._clock()
        if not self._windows or now - self._windows[-1].began >= self._window_ms:
            # This makes a new list, because another thread may be reading the old list.
            self._windows = [*self._windows, _Window(now)][-self._samples :]
        window = self._windows[-1]
        window.count += 1
        window.total += value
        if value > window.most:
            window.most = value
        self.count += 1
        self.total += value

    def _recent(self) -> list[_Window]:
        oldest = self._clock() - self._samples * self._window_ms
        return [window for window in self._windows if window.began > oldest]

    @property
    def avg(self) -> float:
        """Return the mean of the recent values."""
        recent = self._recent()
        count = sum(window.count for window in recent)
        return sum(window.total for window in recent) / count if count else math.nan

    @property
    def max(self) -> float:
        """Return the largest of the recent values."""
        most = max((window.most for window in self._recent()), default=-math.inf)
        return math.nan if most == -math.inf else most

    @property
    def rate(self) -> float:
        """Return the sum of the recent values per second (of `_seconds`)."""
        recent = self._recent()
        return sum(window.total for window in recent) / self._seconds(recent)

    @property
    def count_rate(self) -> float:
        """Return the number of recent values per second (of `_seconds`)."""
        recent = self._recent()
        return sum(window.count for window in recent) / self._seconds(recent)

    def _seconds(self, recent: list[_Window]) -> float:
        """Return the duration of the recent windows in seconds, but at least that of `samples` - 1 whole
        windows, so that the first values don't give a high rate.
        """
        elapsed = self._clock() - recent[0].began if recent else 0.0
        missing = self._samples - 1 - int(elapsed // self._window_ms)
        elapsed += max(missing, 0) * self._window_ms
        return max(elapsed, 1.0) / 1000
