"""What one client id may send, or fetch, and how long it has to wait. Nothing on disk.

Threads: any, all clients of the id share it. Nobody waits here: callers are told how long, and wait without a
lock.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.coordinator.metrics import Sensor
from segstore.coordinator.quotas.bucket import Bucket
from segstore.mutex import Mutex
from segstore.storage.context import Clock

MOST_WAIT_MS = 100
"""Who waits looks again after so long: a limit may have been changed, or the clock set."""


class Throttle:
    """`bound`: bytes a second, None where there is no limit; then nothing else need be asked.

    `windows` of `window_s` seconds are how far a client may run ahead of its rate, see `Bucket`.
    """

    def __init__(self, windows: int, window_s: int, clock: Clock, used: Callable[[Throttle], None]) -> None:
        self.bound: int | None = None
        self._windows, self._window_s, self._clock, self._used = windows, window_s, clock, used
        self._lock = Mutex()
        self._bucket: Bucket | None = None
        self._bytes = Sensor(windows, window_s * 1000, clock)
        self._waits = Sensor(windows, window_s * 1000, clock)

    def set_bound(self, bound: int | None) -> None:
        """Another limit, from the next look on."""
        span = self._windows * self._window_s
        with self._lock:
            if bound is None:
                self._bucket = None
            elif self._bucket is None:
                self._bucket = Bucket(bound, span, self._clock())
            elif bound != self.bound:
                self._bucket.set_rate(bound, span, self._clock())
            self.bound = bound

    def wait_ms(self) -> int:
        """How long nothing may be sent or fetched; look again after MOST_WAIT_MS at the latest."""
        with self._lock:
            return self._bucket.wait_ms(self._clock()) if self._bucket is not None else 0

    def charge(self, size: int) -> int:
        """So many bytes were sent or fetched: the throttle time in ms that follows."""
        with self._lock:
            if self._bucket is None:
                return 0
            wait = self._bucket.take(size, self._clock())
            self._bytes.record(size)
            self._waits.record(wait)
        self._used(self)
        return wait

    @property
    def most_at_once(self) -> int:
        """Bytes above which a single request is throttled whatever went before: what a request is kept to
        (Kafka: getMaxValueInQuotaWindow, all windows but the current one).
        """
        bound = self.bound
        return (1 << 62) if bound is None else bound * max(self._windows - 1, 1) * self._window_s

    def fresh(self) -> bool:
        """Whether a new one would be the same."""
        with self._lock:
            return self._bucket is None or self._bucket.full(self._clock())

    def measured(self) -> dict[str, float]:
        """As a broker's metrics have it: bytes a second and mean throttle time (ms) over the windows."""
        with self._lock:
            return {"byte-rate": self._bytes.rate, "throttle-time": self._waits.avg}
