"""What must be there: what applications were told, and the rules by which it may be lost."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from simulation.model import hold

from segstore.records import scan

KEYS = 5
KEPT = 5
"""Batches of a producer whose repetition a leader recognises (Kafka: ProducerStateEntry)."""


def key_of(value: bytes) -> bytes:
    """The key with which a value is written to a compacted topic."""
    return b"k%d" % (zlib.crc32(value) % KEYS)


def latest(records: Mapping[int, bytes]) -> dict[bytes, int]:
    """The last offset of each key."""
    return {key_of(value): offset for offset, value in sorted(records.items())}


@dataclass
class Sequenced:
    """An idempotent producer of one partition. `pending`: the base sequence and the values of the batch whose
    outcome it does not know. `told`: base sequence, values and first offset of its last batches.
    """

    producer_id: int
    following: int = 0
    pending: tuple[int, list[bytes]] | None = None
    told: list[tuple[int, list[bytes], int]] = field(default_factory=list)

    def next_batch(self, make: Callable[[], list[bytes]]) -> tuple[int, list[bytes]]:
        """The base sequence and the values of the batch to send: the one that is pending, or a new one."""
        if self.pending is None:
            self.pending = self.following, make()
        return self.pending

    def done(self, first: int) -> None:
        """The pending batch was acknowledged."""
        assert self.pending is not None
        sequence, values = self.pending
        self.told = [*self.told, (sequence, values, first)][-KEPT:]
        self.following, self.pending = sequence + len(values), None


class Transaction:
    """A transaction: `outcomes` are those that it may have; others may abort it while it is open. Where it
    `counts`, none of its partitions was free to lose anything.
    """

    def __init__(self) -> None:
        self.outcomes, self.counts = {"abort"}, True

    def ends(self, commit: bool) -> None:
        """Its end is asked for."""
        self.outcomes |= {"commit" if commit else "abort"}

    def ended(self, commit: bool) -> None:
        """Its end was acknowledged."""
        self.seen("commit" if commit else "abort")

    def seen(self, outcome: str) -> None:
        """It has this outcome, in all partitions and for ever."""
        hold(not self.counts or outcome in self.outcomes, "a transaction has", outcome, "of", self.outcomes)
        self.outcomes = {outcome}


@dataclass
class Part:
    """A partition, of a topic with this id. `sent`: all that was ever sent to it; `acked`: what was
    acknowledged by all in-sync replicas, `shown`: what was read, by offset. Since all replicas were in sync:
    `damaged` are directories that have lost something, `out` those that were offline, `least` is the smallest
    min.insync.replicas, `free` whether a rule allows that anything was lost. `replaced` have lost what was
    synced, too; `gone` is whether a rule allows that such was lost. `contents`: last offset and CRC of each
    batch that was seen, by leader epoch and base offset. `compacted`: values have keys, and only the
    last one of a key is promised. `retained`: retention removes old segments; else no log begins behind
    `trimmed`, up to which records were to be deleted. `transactions`: those of values that were sent in one;
    `staged` are values that may be there several times, of which one is committed.
    """

    topic: str
    number: int
    topic_id: str
    least: int
    sent: set[bytes] = field(default_factory=set)
    acked: dict[int, bytes] = field(default_factory=dict)
    shown: dict[int, bytes] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    out: set[int] = field(default_factory=set)
    free: bool = False
    replaced: set[int] = field(default_factory=set)
    gone: bool = False
    contents: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    watermark: tuple[int, int] = (-1, -1)
    compacted: bool = False
    retained: bool = False
    trimmed: int = 0
    producers: dict[str, Sequenced] = field(default_factory=dict)
    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    staged: set[bytes] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    def damage(self, directory: int, replaced: bool) -> None:
        """A directory has lost the end of its log; or, where it was `replaced`, all of it."""
        self.damaged.add(directory)
        self.replaced.update([directory] if replaced else ())
        self._count()

    def lose(self) -> None:
        """A rule allows that anything is lost."""
        self.free = self.gone = True

    def go_out(self, directories: Iterable[int]) -> None:
        """Directories are offline. What they have counts again when they are in sync again."""
        self.out.update(directories)
        self._count()

    def _count(self) -> None:
        self.free |= bool(self.damaged) and len(self.damaged | self.out) >= self.least
        self.gone |= bool(self.replaced) and len(self.replaced | self.out) >= self.least

    def in_sync(self, minimum: int, shown: dict[int, bytes]) -> None:
        """All replicas have all that there is: losses count anew."""
        if self.free:  # what was lost was allowed to be
            self.acked = dict(shown)
            self.shown = dict(shown)
            self.contents.clear()
            self.forget_transactions()
            self.producers.clear()  # what they were told may be lost: others take their places
        self.damaged, self.out, self.free, self.least = set(), set(), False, minimum
        self.replaced, self.gone = set(), False

    def show(self, start: int, end: int, found: dict[int, bytes], whole: bool) -> None:
        """Readers see these records in [start, end) now (P2, P4, P6)."""
        for offset, value in found.items():
            hold(value in self.sent, self, offset, "was never sent:", value)
        if self.free:
            self.trimmed = max(self.trimmed, start)
            return
        hold(start <= end, self, "begins at", start, "and is shown up to", end)
        asked = "records were deleted up to"
        hold(self.retained or start <= self.trimmed, self, "begins at", start, asked, self.trimmed)
        newest = latest({**self.acked, **self.shown, **found}) if self.compacted else {}
        for told, promised in (("acknowledged", self.acked), ("shown", self.shown)):
            wanted = {o: v for o, v in promised.items() if start <= o < end}
            lost = {o: v for o, v in wanted.items() if found.get(o) != v}
            lost = {o: v for o, v in lost.items() if o in found or newest.get(key_of(v), o) <= o}
            hold(not lost, self, f"{told} records are lost below the high watermark {end}:", lost)
            if whole:
                gone = {o: v for o, v in promised.items() if o >= end}
                hold(not gone, self, f"{told} records are lost behind the end {end}:", gone)
        values = [value for value in found.values() if value not in self.staged]
        hold(len(set(values)) == len(values), self, "a record is there twice")
        self.shown.update(found)

    def show_committed(self, start: int, end: int, found: dict[int, bytes]) -> None:
        """P10: who reads committed sees these records in [start, end), of each transaction all or nothing. A
        compacted partition has none.
        """
        if self.free:
            self.forget_transactions()
        if self.compacted:
            return
        for value in found.values():
            if (transaction := self.transactions.get(value)) is not None:
                transaction.seen("commit")
        for offset, value in self.acked.items():
            if not start <= offset < end or self.free or offset in found:
                continue
            transaction = self.transactions.get(value)
            hold(transaction is not None, self, offset, "is not in a transaction, and is not shown:", value)
            assert transaction is not None
            transaction.seen("abort")

    def forget_transactions(self) -> None:
        """What was lost here may be part of them."""
        for transaction in self.transactions.values():
            transaction.counts = False

    def lead(self, leader_epoch: int, high_watermark: int, log_end_offset: int) -> None:
        """P7: a leader's high watermark never goes back in its leader epoch."""
        hold(high_watermark <= log_end_offset, self, "high watermark", high_watermark, "LEO", log_end_offset)
        epoch, before = self.watermark
        if epoch == leader_epoch:
            hold(high_watermark >= before, self, "high watermark falls from", before, "to", high_watermark)
        self.watermark = leader_epoch, high_watermark

    def strong(self, high_watermark: int, ends: Mapping[int, int]) -> None:
        """P3: the logs of all in-sync replicas, which end there, have what the leader shows."""
        behind = {replica: end for replica, end in ends.items() if end < high_watermark}
        hold(self.free or not behind, self, "in sync, and ends below", high_watermark, behind)

    def match(self, directory: Path) -> None:
        """P1: under one leader epoch an offset has one content, in all replicas and for ever."""
        for base, last, epoch, crc in batches_of(directory):
            known = self.contents.setdefault((epoch, base), (last, crc))
            hold(
                known == (last, crc),
                self,
                "epoch",
                epoch,
                "offset",
                base,
                "has two contents:",
                known,
                (last, crc),
            )


def equal(replicas: Mapping[Path, int]) -> None:
    """P9: of any two replicas, which begin at these log start offsets, both hold the same batches from the
    later start on. What a segment has below the log start was deleted, and no reader gets it.
    """
    logs = {replica: batches_of(replica) for replica in replicas}
    for one, other in combinations(replicas, 2):
        start = max(replicas[one], replicas[other])
        left, right = ([batch for batch in logs[each] if batch[1] >= start] for each in (one, other))
        hold(left == right, one, "and", other, "differ from", start, "on:", {*left} ^ {*right})


def batches_of(replica: Path) -> list[tuple[int, int, int, int]]:
    """Base offset, last offset, leader epoch and CRC of each batch."""
    names = ("base_offset", "last_offset", "leader_epoch", "crc")
    data = b"".join(log.read_bytes() for log in sorted(replica.glob("*.log")))
    batches = scan(data)[0]
    return list(zip(*(batches[name].tolist() for name in names), strict=True))
