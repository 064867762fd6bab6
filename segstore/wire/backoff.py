"""The waits between the attempts of a client to reach a broker (Kafka: ExponentialBackoff,
ClusterConnectionStates; KIP-580). Threads: one.
"""

from __future__ import annotations

import random

_JITTER = 0.2


class Backoff:
    """Computes waits that double with every failure, from `least_ms` up to `most_ms`, with a jitter of a
    fifth. Because of the jitter, not all clients connect at the same time after a broker has restarted.
    """

    def __init__(self, least_ms: int, most_ms: int, draw: random.Random | None = None) -> None:
        self._least, self._most, self._draw = least_ms, max(least_ms, most_ms), draw or random.Random()
        self.failures = 0

    def succeeded(self) -> None:
        """Reset the next wait to `least_ms`."""
        self.failures = 0

    def failed(self) -> float:
        """Count a failure, and return the seconds to wait."""
        base = min(self._least * 2.0 ** min(self.failures, 62), self._most)
        self.failures += 1
        return base * self._draw.uniform(1 - _JITTER, 1 + _JITTER) / 1000
