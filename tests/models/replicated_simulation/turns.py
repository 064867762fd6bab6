"""Threads that take turns: one runs, until it waits; who goes on then is drawn from a seed.

Time passes only when all threads wait: up to the first moment at which one of them goes on. Nothing else of
the machine plays a part, so the same seed gives the same order.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import Empty
from typing import Any
from unittest import mock

from simulation.files import Killed
from simulation.hand import Hand, by_hand
from simulation.model import Wrong, hold

from segstore._native import ffi
from segstore.coordinator import shared
from segstore.coordinator.group import group_table, held
from segstore.coordinator.inboxes import adoptions, inboxes
from segstore.coordinator.offsets import cache
from segstore.coordinator.share import partitions, state_partition
from segstore.mutex import PATIENCE, Mutex
from segstore.replication import (
    change_counter,
    data_directory,
    fetching,
    local_replica,
    opening,
    quorum_controller,
    read_thread,
    waiting_appends,
)
from segstore.replication.metadata import metadata_log, snapshot_generator, snapshot_keeper, voter_log
from segstore.storage import scheduler
from segstore.storage.inbox import inbox
from segstore.storage.scheduler import Scheduler
from segstore.storage.segment.disk_thread import DiskThread
from segstore.storage.store import store, sweeper

MOST_TURNS = 20_000
"""Turns within one wait of the application: more of them are no progress (sound runs need about 1,000)."""
MOST_WORK = 2_000
"""Pieces of work that a thread takes without a wait: more of them are a loop without an end."""
BOUNDED = cache, held, partitions, state_partition
"""Modules that make bounded locks."""
JOIN_SECONDS = 30
"""A thread of a dead process ends within so long, or is stuck."""


class Thread:
    """One that takes turns. `ready` says whether its wait is over, `until` when it is over at last."""

    def __init__(self, name: str) -> None:
        """`gate` is open only while this thread is to go on."""
        self.name, self.gate = name, threading.Lock()
        self.gate.acquire()
        self.ready: Callable[[], bool] = lambda: True
        self.until: float | None = None
        self.real: threading.Thread | None = None


class Turns:
    """The threads of one process, of which the first is the application's. `paused` are parts of names of
    threads that don't run for now. `errors` are what ended threads that should not end. `seals` counts what
    stagers have sealed. `stuck` says why nobody could go on: the process is dead then.
    """

    def __init__(self, hand: Hand, seed: object) -> None:
        self._hand, self._rng = hand, random.Random(f"turns {seed}")
        self.paused: set[str] = set()
        self.errors: list[BaseException] = []
        self.seals = 0
        self.born()

    def born(self) -> None:
        """Begin a new process."""
        self._main = self._now = Thread("application")
        self._threads, self._dead, self._count, self._work = [self._main], False, 0, 0
        self.stuck, self.buried = "", False

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        """Wait, and return what `ready` says then. Raises Killed where the process dies meanwhile."""
        if self._dead:
            raise Killed
        me = self._now
        me.ready = ready
        me.until = None if seconds is None else self._hand.seconds + max(seconds, 0.0)
        if me is self._main:
            self._count = 0
        self._give(self._next(), me)
        return ready()

    def take_work(self) -> None:
        """Count what a thread takes from a queue without a wait. Without an end the application is told."""
        self._work += 1
        if self._work > MOST_WORK and not self._dead:
            self.stuck = f"{self._now.name} works and works, and never waits"
            self._give(self._main, self._now)

    def _give(self, other: Thread, me: Thread) -> None:
        if other is not me:
            self._now = other
            other.gate.release()
            me.gate.acquire()
        if self.stuck and me is self._main:
            self._dead = True
            raise Wrong(self.stuck)
        if self._dead:
            raise Killed

    def _next(self) -> Thread:
        """Draw who goes on; time passes where nobody can. Without an end the application is told."""
        self._count, self._work = self._count + 1, 0
        if self._count > MOST_TURNS:
            self.stuck = f"no end after {MOST_TURNS} turns: {[t.name for t in self._threads]}"
            return self._main
        while True:
            now, awake = self._hand.seconds, self._threads
            if self.paused:
                awake = [t for t in awake if not self._is_paused(t)]
            able = [t for t in awake if (t.until is not None and t.until <= now) or t.ready()]
            if able:
                return self._rng.choice(able)
            times = [t.until for t in awake if t.until is not None]
            if not times:
                self.stuck = f"all wait for ever: {[t.name for t in self._threads]}, paused {self.paused}"
                return self._main
            self._hand.seconds = max(self._hand.seconds, min(times))

    def _is_paused(self, thread: Thread) -> bool:
        return any(thread.name.endswith(part) for part in self.paused)

    # --- threads ----------------------------------------------------------------------------------

    def start(self, run: Callable[[], object], name: str) -> None:
        thread = Thread(name)
        thread.real = threading.Thread(target=self._run, args=(thread, run), name=name, daemon=True)
        self._threads.append(thread)
        thread.real.start()

    def _run(self, thread: Thread, run: Callable[[], object]) -> None:
        thread.gate.acquire()
        try:
            if not self._dead:
                run()
        except Killed:
            self._dead = True
        except BaseException as error:
            self.errors.append(error)
        finally:
            if not self._dead:
                self._threads.remove(thread)
                self._now = self._next()
                self._now.gate.release()
            elif self._now is thread:  # else the world ends them one by one
                self._now = self._main
                self._main.gate.release()

    def bury(self) -> None:
        """The process is dead: end its threads, one after the other."""
        self._dead = True
        for thread in self._threads[1:]:
            self._now = self._main
            thread.gate.release()
            if thread.real is not None:
                thread.real.join(JOIN_SECONDS)
                hold(not thread.real.is_alive(), thread.name, "does not end though its process is dead")
        self.buried = True


class Queue:
    """In place of `queue.SimpleQueue`."""

    def __class_getitem__(cls, item: object) -> type:
        return cls

    def __init__(self, turns: Turns) -> None:
        self._turns, self._held = turns, deque[Any]()

    def put(self, item: object) -> None:
        self._held.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._held and block and (timeout is None or timeout > 0):
            self._turns.wait(lambda: bool(self._held), timeout)
        if not self._held:
            raise Empty
        self._turns.take_work()
        return self._held.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._held


class TurnLatch:
    """In place of `threads.Latch`."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self.is_open = turns, False

    def open(self) -> None:
        self.is_open = True

    def wait(self, seconds: float | None = None) -> bool:
        if self.is_open or self._turns.buried or (seconds is not None and seconds <= 0):
            return self.is_open
        return self._turns.wait(lambda: self.is_open, seconds)


class TurnBackground:
    """In place of `threads.Background`."""

    def __init__(self, turns: Turns, run: Callable[[], object], name: str) -> None:
        self._turns, self._run, self._name, self._works = turns, run, name, False

    def start(self) -> None:
        self._works = True
        self._turns.start(self._do, self._name)

    def _do(self) -> None:
        try:
            self._run()
        finally:
            self._works = False

    def join(self, timeout: float | None = None) -> None:
        if self._works and not self._turns.buried:
            self._turns.wait(lambda: not self._works, timeout)

    def is_alive(self) -> bool:
        return self._works


class TurnLock:
    """In place of `mutex.nesting`: a lock that its owner may take again, for which others wait in turns. With
    `late` in place of `mutex.BoundedLock`.
    """

    def __init__(self, turns: Turns, late: Callable[[], Exception] | None = None) -> None:
        self._turns, self._late, self._count = turns, late, 0
        self._owner: Thread | None = None

    def __enter__(self) -> None:
        me, end = self._turns._now, self._turns._hand.seconds + PATIENCE
        while self._owner not in (None, me) and not self._turns.buried:
            left = None if self._late is None else end - self._turns._hand.seconds
            if self._late is not None and self._turns._hand.seconds >= end:
                raise self._late()
            self._turns.wait(lambda: self._owner is None, left)
        self._owner, self._count = me, self._count + 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        self._owner = self._owner if self._count else None


class TurnShelter:
    """In place of `threads.Shelter`: no signal comes, so calls are made in the thread that asks."""

    def __init__(self, name: str) -> None:
        """Nothing."""

    def call(self, run: Callable[[], Any]) -> Any:
        return run()

    def close(self) -> None:
        """Nothing."""


class TurnWatch:
    """In place of an inbox's `Watch`: `Turns.seals` is counted where one is renamed into its place."""

    def __init__(self, turns: Turns, directory: str) -> None:
        self._turns, self._seen, self.stopped = turns, turns.seals, False

    def wait(self, seconds: float) -> bool:
        news = self._turns.wait(lambda: self.stopped or self._turns.seals != self._seen, seconds)
        self._seen = self._turns.seals
        return news

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        """Nothing is held."""


class TurnScheduler(Scheduler):
    """A scheduler whose end can be waited for in turns."""

    def __init__(self, turns: Turns, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns, self._works, self._mine = turns, False, None

    def _work(self) -> None:
        self._works, self._mine = True, self._turns._now
        try:
            super()._work()
        finally:
            self._works = False

    def close(self) -> None:
        self._closed = True
        self._queue.put(None)
        if self._works and self._turns._now is not self._mine:
            self._turns.wait(lambda: not self._works, None)


def _take(turns: Turns, lock: Mutex) -> None:
    """In place of `Mutex._wait`."""
    seconds = 0.001
    while not lock.acquire(False):
        turns.wait(lambda: False, seconds)
        seconds = min(seconds * 2, 0.1)


class _Made:
    """A class of ours that is made with the turns; `X[...]` is itself, as of a generic class."""

    def __init__(self, kind: Callable[..., Any], turns: Turns) -> None:
        self._make = partial(kind, turns)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._make(*args, **options)

    def __getitem__(self, item: object) -> _Made:
        return self


@contextmanager
def in_turns(hand: Hand, turns: Turns) -> Iterator[None]:
    """Replicated stores that are opened within take turns, and draw what they draw from the seed."""
    queue, latch = _Made(Queue, turns), _Made(TurnLatch, turns)
    background, scheduled = _Made(TurnBackground, turns), _Made(TurnScheduler, turns)
    instead: list[tuple[object, str, object]] = [
        *[
            (each, "SimpleQueue", queue)
            for each in (data_directory, fetching, read_thread, change_counter, quorum_controller)
        ],
        *[(each, "SimpleQueue", queue) for each in (waiting_appends, voter_log, scheduler, snapshot_keeper)],
        *[(each, "Background", background) for each in (fetching, read_thread)],
        *[(each, "Background", background) for each in (quorum_controller, voter_log)],
        *[(each, "Background", background) for each in (snapshot_generator, snapshot_keeper)],
        *[(each, "Background", background) for each in (inbox, inboxes)],
        *[
            (each, "Latch", latch)
            for each in (adoptions, fetching, read_thread, inbox, quorum_controller, snapshot_keeper)
        ],
        (inbox, "RenameWatch", _Made(TurnWatch, turns)),
        (group_table, "Shelter", TurnShelter),
        *[(each, "BoundedLock", _Made(TurnLock, turns)) for each in BOUNDED],
        (shared, "nesting", _Made(TurnLock, turns)),
        *[(each, "Scheduler", scheduled) for each in (opening, store, sweeper)],
        (metadata_log, "WriteAnswers", queue),
        (scheduler, "Background", background),
        (scheduler, "step_back", lambda: None),
        (Mutex, "_wait", lambda lock: _take(turns, lock)),
        (local_replica, "now_ms", lambda: int(hand.seconds * 1000)),
        (opening, "now_ms", lambda: int(hand.seconds * 1000)),
        (quorum_controller, "now_ms", lambda: int(hand.seconds * 1000)),
        (waiting_appends, "now_ms", lambda: int(hand.seconds * 1000)),
        (waiting_appends, "_queue_of", lambda ticket: ticket),
        # C's thread takes no turns: the appender writes the followers, and lends as by threads.
        (DiskThread, "job", lambda thread: ffi.NULL),
    ]
    with by_hand(hand), ExitStack() as stack:
        for whose, name, ours in instead:
            stack.enter_context(mock.patch.object(whose, name, ours))
        yield
