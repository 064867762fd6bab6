"""Steps of transactional producers: over partitions, with offsets of groups, consume-transform-produce."""

from __future__ import annotations

from typing import Any

from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    ProducerFencedError,
    StorageError,
)
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.storage.log.append import append_batches

from .model import Part, Sent, Transaction, hold
from .ops_records import Records, columns
from .world import Skip

OFFSETS = "__consumer_offsets"
TIMEOUT_MS = 60_000


class Transactions(Records):
    """What the steps of this module need."""

    @property
    def coordinator(self) -> TransactionCoordinator:
        return shared(self.live, TransactionCoordinator)

    @property
    def group_offsets(self) -> GroupOffsets:
        return shared(self.live, GroupOffsets)

    def current(self, name: str) -> Transaction | None:
        """The open transaction of a transactional id."""
        mine = [t for t in self.transactions if t.name == name and not t.over]
        return mine[-1] if mine else None

    def begun(self, name: str) -> Transaction:
        """The open transaction, or a new one. `Skip` where nobody has asked for the id."""
        if name not in self.producers:
            raise Skip
        found = self.current(name)
        if found is None:
            found = Transaction(name, self.producers[name])
            self.transactions.append(found)
        if found.decided or found.outcomes != {"abort"}:
            raise Skip  # its end is decided, or may be
        return found

    def settle_transactions(self) -> None:
        """Those that have ended are over: with their offsets, if they were committed."""
        for transaction in self.whole(set(self.parts())):
            kinds = set(transaction.ended.values())
            if len(kinds) == 1:
                transaction.outcomes = kinds
            self.over(transaction)

    def promised(self, transaction: Transaction) -> bool:
        """Whether all that it writes survives a power cut once it was acknowledged."""
        return all(p.topic.config.get("flush.messages") == 1 for p in transaction.first)

    def over(self, transaction: Transaction) -> None:
        """It is known what became of it, or its outcomes say all that may have."""
        if transaction.over:
            return
        transaction.over = True
        for key, offset, place, sure in transaction.offsets:
            if "commit" not in transaction.outcomes or place < self.places.get(key, -1):
                continue
            if sure and transaction.outcomes == {"commit"}:
                self.committed(key, offset, place)
            else:
                self.tentative.setdefault(key, set()).add(offset)

    def committed(self, key: tuple[str, str, int], offset: int | None, place: int | None = None) -> None:
        """It was acknowledged."""
        self.place += 1
        self.places[key] = self.place if place is None else place
        self.offsets.setdefault(key, [None]).append(offset)

    def check_offsets(self, cut: bool = False) -> None:
        """What groups have committed is what they may have, and from now on this."""
        for group in sorted({key[0] for key in (*self.offsets, *self.tentative)}):
            found = self.group_offsets.fetch(group)
            for key in {**self.offsets, **self.tentative}:
                if key[0] == group and key[1] in self.topics:
                    place = found.get(TopicPartition(*key[1:]))
                    self._check_offset(key, None if place is None else place.offset, cut)
        self.tentative.clear()

    def _about_to(self, key: tuple[str, str, int]) -> set[int]:
        """What transactions commit whose end is decided, or may be, and is not seen to."""
        ending = [t for t in self.transactions if not t.over and "commit" in t.outcomes]
        return {sent.offset for t in ending for sent in t.offsets if sent.key == key}

    def _check_offset(self, key: tuple[str, str, int], offset: int | None, cut: bool) -> None:
        held = self.offsets.setdefault(key, [None])
        allowed = {*(held if cut else held[-1:]), *self.tentative.get(key, ()), *self._about_to(key)}
        hold(offset in allowed, key, "has the offset", offset, "and not one of", allowed)
        if cut:
            held[:] = [offset]
        elif held[-1] != offset:
            held.append(offset)

    def fenced(self, name: str) -> str:
        """Somebody has ended the transaction, for it was open for too long."""
        hold(name in self.may_be_fenced, name, "is fenced")
        self.producers.pop(name, None)
        self.compare_all()
        self.settle_transactions()
        found = self.current(name)
        if found is not None:
            self.over(found)
        return "fenced"


def init(world: Transactions, name: str) -> str:
    """Take a transactional id over: what was open is ended."""
    failed = world.failures
    world.producers.pop(name, None)
    try:
        identity = world.coordinator.init_producer_id(name, TIMEOUT_MS)
    except ConcurrentTransactionsError:
        hold(world.tolerated(failed), name, "is still being ended")
        return "concurrent"
    left = world.current(name)
    if left is not None:
        world.compare_tail(*[p for p in left.first if p in world.parts()])
        world.settle_transactions()
        world.over(left)
    world.producers[name] = identity
    world.may_be_fenced.discard(name)
    return str(identity)


def produce(world: Transactions, name: str, topic: str, number: int, tag: str, n: int) -> str:
    """Records of the open transaction."""
    part = world.part(topic, number)
    transaction = world.begun(name)
    rows = part.sequences.get(transaction.producer, [])
    following = rows[-1][0] + rows[-1][1] if rows else 0
    sequence = (*transaction.producer, following)
    attempt = world.attempt(part, tag, n, True, "mixed", transaction=transaction, sequence=sequence)
    template = Template(TRANSACTIONAL_FLAG, *sequence)
    failed = world.failures
    try:
        with world.coordinator.appending(name, transaction.producer, [TopicPartition(topic, number)]):
            found = append_batches(world.log(part), columns(attempt.records, world.now), template=template)
    except ProducerFencedError:
        world.refused(attempt)
        return world.fenced(name)
    except ConcurrentTransactionsError:
        hold(world.tolerated(failed), name, "is still being ended")
        world.refused(attempt)
        return "concurrent"
    return world.written(attempt, found.first)


def offsets(world: Transactions, name: str, group: str, topic: str, number: int, part_of: int) -> str:
    """The open transaction commits an offset for a group."""
    part = world.part(topic, number)
    offset = part.start + (part.end - part.start) * part_of // 100
    return send_offset(world, world.begun(name), group, part, offset)


def send_offset(world: Transactions, transaction: Transaction, group: str, part: Part, offset: int) -> str:
    name, failed = transaction.name, world.failures
    try:
        commit_transactional(world, transaction, group, part, offset)
    except ProducerFencedError:
        return world.fenced(name)
    except ConcurrentTransactionsError:
        hold(world.tolerated(failed), name, "is still being ended")
        return "concurrent"
    return "sent"


def commit_transactional(
    world: Transactions, transaction: Transaction, group: str, part: Part, offset: int
) -> None:
    kept = world.group_offsets
    at = TopicPartition(OFFSETS, kept.partition_for(group))
    world.place += 1
    sent = Sent((group, *part.key), offset, world.place, sure=False)
    transaction.offsets.append(sent)
    with world.coordinator.appending(transaction.name, transaction.producer, [at]):
        committed = {TopicPartition(*part.key): OffsetAndMetadata(offset)}
        kept.commit_transactional(group, committed, *transaction.producer)
    transaction.offsets[-1] = sent._replace(sure=True)


def end(world: Transactions, name: str, commit: bool) -> str:
    """Commit or abort what is open."""
    transaction = world.current(name)
    if transaction is None or transaction.decided or name not in world.producers:
        raise Skip
    wanted, failed = "commit" if commit else "abort", world.failures
    if wanted not in transaction.outcomes and transaction.outcomes != {"abort"}:
        raise Skip
    before = set(transaction.outcomes)
    transaction.outcomes.add(wanted)
    try:
        identity = world.coordinator.end(name, transaction.producer, commit)
    except ProducerFencedError:
        transaction.outcomes = before
        return world.fenced(name)
    except InvalidTxnStateError:
        hold(len(transaction.outcomes) == 2, name, "can't be ended")
        transaction.outcomes -= {wanted}
        return "ended otherwise"
    except ConcurrentTransactionsError:
        transaction.outcomes = before
        hold(world.tolerated(failed), name, "is still being ended")
        return "concurrent"
    except StorageError:
        world.producers.pop(name, None)  # its epoch may be over
        raise
    world.producers[name] = identity
    transaction.outcomes, transaction.decided = {wanted}, True
    transaction.durable = commit and world.promised(transaction)
    here = [part for part in transaction.first if part in world.parts()]
    world.compare_tail(*here)
    world.settle_transactions()
    hold(world.tolerated(failed) or all(p in transaction.ended for p in here), name, "is not ended")
    if not world.tolerated(failed):
        world.over(transaction)
        world.check_offsets()
    return wanted


def transform(
    world: Transactions, name: str, group: str, source: str, target: str, tag: str, commit: bool
) -> str:
    """Consume what the group has not had, produce as much elsewhere, commit both or none."""
    if name not in world.producers or world.current(name) is not None:
        raise Skip
    part, to = world.part(source, 0), world.part(target, 0)
    at = world.group_offsets.fetch(group).get(TopicPartition(*part.key), OffsetAndMetadata(part.start)).offset
    if not part.start <= at < world.log(part).last_stable_offset:
        raise Skip
    records = world.log(part).read(at, 500, isolation_level="read_committed")
    wanted = [
        e.offset for e in part.live() if at <= e.offset < records.next_offset and part.outcome(e) == "commit"
    ]
    hold([r.offset for r in records] == wanted, part, "gives", records.offsets, "and not", wanted)
    transaction = world.begun(name)
    if len(records):
        told = produce(world, name, *to.key, tag, len(records))
        if not told.startswith("at"):
            return told
    told = send_offset(world, transaction, group, part, records.next_offset)
    if told != "sent":
        return told
    return f"{len(records)} {end(world, name, commit)}"


OPS: dict[str, Any] = {f.__name__: f for f in (init, produce, offsets, end, transform)}
