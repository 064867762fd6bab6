"""`ReplayThreads`: the threads of the demo's live part, which are two replays and three readers of one
consumer group, and their common state.

On disk: writes only through the store. Threads: the demo's main thread calls the methods; any thread may call
`say`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import segstore
from segstore.demo.flights import Flights
from segstore.demo.ledger import Ledger, LedgerRow, Rates, Status, total
from segstore.demo.reader import GroupView, Reader
from segstore.errors import StorageError

# --- replay ------------------------------------------------------------------------------------

# A replay sends the record of each real flight when a clock shows the flight's time of departure. The clock
# runs many thousand times as fast as real time. Threads: a `Replay` is a thread with a producer of its own.

DAY_MS = 86_400_000
HALVES = {
    "9E to DL": frozenset({"9E", "AA", "AS", "B6", "DL"}),
    "EV to YV": frozenset({"EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"}),
}
"""Name of each producer's half of the airlines -> codes of these airlines. A flight's key begins with the
code of its airline.
"""
# Flights that depart within this time, in seconds, are sent together.
_LEAST_WAIT = 0.01


@dataclass(frozen=True)
class Pace:
    """The clock of a replay. At the real time `began` (monotonic seconds) the clock shows `first` (ms since
    the epoch). From then on `days` days pass on the clock in each real second.
    """

    began: float
    first: int
    days: float

    def due(self, departure: int) -> float:
        """Return the real time at which a flight must be sent, in seconds of time.monotonic."""
        return self.began + (departure - self.first) / DAY_MS / self.days

    def now(self) -> int:
        """Return the time that the clock shows now: a time in 2013, in ms since the epoch."""
        return self.first + int((time.monotonic() - self.began) * self.days * DAY_MS)


class Replay(threading.Thread):
    """A thread with one producer. The thread stops when all its flights are acknowledged, or when `stop` is
    set. If an exception has stopped the thread, `error` is this exception.
    """

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


# --- crew ------------------------------------------------------------

TOPIC = "departures"
PARTITIONS = 6
READERS = ("reader-1", "reader-2", "reader-3")
SILENT = 1
"""The index of the reader that stops polling."""
# The reader SILENT stops polling after this fraction of the live part's time.
_SILENT_AT = 0.4
# The live part ends if there is no progress for this time, in seconds.
_GRACE = 30.0
_LOOK = 0.01  # time between two checks, in seconds
# If flights left at an even rate, two readers would work for this fraction of their time.
_BUSY = 0.66


@dataclass(frozen=True)
class ReplayPlan:
    """The plan of the live part. `flights` are the flights of each producer, and `first` is the time of the
    first flight (ms). The part takes `seconds`, and `days` of 2013 pass in each second.
    """

    flights: tuple[Flights, ...]
    first: int
    seconds: float
    days: float

    @classmethod
    def of(cls, everything: Flights, seconds: float, days: float) -> ReplayPlan:
        """Return a plan for `seconds`, or for less time if there are not enough flights."""
        first = int(everything.departures.min())
        before = min(first + int(seconds * days * DAY_MS), int(everything.timestamps[-1]))
        parts = tuple(everything.by_departure(carriers, before) for carriers in HALVES.values())
        return cls(parts, first, (before - first) / DAY_MS / days, days)

    @property
    def records(self) -> int:
        """Return the number of flights of all producers."""
        return sum(map(len, self.flights))

    @property
    def patience_ms(self) -> int:
        """Return the time in ms after which the group removes a member that does not poll
        (max.poll.interval.ms).
        """
        return round(min(max(self.seconds / 5, 1.0), 6.0) * 1000)

    @property
    def work(self) -> float:
        """Return the time that a reader works for each record, in seconds. With this time two readers can
        just keep up with the producers.
        """
        return _BUSY * 2 * self.seconds / max(self.records, 1)


class ReplayThreads:
    """The threads of the live part, as a context manager. At the end of the `with` block all threads are
    stopped.
    """

    def __init__(self, store: segstore.Store, plan: ReplayPlan) -> None:
        self.plan, self.ledger, self.events = plan, Ledger(PARTITIONS), list[str]()
        self._store, self._logs = store, [store.partition(TOPIC, p) for p in range(PARTITIONS)]
        self._group, self._stop, self._rates = GroupView(store, TOPIC), threading.Event(), Rates()
        self._readers: list[Reader] = []
        self._replays: list[Replay] = []
        self._start(time.monotonic())

    def _start(self, now: float) -> None:
        self._began, self._moved = now, (now, 0)
        self._pace = Pace(now, self.plan.first, self.plan.days)

    def __enter__(self) -> ReplayThreads:
        return self

    def begin(self) -> None:
        """Start the readers, wait until each of them has partitions, then start the producers. Raises
        StorageError if a reader gets no partitions in time.
        """
        make = partial(self._group.consumer, self.plan.patience_ms)
        for name in READERS:
            reader = Reader(name, make, TOPIC, self.ledger, self.plan.work, self.say, self._stop)
            self._readers.append(reader)
            reader.start()
        while len(set(self._group.owners().values())) < len(READERS):
            self._raise_errors()
            if time.monotonic() - self._began > _GRACE:
                raise StorageError(f"the readers did not share the partitions: {self._group.state()}")
            time.sleep(_LOOK)
        self._start(time.monotonic())
        self._readers[SILENT].silent_from = self._began + _SILENT_AT * self.plan.seconds
        for flights in self.plan.flights:
            replay = Replay(self._store, TOPIC, flights, self._pace, self.ledger, self._stop)
            self._replays.append(replay)
            replay.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads():
            if thread.is_alive():  # False if Ctrl-C came before the thread was started
                thread.join()
        if kind is None:
            self._raise_errors()

    def say(self, text: str) -> None:
        """Add an event, with its time. Any thread may call this method."""
        elapsed = time.monotonic() - self._began if self._replays else 0.0
        self.events.append(f"{elapsed:5.1f} s  {text}")

    # --- state ------------------------------------------------------------------------------

    def done(self) -> bool:
        """Return whether the live part is over: the producers have sent all records, and either all offsets
        are committed, or no offset was committed for a long time. Raises StorageError if a thread has raised
        an exception.
        """
        self._raise_errors()
        now = time.monotonic()
        committed, ends = self.committed(), self.ends()
        if any(replay.is_alive() for replay in self._replays):
            return False
        moved = sum(committed.values())
        if moved != self._moved[1]:
            self._moved = now, moved
        return committed == ends or now - max(self._moved[0], self._began + self.plan.seconds) > _GRACE

    def _threads(self) -> tuple[Replay | Reader, ...]:
        return (*self._replays, *self._readers)

    def _raise_errors(self) -> None:
        for thread in self._threads():
            if thread.error is not None:
                raise StorageError(f"{thread.name} failed: {thread.error}") from thread.error

    def ends(self) -> dict[int, int]:
        """Return the log end offset of each partition."""
        return {p: log.end_offset for p, log in enumerate(self._logs)}

    def committed(self) -> dict[int, int]:
        """Return the group's committed offset of each partition, 0 for a partition without a committed
        offset.
        """
        return dict.fromkeys(range(PARTITIONS), 0) | self._group.committed()

    def faults(self) -> list[str]:
        """Return a sentence for each fault in the final state, such as a record that was not read."""
        return self.ledger.faults(self.committed(), self.ends())

    def status(self) -> Status:
        """Return the current state of the live part."""
        # The order matters: committed offsets are read before the counts of sent records, and the log end
        # offsets last. So committed offsets never exceed the counts, and the counts never exceed the log end
        # offsets.
        committed, owners, state = self.committed(), self._owners(), self._group.state()
        now, ledger = time.monotonic(), self.ledger
        rates = self._rates.of(now, {p: tally.count for p, tally in enumerate(ledger.seen)})
        sent, read = total(ledger.sent)[0], total(ledger.seen)[0] + ledger.again
        rows = [
            LedgerRow(p, owners.get(p, ""), committed[p], end, rates[p]) for p, end in self.ends().items()
        ]
        when, elapsed = min(self._pace.now(), self._last()), now - self._began
        return Status(when, elapsed, self.plan.seconds, sent, read, ledger.again, state, rows, self.events)

    def _last(self) -> int:
        return self.plan.first + int(self.plan.seconds * self.plan.days * DAY_MS)

    def _owners(self) -> dict[int, str]:
        silent = {reader.name for reader in self._readers if reader.silent}
        owners = self._group.owners()
        return {p: f"{name}, silent" if name in silent else name for p, name in owners.items()}
