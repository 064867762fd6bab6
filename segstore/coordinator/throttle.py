"""`QuotaThrottle`: limits the rate, in bytes a second, at which one client sends or fetches.

Threads: any; all clients with the same user and client id share a throttle. Throttles whose clients share one
rate have the same `SharedBucket`, their pool. No method waits: methods return the time that the caller must
wait. The caller must have no lock while it waits.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.coordinator.metrics import Sensor
from segstore.mutex import Mutex
from segstore.storage.context import Clock

# --- bucket ------------------------------------------------------------------------------------

# One thread at a time uses a bucket: the methods of `QuotaThrottle` call it under the lock of its pool.


class Bucket:
    """A credit, which grows by `rate` bytes a second up to `rate` x `span_s` bytes. A negative credit is a
    debt.

    This is Kafka's TokenBucket. The quota windows only determine the largest credit, which an idle client may
    send at once (quota.window.num x quota.window.size.seconds x rate). A client without a debt may send a
    request of any size; a client with a debt must wait. After a burst of an idle client, the throttle time is
    the same as that of Kafka's ClientQuotaManager: (O - T) / T x W, where W is the length of all windows, O
    is the rate measured over W, and T is the limit. But here a burst has an effect only until its debt is
    paid, not until its window has passed.

    The credit is counted in thousandths of bytes, so that it grows by a whole number in each millisecond, and
    nothing is rounded. If the clock goes back, the credit does not change.
    """

    __slots__ = ("_credit", "_looked", "_most", "rate")

    def __init__(self, rate: int, span_s: int, now_ms: int) -> None:
        self.rate, self._most = rate, rate * span_s * 1000
        self._credit, self._looked = self._most, now_ms

    def _refill(self, now_ms: int) -> None:
        grown = self._credit + max(now_ms - self._looked, 0) * self.rate
        self._credit, self._looked = min(grown, self._most), now_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return the time until the client's debt is paid, in ms; 0 if it has no debt."""
        self._refill(now_ms)
        return max(-(self._credit // self.rate), 0) if self._credit < 0 else 0

    def take(self, size: int, now_ms: int) -> int:
        """Subtract `size` bytes from the credit, even if that causes a debt. Return the new `wait_ms`."""
        self._refill(now_ms)
        self._credit -= size * 1000
        return self.wait_ms(now_ms)

    def full(self, now_ms: int) -> bool:
        """Return whether the credit is full, as in a new bucket."""
        self._refill(now_ms)
        return self._credit == self._most

    def set_rate(self, rate: int, span_s: int, now_ms: int) -> None:
        """Change the rate. If it would take more than `span_s` seconds to pay the debt at the new rate, the
        debt is reduced so that it takes `span_s` seconds.
        """
        self._refill(now_ms)
        self.rate, self._most = rate, rate * span_s * 1000
        self._credit = max(min(self._credit, self._most), -self._most)


# --- throttle ------------------------------------------------------------

MOST_WAIT_MS = 100
"""A client that waits must call `wait_ms` again after this time: the limit or the clock may have changed."""


class SharedBucket:
    """The pool of throttles that share one rate. `bucket` is their bucket; None if there is no limit."""

    __slots__ = ("__weakref__", "bucket", "lock")

    def __init__(self) -> None:
        self.lock = Mutex()
        self.bucket: Bucket | None = None


class QuotaThrottle:
    """The throttle of one client. `bound` is the client's limit in bytes a second. If there is no limit,
    `bound` is None, and the caller need not call any method.

    After an idle time, a client may at once send or fetch the bytes of `windows` windows of `window_s`
    seconds each (the largest credit of its `Bucket`).
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
        """Change the limit for all later calls. Throttles with the same `pool` share one rate, so all of them
        must get the same `bound`. If `pool` is None, the throttle keeps its pool;
        without a limit it gets a new pool.
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
        """Return the time, in ms, for which the client must not send or fetch. A caller that waits must call
        this again after at most MOST_WAIT_MS.
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
        """Return the size of the largest request, in bytes, that causes no throttling after an idle time
        (Kafka: getMaxValueInQuotaWindow). It is the limit times the length of all windows except one.
        """
        bound = self.bound
        return (1 << 62) if bound is None else bound * max(self._windows - 1, 1) * self._window_s

    def fresh(self) -> bool:
        """Return whether this throttle has no limit or a full credit, as a new throttle has."""
        pool = self._pool
        with pool.lock:
            return pool.bucket is None or pool.bucket.full(self._clock())

    def measured(self) -> dict[str, float]:
        """Return the bytes a second, and the mean throttle time in ms, over the last windows. The keys are
        the names of a broker's metrics.
        """
        with self._lock:
            return {"byte-rate": self._bytes.rate, "throttle-time": self._waits.avg}
