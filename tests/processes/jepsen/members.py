"""The members of groups: threads of the writing process, since groups live there."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from group_histories import Forwarded
from histories import Ask, Commit, End, Part, Poll, Send, Take

from segstore import Consumer, OffsetAndMetadata, Producer, TopicPartition
from segstore.client.consumer import ConsumerRebalanceListener
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

from .telling import AUTO, EXACT, GROUPS, HOPS, PLAIN

if TYPE_CHECKING:
    from .writer import Writer

HASTY = {"session_timeout_ms": 400, "heartbeat_interval_ms": 100, "max_poll_interval_ms": 300}
CALM = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 100, "max_poll_interval_ms": 120_000}
ASSIGNORS = {PLAIN: "cooperative-sticky", AUTO: "sticky", EXACT: "range"}
OUT = (
    CommitFailedError,
    RebalanceInProgressError,
    IllegalGenerationError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
"""What a member is told that was taken for failed, or is late."""
FENCED = (FencedInstanceIdError, UnreleasedInstanceIdError)
"""What a static member is told while another of its lives has its place."""


def protocol_of(seed: str, group: str) -> str:
    """Return the protocol of a group's members in a run of the writing process: a group changes it when the
    process comes back. Both at once would show a window that the upgrade of a group within a rebalance has in
    Kafka too.
    """
    return random.Random(f"{seed} {group}").choice(("classic", "consumer"))


class Member(ConsumerRebalanceListener):
    """One life of a member: it joins, works for some rounds, and leaves, or is dropped without a word."""

    def __init__(self, writer: Writer, group: str, number: int, life: int, rng: random.Random) -> None:
        self.writer, self.group, self.number, self.rng = writer, group, number, rng
        self.static = number == 0 and group == PLAIN
        # All lives of a static member are one member.
        self.name = f"{writer.run}:{'static' if self.static else f'{group}{number}.{life}'}"
        self.taken: Counter[Part] = Counter()
        self.life = life
        self.only = group == EXACT or rng.random() < 0.5  # committed records
        self.consumer = self._consumer()

    def _consumer(self) -> Consumer:
        static = {"group_instance_id": "static"} if self.static else {}
        times: dict[str, Any] = dict(CALM if self.writer.calm else HASTY)
        if protocol_of(f"{self.writer.seed} {self.writer.run}", self.group) == "consumer":
            times = {"max_poll_interval_ms": times["max_poll_interval_ms"], "group_protocol": "consumer"}
        else:
            times["partition_assignment_strategy"] = [ASSIGNORS[self.group]]
        consumer = Consumer(
            self.writer.store,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=self.group == AUTO,
            auto_commit_interval_ms=50,
            isolation_level="read_committed" if self.only else "read_uncommitted",
            max_poll_records=self.rng.choice((1, 5, 20)),
            metadata_max_age_ms=200,
            **times,
            **static,
        )
        consumer.subscribe(list(GROUPS[self.group]), listener=self)
        return consumer

    def live(self) -> None:
        try:
            for _ in range(self.rng.randrange(5, 60)):
                if self.writer.done(self.group):
                    break
                self.work()
            if self.rng.random() < 0.8 or self.writer.calm:
                self.consumer.close()
            # Otherwise it is gone without a word.
        except (*OUT, *FENCED):
            self.consumer.close(autocommit=False)

    def work(self) -> None:
        """A round: what is read by AUTO is committed by the next poll."""
        self.poll()
        self.pause()

    def pause(self) -> bool:
        """Now and then longer than a member may be away: whether it paused."""
        if self.writer.calm or self.rng.random() > 0.08:
            return False
        time.sleep(self.rng.choice((0.1, 0.6, 1.0)))
        return True

    def on_partitions_assigned(self, assigned: Any) -> None:
        for tp in assigned:
            self.taken[tuple(tp)] += 1
            if self.group != AUTO:  # its commits are not told
                self.writer.tell(Take(self.owner(tp), tuple(tp), self.group))

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing."""

    def owner(self, tp: TopicPartition) -> str:
        return f"{self.name}.{self.life}/{self.taken[tuple(tp)]}"

    def generation(self) -> int:
        return self.consumer.group_metadata().generation_id

    def poll(self) -> dict[TopicPartition, list[tuple[int, str]]]:
        """Offsets and values."""
        found = {}
        polled = self.consumer.poll(timeout_ms=20)
        generation = self.generation()
        for tp, records in polled.items():
            found[tp] = [(record.offset, record.value.decode()) for record in records]
            owner = self.owner(tp)
            self.writer.tell(Poll(owner, tuple(tp), found[tp], self.only, self.group, self.name, generation))
        return found

    def ask(self, at: dict[TopicPartition, OffsetAndMetadata]) -> None:
        generation = self.generation()
        for tp, where in at.items():
            self.writer.tell(Ask(tuple(tp), where.offset, self.group, self.name, generation))

    def acknowledged(self, at: dict[TopicPartition, OffsetAndMetadata]) -> None:
        for tp, where in at.items():
            self.writer.tell(Commit(tuple(tp), where.offset, self.group, self.name))


class Committing(Member):
    """Commits what it has read, by itself, and half the time what it must give up."""

    def work(self) -> None:
        self.poll()
        if self.pause() or self.rng.random() < 0.6:
            self.commit(self.consumer.assignment())

    def on_partitions_revoked(self, revoked: Any) -> None:
        if self.rng.random() < 0.5:
            self.commit(set(revoked) & self.consumer.assignment())

    def commit(self, parts: set[TopicPartition]) -> None:
        at = {tp: OffsetAndMetadata(self.consumer.position(tp)) for tp in parts}
        self.ask(at)
        try:
            self.consumer.commit(at)
        except OUT:
            return
        self.acknowledged(at)


class Forwarding(Member):
    """Consumes, transforms and produces, in transactions that commit the offsets too."""

    def live(self) -> None:
        # Two of the three share an id: the one that begins fences the other, who is gone without a word.
        number = self.number if self.writer.calm else self.number % 2
        with (
            Producer(self.writer.store, transactional_id=f"exact{number}", linger_ms=1) as self.producer,
            self.writer.fenced(),
        ):
            self.producer.init_transactions()
            super().live()

    def work(self) -> None:
        if polled := self.poll():
            try:
                self._transaction(polled)
            except OUT:
                self.producer.abort_transaction()
                raise

    def _transaction(self, polled: dict[TopicPartition, list[tuple[int, str]]]) -> None:
        (tp, records), *_ = polled.items()
        txn = f"{self.owner(tp)}/{tp.topic}/{tp.partition}/{records[0][0]}"
        self.producer.begin_transaction()
        for source, found in polled.items():
            for _, value in found:
                self._forward(source, Forwarded.parse(value), txn)
        self.pause()
        at = {tp: OffsetAndMetadata(found[-1][0] + 1) for tp, found in polled.items()}
        self.ask(at)
        self.producer.send_offsets_to_transaction(at, self.consumer.group_metadata())
        self.pause()  # who is given the partition meanwhile waits for this transaction's end
        if self.rng.random() < 0.1:
            self.producer.abort_transaction()
            self.writer.tell(End(txn, "aborted"))
            for tp, found in polled.items():
                self.consumer.seek(tp, found[0][0])
                self.taken[tuple(tp)] += 1
        else:
            self.writer.tell(End(txn, "asked"))
            self.producer.commit_transaction()
            self.writer.tell(End(txn, "committed"))
            self.acknowledged(at)

    def _forward(self, source: TopicPartition, value: Forwarded, txn: str) -> None:
        topic, hop = ("b" if source.topic == "a" else "a"), value.hop + 1
        if not HOPS[topic] >> hop & 1:
            return
        part = topic, source.partition % 2
        made = str(value._replace(hop=hop, txn=txn))
        self.writer.tell(Send(self.name, part, -1, made, -1, txn))
        self.producer.send(topic, made.encode(), partition=part[1])


KINDS: dict[str, type[Member]] = {PLAIN: Committing, AUTO: Member, EXACT: Forwarding}
NUMBERS = {PLAIN: 4, AUTO: 2, EXACT: 3}
