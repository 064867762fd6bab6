"""One thread, one clock, no chance: what would run in the background runs when it is told to."""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

from segstore import names
from segstore.client.consumer import join
from segstore.coordinator.group.classic import group
from segstore.files import overlapped_write
from segstore.storage.cleaner import offset_map
from segstore.storage.cleaner.throttle import GivingWay
from segstore.storage.inbox import adopt, inbox, manifest, stager
from segstore.storage.log import read_only_partition
from segstore.storage.meta import clean_shutdown, published_ends, topics
from segstore.storage.scheduler import Scheduler
from segstore.storage.segment import active
from segstore.storage.store import believed_ends, reader, store, sweeper

log = logging.getLogger("segstore")


class Hand:
    """Time, in seconds since the world began, that passes by hand; and the tasks of the open store."""

    def __init__(self, seed: object) -> None:
        self.seconds = 1e6
        self._looks = 0
        self.rng = random.Random(f"hand {seed}")
        self.schedulers: list[HandScheduler] = []

    def monotonic(self) -> float:
        return self.seconds

    def ms(self) -> float:
        return self.seconds * 1000

    def monotonic_ns(self) -> int:
        """A millisecond later at each look, so that what is believed for a while is looked up again as often
        in each run, however fast the machine is.
        """
        self._looks += 1
        return int(self.seconds * 1e9) + self._looks * 1_000_000

    def run_due(self) -> int:
        """Run what is due of all schedulers, in the order in which they were made: how many tasks."""
        self.schedulers = [each for each in self.schedulers if not each._closed]
        return sum(each.run_due() for each in list(self.schedulers))


class HandScheduler(Scheduler):
    """Keeps its tasks until `run_due`."""

    def __init__(self, hand: Hand, *_: object, **__: object) -> None:
        super().__init__()
        self._hand, self._numbers = hand, itertools.count()
        hand.schedulers.append(self)

    def after(self, seconds: float, task: Callable[[], object]) -> None:
        if not self._closed:
            heapq.heappush(self._tasks, (self._hand.seconds + seconds, next(self._numbers), task))

    def run_due(self) -> int:
        """Those that were due when it began: one that asks for itself again waits for the next time."""
        due = []
        while self._tasks and self._tasks[0][0] <= self._hand.seconds:
            due.append(heapq.heappop(self._tasks)[2])
        for task in due:
            try:
                task()
            except Exception:
                log.exception("background task failed")
        return len(due)


class HandWatch:
    """Sees nothing, and is not waited for: the inbox is looked at when it is told to."""

    stopped = True

    def __init__(self, directory: str) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class HandBackground:
    """In place of `threads.Background`, for who has one thread that looks and then waits for a watch: it
    looks, in place, and does not wait.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        self._run = run

    def start(self) -> None:
        self._run()

    def join(self) -> None:
        """Nothing."""

    def is_alive(self) -> bool:
        return False


class HandWorker:
    """In place of `threads.Worker`: does in place what a thread would do beside."""

    def __init__(self, name: str) -> None:
        self._errors: list[BaseException | None] = []

    def start(self) -> None:
        """Nothing."""

    def do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # a death too: whoever waits gets it
            self._errors.append(error)
        else:
            self._errors.append(None)

    def result(self) -> None:
        error = self._errors.pop(0)
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame

    def end(self) -> None:
        """Nothing."""

    leave = end


class _Later:
    """In place of `time`: an hour from now, so that no file seems to have been changed in this very moment,
    which has readers look again, and is so or not as fast as the machine is.
    """

    @staticmethod
    def time_ns() -> int:
        return time.time_ns() + 3_600_000_000_000

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()

    @staticmethod
    def sleep(seconds: float) -> None:
        """Nobody else does anything meanwhile."""


class _Drawn:
    """In place of `secrets`, `uuid` and `random`."""

    def __init__(self, rng: random.Random) -> None:
        self.randbits, self.random = rng.getrandbits, rng.random
        self.token_hex = lambda n: rng.randbytes(n).hex()
        self.uuid4 = lambda: uuid.UUID(int=rng.getrandbits(128))


@contextmanager
def by_hand(hand: Hand) -> Iterator[None]:
    """Stores that are opened within have no threads that do anything, and draw what they draw from the seed.

    `time.monotonic` is the hand's: what waits by it would wait for ever, so nothing in a run may wait.
    """
    drawn = _Drawn(hand.rng)
    instead: list[tuple[object, str, object]] = [
        (store, "Scheduler", partial(HandScheduler, hand)),
        (sweeper, "Scheduler", partial(HandScheduler, hand)),
        (inbox, "RenameWatch", HandWatch),
        (inbox, "Background", HandBackground),
        (adopt, "_AT_A_TIME", 1),
        (overlapped_write, "Worker", HandWorker),
        (clean_shutdown, "secrets", drawn),
        (stager, "secrets", drawn),
        (manifest, "secrets", drawn),
        (offset_map, "secrets", drawn),
        (published_ends, "secrets", drawn),
        (active, "random", drawn),
        (topics, "uuid", drawn),
        (names.new_topic_id, "__defaults__", (drawn.uuid4,)),
        (group, "uuid", drawn),
        (join, "uuid", drawn),
        (reader, "time", _Later),
        (believed_ends, "time", _Later),
        (believed_ends, "monotonic_ns", hand.monotonic_ns),
        (read_only_partition, "time", _Later),
        (GivingWay, "_wait_in_turns", lambda self, seconds: self._stopping.is_open),
        (time, "monotonic", hand.monotonic),
    ]
    with ExitStack() as stack:
        for whose, name, ours in instead:
            stack.enter_context(mock.patch.object(whose, name, ours))
        yield
