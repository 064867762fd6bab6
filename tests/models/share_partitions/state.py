"""A state of the model: the core, what lies outside of it, and a history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import (
    DeadLetter,
    Durable,
    Grant,
    StateBatch,
    StateWrite,
)
from share_partitions.bounds import Bounds

Entry = tuple[int, int]
"""(delivery count, state): the larger one is durable, whichever came last."""


class Broken(Exception):
    """A property does not hold; the message begins with its number."""


class Ack(NamedTuple):
    """An offset whose acknowledgement is under way, by whom, and until when its lock lasts."""

    offset: int
    kind: int
    member: int
    until: int


class Flight(NamedTuple):
    """A write under way, and the acknowledgements that are answered when it ends."""

    write: StateWrite
    acks: tuple[Ack, ...] = ()


class Answer(NamedTuple):
    """A grant that its member has not got yet."""

    member: int
    grant: Grant


class State:
    """Lists have one entry for each offset of the log, or for each member.

    `holders`: (member, end of the lock), from the grant on; `grants`: how often an offset was granted;
    `promised`: the type of the acknowledgement that was answered with success; `tried`: an ACCEPT or REJECT
    was sent; `sent`: dead letters that were appended. `noted` are what a member believes to hold.
    """

    __slots__ = (
        *("answer", "core", "durable", "durable_start", "end", "first", "flights", "grants", "holders"),
        *("letters", "log_start", "noted", "now", "promised", "sent", "tried", "used"),
    )

    def __init__(self, bounds: Bounds) -> None:
        offsets = sum(bounds.batches)
        self.core = SharePartition.load(Durable(start=-1 if bounds.latest else 0), 0, offsets)
        self.now = self.log_start = 0
        self.end = sum(bounds.batches[: bounds.there])
        self.first = -1 if bounds.latest else 0
        self.durable_start = self.first
        self.durable: list[Entry | None] = [None] * offsets
        self.flights: list[Flight] = []
        self.letters: list[tuple[DeadLetter, bool]] = []
        self.answer: Answer | None = None
        self.noted: list[frozenset[int]] = [frozenset()] * bounds.members
        self.holders: list[tuple[int, int] | None] = [None] * offsets
        self.grants, self.sent = [0] * offsets, [0] * offsets
        self.promised, self.tried = [-1] * offsets, [False] * offsets
        self.used: dict[str, int] = {}

    def copy(self) -> State:
        copied = State.__new__(State)
        for name in State.__slots__:
            value = getattr(self, name)
            setattr(copied, name, value.copy() if hasattr(value, "copy") else value)
        return copied

    @property
    def faults(self) -> int:
        """Crashes, and writes that failed or that a crash has cut off (C*)."""
        return sum(self.used.get(what, 0) for what in ("crash", "failure", "cut off"))

    def key(self) -> int:
        """Return the same number for states that go on alike: tokens, the time of the clock and the names of
        members don't matter.
        """
        orders = permutations(range(len(self.noted)))
        return min(hash(self._named(order)) for order in orders)

    def _named(self, names: tuple[int, ...]) -> tuple[object, ...]:
        numbers = {flight.write.token: at for at, flight in enumerate(self.flights, 1)}
        asked = self.answer.grant.token if self.answer else -1
        offsets: list[object] = []
        for run in self.core.runs():
            lock = run.lock
            held = lock and (names[int(lock.owner)], max(lock.until - self.now, 0), lock.grant == asked)
            alike = (run.state, run.count, held, run.piece, numbers.get(run.write, 0), run.target)
            offsets += [(at, alike) for at in range(run.first, run.last + 1)]
        flights = tuple(
            (flight.write[1:], *((ack[:2], self._relative(names, ack[2:])) for ack in flight.acks))
            for flight in self.flights
        )
        holders = tuple(each and self._relative(names, each) for each in self.holders)
        outside = self.log_start, self.end, self.first, self.durable_start, *self.durable
        history = tuple(map(self._past, range(len(self.grants))))
        asked_for = self.answer and (names[self.answer.member], self.answer.grant.acquired)
        noted = tuple(noted for _, noted in sorted(zip(names, self.noted, strict=True)))
        core = self.core.start, self.core.next_new, *offsets
        used = tuple(sorted(self.used.items()))
        return (core, flights, holders, outside, history, asked_for, tuple(self.letters), noted, used)

    def _relative(self, names: tuple[int, ...], lock: Sequence[int]) -> tuple[int, int]:
        return names[lock[0]], max(lock[1] - self.now, 0)

    def _past(self, at: int) -> tuple[object, ...]:
        """Return what matters of an offset's history: nothing else once it is done with for good."""
        owed = self.promised[at] == 3 and not self.sent[at]
        if at < min(self.durable_start, self.core.start):
            given_up = not self.tried[at] and not self.sent[at]
            return owed, given_up
        if self.promised[at] in (1, 3):
            return owed, self.promised[at], self.sent[at]
        return self.grants[at], self.sent[at], self.promised[at] == 0, self.tried[at]

    # --- the durable state -----------------------------------------------------------------------

    def apply(self, write: StateWrite) -> None:
        """Make a write durable, as the state topic's records fold."""
        self.durable_start = max(self.durable_start, write.start)
        for batch in write.batches:
            for at in range(batch.first, batch.last + 1):
                self.durable[at] = max(self.durable[at] or (-1, 0), (batch.count, batch.state))
        for at in range(max(self.durable_start, 0)):
            self.durable[at] = None

    def stored(self) -> Durable:
        """Return the durable state as a load finds it."""
        batches = tuple(
            StateBatch(at, at, entry[1], entry[0]) for at, entry in enumerate(self.durable) if entry
        )
        return Durable(start=self.durable_start, batches=batches)
