"""The world of a run: a store, its model, a clock, faults. Executes steps, which are (name, arguments).

A step refers to topics, producers and so on by names; a step whose object does not exist is skipped, so that
any part of a run is a run. Each step leaves a line in `trace`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from stores import START_MS, Clock

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.shared import shared
from segstore.errors import SegstoreError, StorageError

from .eyes import Eyes, Seen
from .files import Killed, SimulatedFiles
from .hand import Hand, by_hand
from .judge import Judge
from .model import Attempt, Key, Part, Topic, Wrong, hold

Step = tuple[Any, ...]
CONFIG = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.segment.bytes": 2000,
    "transaction.state.log.segment.bytes": 2000,
    "log.cleaner.dedupe.buffer.size": 2 << 20,
    "inbox.segment.bytes": 1500,
    "producer.id.expiration.ms": 2**31 - 1,
    "transactional.id.expiration.ms": 2**31 - 1,
    "offsets.retention.minutes": 2**31 - 1,
    "max.open.files": 16,
}
_NO_ROOM = ("ENOSPC", "EDQUOT")


class Skip(Exception):
    """There is nothing to do for this step."""


class World(Judge):
    """`ops` are the functions that execute steps, by name. `offsets`: what groups have committed since all
    was durable, the last one last; `tentative`: what they may have instead; `places`: which write it was.
    """

    ops: ClassVar[dict[str, Callable[..., object]]] = {}

    def __init__(self, root: str, seed: object) -> None:
        super().__init__()
        self.root = os.path.join(root, "store")
        self.hand, self.clock = Hand(seed), Clock(START_MS)
        self.rng = random.Random(f"world {seed}")
        self.topics: dict[str, Topic] = {}
        self.doubtful: dict[str, Topic | None] = {}
        self.offsets: dict[tuple[str, str, int], list[int | None]] = {}
        self.tentative: dict[tuple[str, str, int], set[int | None]] = {}
        self.places: dict[tuple[str, str, int], int] = {}
        self.place = 0
        self.idempotent: dict[str, tuple[int, int]] = {}
        self.manifests: list[list[Attempt]] = []
        self.sealed: set[str] = set()
        self.trace: list[str] = []
        self.counts: dict[str, int] = {}
        self.impaired = self.cut = False
        self.files = self._new_files()
        self.store: segstore.Store | None = None
        self.forget_clients()

    def forget_clients(self) -> None:
        """None of them outlives its store."""
        self.producers: dict[str, tuple[int, int]] = {}
        self.consumers: dict[str, segstore.Consumer] = {}
        self.logs: dict[Key, segstore.PartitionLog] = {}
        self.eyes = Eyes(lambda path: self.files.changes_of(path))
        self.may_be_fenced: set[str] = set()

    def _new_files(self) -> SimulatedFiles:
        return SimulatedFiles(self.root, self.rng.getrandbits(32))

    # --- a run ----------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step]) -> World:
        """`Wrong`, with the step that failed."""
        with by_hand(self.hand), ExitStack() as stack:
            stack.callback(self.drop)
            self.open()
            for number, step in enumerate(steps):
                try:
                    self.step(step)
                except Exception as error:
                    raise Wrong(f"step {number} {step}: {type(error).__name__}: {error}") from error
            try:
                self.finish()
            except Exception as error:
                raise Wrong(f"after the last step: {type(error).__name__}: {error}") from error
        return self

    def step(self, step: Step) -> None:
        name, *args = step
        self.largest = max(self.largest, self.clock.now)
        self.now = self.clock.now
        failed = self.failures
        try:
            told = self.ops[name](self, *args)
        except Skip:
            told = "-"
        except Killed:
            told = "dead"
        except StorageError as error:
            if not self.tolerated(failed):
                raise
            told = f"StorageError {error.errno}"
            if not self.files.dead:
                self.settle()
                self.failed(self.failures - failed)
        self.counts[name] = self.counts.get(name, 0) + (told != "-")
        if self.files.dead:
            self.reopen_dead()
        self.trace.append(f"{step} {told} {self.files.count} {self.files.digest:08x}")

    def failed(self, failures: int) -> None:
        """A step has raised, and what it did is known. Of an append that failed nothing is left, unless what
        takes it back has failed too.
        """
        for attempt in [a for part in self.parts() for a in part.attempts]:
            if failures < 2 and attempt.status == "maybe" and not attempt.seen and not self.files.dead:
                attempt.status = "failed"

    @property
    def failures(self) -> int:
        return self.files.failures

    def tolerated(self, failed: int) -> bool:
        """Whether an error is what was asked for, since so many failures, or follows from it."""
        return self.failures > failed or self.impaired or self.files.impaired

    # --- the store --------------------------------------------------------------------------------

    @property
    def live(self) -> segstore.Store:
        if self.store is None:
            raise Skip
        return self.store

    def open(self, crash: str = "") -> None:
        """Open, again and again where a fault or a death keeps it from that."""
        while self.store is None:
            self.files.impaired = False
            try:
                store = segstore.open(self.root, config=CONFIG, clock=self.clock, files=self.files)
            except Killed:
                crash = self._bury() or crash
            except StorageError:
                hold(self.failures > 0, "it can't be opened")
                self.files.forget_plans()
                self.files.let_go()
            else:
                self.store = store
        # What has failed within an open that went well was left for later, or a partition is fenced.
        self.impaired, self.files.failures = False, 0
        shared(self.store, GroupCoordinator)._clock = self.hand.ms
        self.reopened(crash)

    def _bury(self) -> str:
        if self.files.bury():
            self.files = self._new_files()
            self.cut = True
            return "cut"
        return "kill"

    def drop(self) -> None:
        """The process is gone; what its objects do on their way out reaches nothing."""
        store, self.store = self.store, None
        self.forget_clients()
        if store is not None:
            self.files.die("kill")
            store.context.closed = True
            store.engine.abandon()
            self.files.let_go()

    def reopen_dead(self) -> None:
        """After a death."""
        self.drop()
        crash = self._bury()
        self.open(crash)

    def reopened(self, crash: str) -> None:
        """Everything is compared; after a clean shutdown nothing may have changed."""
        self.settle_topics()
        self.verify(crash)
        if not self.impaired and not self.files.impaired and not self.files.planned:
            for topic in self.topics.values():
                for part in topic.parts:
                    hold(part.stable(self.transactions) == part.end, part, "has a transaction open")
        self.transactions = [t for t in self.transactions if set(t.first) - set(t.ended)]

    def finish(self) -> None:
        """A clean end, and a last look."""
        self.files.forget_plans()
        self.ops["close"](self)
        self.ops["verify"](self)
        store, self.store = self.store, None
        assert store is not None
        self.forget_clients()
        store.close()
        self.check()

    def check(self) -> None:
        """What another process has sealed may wait: that is no damage, but it is told."""
        findings = [str(each) for each in segstore.check(self.root)]
        wrong = [each for each in findings if not (self.manifests and "is sealed and waits" in each)]
        hold(not wrong, "check:", *wrong)

    # --- looks -------------------------------------------------------------------------------------

    def part(self, topic: str, number: int) -> Part:
        """`Skip` where there is none."""
        found = self.topics.get(topic)
        if found is None or number >= len(found.parts):
            raise Skip
        return found.parts[number]

    def parts(self) -> list[Part]:
        return [part for topic in self.topics.values() for part in topic.parts]

    def log(self, part: Part) -> segstore.PartitionLog:
        log = self.logs[part.key] = self.live.partition(*part.key)  # held: else it would be made anew
        return log

    def seen(self, part: Part, since: int | None = None) -> Seen:
        """What is there, looked at without faults."""
        log = self.log(part)
        self.files.quiet = True
        try:
            return self.eyes.look(log, since)
        finally:
            self.files.quiet = False

    def compare_all(self, crash: str = "", swept: bool = False) -> None:
        """All of all partitions."""
        for part in self.parts():
            self.compare(part, self.seen(part), crash, swept or bool(crash))

    def compare_tail(self, *parts: Part) -> None:
        """What is new in partitions."""
        for part in parts:
            at = max(part.end, self.log(part).start_offset)
            self.compare(part, self.seen(part, at), since=at)

    def settle(self) -> None:
        """A step has failed: what it did is found out."""
        for _ in range(2):
            try:
                self.settle_topics()
                self.verify("")
                return
            except Killed:
                return  # it is opened anew
            except StorageError:
                self.files.forget_plans()  # a look may fail too
        raise Wrong("it can't be read")

    def settle_topics(self) -> None:
        raise NotImplementedError

    def verify(self, crash: str) -> None:
        raise NotImplementedError


def told(error: SegstoreError) -> str:
    """An error that was expected."""
    return type(error).__name__
