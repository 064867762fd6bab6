"""The token bucket of one client's byte rate. Nothing on disk.

Threads: one at a time; `throttle` holds a lock.
"""

from __future__ import annotations


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
