"""The throttle of one client: its byte rate for sending or fetching, and its waits.

Threads: any; all clients with the same user and client id share a throttle, and throttles with one common
rate share a pool. No method waits: methods return the time to wait, which the caller waits without a lock.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.coordinator.metrics import Sensor
from segstore.mutex import Mutex
from segstore.storage.context import Clock

# --- bucket ------------------------------------------------------------------------------------

# A bucket is used by one thread at a time: `QuotaThrottle` holds the lock of its pool.


class Bucket:
    """A credit that grows by `rate` bytes a second up to `rate` x `span_s`, and may become a debt.

    This is Kafka's TokenBucket. The quota windows only set the largest credit, the bytes that an idle client
    may send at once (quota.window.num x quota.window.size.seconds x rate). A request of any size passes while
    there is no debt; with a debt the client waits. After a burst of an idle client the throttle time equals
    that of ClientQuotaManager, (O - T) / T x W, with W the length of all windows, O the rate measured over W,
    and T the bound. But a burst counts only until its debt is paid, not until its window has passed.

    The credit is counted in thousandths of bytes, so that a millisecond's part of any rate is a whole number
    and nothing is rounded. A clock that goes back adds nothing.
    """

    __slots__ = ("_credit", "_looked", "_most", "rate")

    def __init__(self, rate: int, span_s: int, now_ms: int) -> None:
        self.rate, self._most = rate, rate * span_s * 1000
        self._credit, self._looked = self._most, now_ms

    def _refill(self, now_ms: int) -> None:
        grown = self._credit + max(now_ms - self._looked, 0) * self.rate
        self._credit, self._looked = min(grown, self._most), now_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return the time until the client's debt is paid, 0 without a debt."""
        self._refill(now_ms)
        return max(-(self._credit // self.rate), 0) if self._credit < 0 else 0

    def take(self, size: int, now_ms: int) -> int:
        """Take `size` bytes from the credit, also if that makes a debt; return the new `wait_ms`."""
        self._refill(now_ms)
        self._credit -= size * 1000
        return self.wait_ms(now_ms)

    def full(self, now_ms: int) -> bool:
        """Return whether the credit is full, as in a new bucket."""
        self._refill(now_ms)
        return self._credit == self._most

    def set_rate(self, rate: int, span_s: int, now_ms: int) -> None:
        """Change the rate. A debt from the old rate lasts for `span_s` at most."""
        self._refill(now_ms)
        self.rate, self._most = rate, rate * span_s * 1000
        self._credit = max(min(self._credit, self._most), -self._most)


# --- throttle ------------------------------------------------------------

MOST_WAIT_MS = 100
"""A waiting client asks again after this time, because the limit or the clock may have been changed."""


class SharedBucket:
    """The bucket of throttles that share one rate; `bucket` is None while there is no limit."""

    __slots__ = ("__weakref__", "bucket", "lock")

    def __init__(self) -> None:
        self.lock = Mutex()
        self.bucket: Bucket | None = None


class QuotaThrottle:
    """The throttle of one client. `bound` is the client's limit in bytes a second. If there is no limit,
    `bound` is None, and the methods need not be called.

    A client may run ahead of its rate by `windows` windows of `window_s` seconds (the credit of its
    `Bucket`).
    """

    def __init__(
        self, windows: int, window_s: int, clock: Clock, used: Callable[[QuotaThrottle], None]
    ) -> None:
        self.bound: int | None = None
        self._windows, self._window_s, self._clock, self._used = windows, window_s, clock, used
        self._lock = Mutex()
        self._pool = SharedBucket()
        self._bytes = Sensor(windows, window_s * 1000, clock)
        self._waits = Sensor(windows, window_s * 1000, clock)

    def set_bound(self, bound: int | None, pool: SharedBucket | None = None) -> None:
        """Change the limit, from the next call on. Throttles with the same `pool` share one rate, so all of
        them must get the same `bound`; without a pool the rate is this throttle's alone.
        """
        span = self._windows * self._window_s
        pool = SharedBucket() if bound is None else pool or self._pool
        with pool.lock:
            if bound is None:
                pool.bucket = None
            elif pool.bucket is None:
                pool.bucket = Bucket(bound, span, self._clock())
            elif bound != pool.bucket.rate:
                pool.bucket.set_rate(bound, span, self._clock())
            self._pool, self.bound = pool, bound

    def wait_ms(self) -> int:
        """Return the time for which nothing may be sent or fetched; ask again after MOST_WAIT_MS at the
        latest.
        """
        pool = self._pool
        with pool.lock:
            return pool.bucket.wait_ms(self._clock()) if pool.bucket is not None else 0

    def charge(self, size: int) -> int:
        """Count bytes that were sent or fetched; return the resulting throttle time in ms."""
        pool = self._pool
        with pool.lock:
            if pool.bucket is None:
                return 0
            wait = pool.bucket.take(size, self._clock())
        with self._lock:
            self._bytes.record(size)
            self._waits.record(wait)
        self._used(self)
        return wait

    @property
    def most_at_once(self) -> int:
        """Return the limit of one request in bytes: a larger request is throttled even after an idle time
        (Kafka: getMaxValueInQuotaWindow, all windows except the current window).
        """
        bound = self.bound
        return (1 << 62) if bound is None else bound * max(self._windows - 1, 1) * self._window_s

    def fresh(self) -> bool:
        """Return whether this throttle has no limit or a full credit, and so is like a new throttle."""
        pool = self._pool
        with pool.lock:
            return pool.bucket is None or pool.bucket.full(self._clock())

    def measured(self) -> dict[str, float]:
        """Return bytes a second and the mean throttle time (ms) over the windows, by the names of a broker's
        metrics.
        """
        with self._lock:
            return {"byte-rate": self._bytes.rate, "throttle-time": self._waits.avg}
