"""A share partition over a log that is a list of batches, and a shell that makes its writes at once."""

from __future__ import annotations

from collections.abc import Sequence

from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import (
    AckBatch,
    AcknowledgeType,
    Acquired,
    AcquireMode,
    DeadLetter,
    Durable,
    Grant,
    Limits,
    OffsetRange,
    Outcome,
    ReadBatch,
    StateBatch,
    StateWrite,
)

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP, RENEW = AcknowledgeType.GAP, AcknowledgeType.RENEW
BATCH, STRICT = AcquireMode.BATCH_OPTIMIZED, AcquireMode.RECORD_LIMIT
Spans = tuple[tuple[int, ...], ...]


def log_of(*sizes: int) -> list[ReadBatch]:
    """Batches of so many records, from offset 0 on."""
    batches, base = [], 0
    for size in sizes:
        batches.append(ReadBatch(base, base + size - 1))
        base += size
    return batches


class Queue:
    """A share partition from `start` of a log on. Writes are made at once while `holds` is false; else they
    wait in `writes`. `letters` and `wakes` have the effects of all events.
    """

    def __init__(
        self,
        *sizes: int,
        start: int = 0,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        durable: Durable | None = None,
        log: Sequence[ReadBatch] | None = None,
        log_start: int = 0,
    ) -> None:
        self.log = list(log if log is not None else log_of(*sizes))
        self.limits, self.now, self.holds = limits, 0.0, False
        self.writes: list[StateWrite] = []
        self.made: list[StateWrite] = []
        self.letters: list[DeadLetter] = []
        self.wakes = 0
        self.part = SharePartition.load(
            durable or Durable(start=start), log_start, self.log[-1].last + 1 if self.log else 0
        )

    def did(self, outcome: Outcome) -> Outcome:
        self.wakes += outcome.wakes
        self.letters += outcome.dead_letters
        if outcome.write is not None:
            self.writes.append(outcome.write)
            if not self.holds:
                self.end(ok=True)
        return outcome

    def end(self, ok: bool, at: int = 0) -> Outcome:
        """End a write that is under way."""
        write = self.writes.pop(at)
        if ok:
            self.made.append(write)
        return self.did(self.part.written(write.token, ok, self.now, self.limits))

    def read(self) -> tuple[list[ReadBatch], int, int]:
        """What a fetch reads: batches, from, end."""
        begin = self.part.fetch_offset()
        batches = [batch for batch in self.log if batch.last >= begin]
        return batches, begin, batches[-1].last + 1 if batches else begin

    def grant(
        self,
        member: str = "m",
        want: int = 500,
        mode: AcquireMode = BATCH,
        piece: int | None = None,
        aborted: Sequence[OffsetRange] = (),
    ) -> Grant:
        batches, begin, end = self.read()
        size = want if piece is None else piece
        grant = self.part.grant(member, mode, want, size, batches, begin, end, aborted, self.now, self.limits)
        self.wakes += grant.wakes
        return grant

    def fetch(
        self,
        member: str = "m",
        want: int = 500,
        mode: AcquireMode = BATCH,
        piece: int | None = None,
        aborted: Sequence[OffsetRange] = (),
    ) -> Spans:
        """Fetch, and return (first, last, count) of what was acquired."""
        return tuple(map(tuple, self.grant(member, want, mode, piece, aborted).acquired))

    def ack(self, member: str, *batches: tuple[int, int, AcknowledgeType | list[int]]) -> Outcome:
        acks = [
            AckBatch(first, last, kind if isinstance(kind, list) else [kind]) for first, last, kind in batches
        ]
        return self.did(self.part.acknowledge(member, acks, self.now, self.limits))

    def give_back(self, member: str, acquired: Sequence[Acquired] | Spans, kind: AcknowledgeType) -> Outcome:
        return self.ack(member, *((first, last, kind) for first, last, _ in acquired))

    def later(self, ms: float) -> Outcome:
        """Let time pass, and end the locks that run out."""
        self.now += ms
        return self.did(self.part.expire(self.now, self.limits))

    def release(self, member: str) -> Outcome:
        return self.did(self.part.release(member, self.now, self.limits))

    def lettered(self, letter: DeadLetter) -> Outcome:
        return self.did(self.part.dead_lettered(letter.first, letter.last))

    def held(self, member: str = "m") -> Spans:
        return tuple(map(tuple, self.part.acquired_by(member)))

    def states(self) -> list[tuple[int, int, str, int]]:
        """(first, last, state, delivery count) of all runs in flight."""
        return [(run.first, run.last, run.state.name, run.count) for run in self.part.runs()]


def stored(start: int, *batches: tuple[int, int, int, int]) -> Durable:
    return Durable(start=start, complete=0, batches=tuple(StateBatch(*batch) for batch in batches))
