"""Real flights, sent at the moment when they left, some thousand times as fast. Nothing on disk of its own.

Threads: a `Replay` is one, with a producer of its own.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import segstore
from segstore.demo.flights import Flights
from segstore.demo.ledger import Ledger

DAY_MS = 86_400_000
HALVES = {
    "9E to DL": frozenset({"9E", "AA", "AS", "B6", "DL"}),
    "EV to YV": frozenset({"EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"}),
}
"""Airlines, by the code that their flights' keys begin with: each producer has half of the alphabet."""
_LEAST_WAIT = 0.01  # seconds; flights that leave within it are sent together


@dataclass(frozen=True)
class Pace:
    """`began` (seconds, monotonic) stands for `first` (ms since the epoch), and `days` pass in a second."""

    began: float
    first: int
    days: float

    def due(self, departure: int) -> float:
        """Seconds of time.monotonic at which a flight leaves."""
        return self.began + (departure - self.first) / DAY_MS / self.days

    def now(self) -> int:
        """The time in 2013, ms since the epoch."""
        return self.first + int((time.monotonic() - self.began) * self.days * DAY_MS)


class Replay(threading.Thread):
    """One producer. Ends when its flights are acknowledged, or `stop` is set; `error` is what failed."""

    def __init__(
        self,
        store: segstore.Store,
        topic: str,
        flights: Flights,
        pace: Pace,
        ledger: Ledger,
        stop: threading.Event,
    ) -> None:
        super().__init__(name=f"demo-replay-{len(flights)}", daemon=True)
        self._store, self._topic, self._flights = store, topic, flights
        self._pace, self._ledger, self._stop_all = pace, ledger, stop
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with segstore.Producer(self._store, linger_ms=5, compression_type="zstd") as producer:
                self._send_all(producer)
        except Exception as error:
            self.error = error

    def _send_all(self, producer: segstore.Producer) -> None:
        flights = self._flights
        columns = (flights.keys.to_pylist(), flights.values.to_pylist(), flights.departures.tolist())
        for key, value, departure in zip(*columns, strict=True):
            early = self._pace.due(departure) - time.monotonic()
            if early > 0 and self._stop_all.wait(max(early, _LEAST_WAIT)):
                return
            future = producer.send(self._topic, value, key=key, timestamp_ms=departure)
            future.add_callback(self._ledger.acknowledge, key, value).add_errback(self._ledger.refuse)
