"""What one client id may send, or fetch, and how long it has to wait. Nothing on disk.

Threads: any, all clients of the id share it. Nobody waits here: callers are told how long, and wait without a
lock.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.coordinator.metrics import Sensor
from segstore.mutex import Mutex
from segstore.storage.context import Clock

# --- bucket ------------------------------------------------------------------------------------

# The token bucket of one client's byte rate. Nothing on disk.
#
# Threads: one at a time; `throttle` holds a lock.


class Bucket:
    """Credit that grows by `rate` bytes a second up to `rate` x `span_s`, and may be overdrawn once.

    Kafka's TokenBucket: the windows are no samples that expire, they are how much a client that was idle may
    send at once (quota.window.num x quota.window.size.seconds x rate). Whoever has credit, or none and no
    debt, passes, whatever the size; what it takes too much is waited for. For a burst after a time of rest
    that is the throttle time of ClientQuotaManager, (O - T) / T x W, with O the rate measured over all
    windows W and T the bound; but a burst is forgotten as it is paid for, not when its window has passed.

    Counted in thousandths of bytes, so that a millisecond's part of any rate is a whole number and nothing is
    ever rounded away. A clock that goes back adds nothing.
    """

    __slots__ = ("_credit", "_looked", "_most", "rate")

    def __init__(self, rate: int, span_s: int, now_ms: int) -> None:
        self.rate, self._most = rate, rate * span_s * 1000
        self._credit, self._looked = self._most, now_ms

    def _refill(self, now_ms: int) -> None:
        grown = self._credit + max(now_ms - self._looked, 0) * self.rate
        self._credit, self._looked = min(grown, self._most), now_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long until the debt is paid, 0 where there is none."""
        self._refill(now_ms)
        return max(-(self._credit // self.rate), 0) if self._credit < 0 else 0

    def take(self, size: int, now_ms: int) -> int:
        """Take `size` bytes, however many there are: the `wait_ms` from then on."""
        self._refill(now_ms)
        self._credit -= size * 1000
        return self.wait_ms(now_ms)

    def full(self, now_ms: int) -> bool:
        """Whether it is as if it had never been used."""
        self._refill(now_ms)
        return self._credit == self._most

    def set_rate(self, rate: int, span_s: int, now_ms: int) -> None:
        """Go on at another rate. What was sent at the old one is not held against it for longer than
        `span_s`.
        """
        self._refill(now_ms)
        self.rate, self._most = rate, rate * span_s * 1000
        self._credit = max(min(self._credit, self._most), -self._most)


# --- throttle ------------------------------------------------------------

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
