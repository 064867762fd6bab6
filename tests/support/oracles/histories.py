"""Judges histories of producers and consumers: finds the anomalies that they show. Writes nothing.

The anomalies and their names are those of Jepsen's Kafka workload (jepsen.tests.kafka). A history has what
the clients were told; it is compared with what the log has at the end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

Part = tuple[str, int]
Log = Mapping[Part, Mapping[int, str]]  # what a reader of the whole log found: values by offset


class Send(NamedTuple):
    """A record that a producer sent. `offset` is -1 unless it was acknowledged. `sequence` counts the records
    that this producer sent to this partition; `txn` names the transaction, "" where there was none.
    """

    producer: str
    part: Part
    sequence: int
    value: str
    offset: int
    txn: str = ""


class Poll(NamedTuple):
    """The records of one partition that one poll gave. `owner` changes with every assignment of that
    partition, and with every seek. `whole` says that the poll read up to the end that the log had when it
    began.
    """

    owner: str
    part: Part
    records: list[tuple[int, str]]
    committed_only: bool
    group: str = ""
    member: str = ""
    generation: int = -1
    whole: bool = False


class End(NamedTuple):
    """How a transaction ended: "asked" before the commit, "committed" or "aborted" once the producer was told
    so.
    """

    txn: str
    how: str


class Take(NamedTuple):
    """A member was given a partition: its next poll begins where the group has committed."""

    owner: str
    part: Part
    group: str


class Ask(NamedTuple):
    """A commit of an offset of the group begins."""

    part: Part
    offset: int
    group: str
    member: str
    generation: int


class Commit(NamedTuple):
    """A commit of an offset of the group was acknowledged; `member` made it, where an `Ask` came before
    it.
    """

    part: Part
    offset: int
    group: str = ""
    member: str = ""


Event = Send | Poll | End | Take | Ask | Commit
KINDS = {kind.__name__: kind for kind in (Send, Poll, End, Take, Ask, Commit)}


def to_line(event: Event) -> bytes:
    """Return the event as one line. Lines that a process has written by one write each survive its death."""
    return json.dumps([type(event).__name__, *event]).encode() + b"\n"


def from_lines(data: bytes) -> list[Event]:
    """Return the events of all whole lines."""
    return [_event(line) for line in data.split(b"\n")[:-1]]


def _event(line: bytes) -> Event:
    kind, *fields = json.loads(line)
    made = KINDS[kind](*fields)
    if "part" in made._fields:
        made = made._replace(part=tuple(made.part))
    if isinstance(made, Poll):
        made = made._replace(records=[tuple(record) for record in made.records])
    return made


class History:
    """The events of all runs over one store, in order."""

    def __init__(
        self,
        events: Iterable[Event],
        log: Log,
        committed: Log,
        group: Mapping[Part, int],
        starts: Mapping[Part, int] | None = None,
    ) -> None:
        """`starts` has the log start offsets; records below them were removed."""
        self.events, self.log, self.committed, self.group = list(events), log, committed, group
        self.starts = starts or {}
        self.sends = [e for e in self.events if isinstance(e, Send)]
        self.polls = [e for e in self.events if isinstance(e, Poll)]
        self.ends = {e.txn: e.how for e in self.events if isinstance(e, End)}

    def anomalies(self) -> list[str]:
        """Return the anomalies of the history; there are none in a sound one."""
        return [found for check in self._checks() for found in check()]

    def _checks(self) -> list[Callable[[], Iterable[str]]]:
        return [
            self._lost, self._inconsistent, self._duplicate, self._disordered, self._aborted,
            self._uncommitted, self._skipped, self._unseen, self._lost_commits,
        ]  # fmt: skip

    def _lost(self) -> Iterable[str]:
        """Find lost writes: records that were acknowledged, outside of a transaction or in a committed one,
        and are missing.
        """
        for send in self.sends:
            if send.offset < 0 or (send.txn and self.ends.get(send.txn) != "committed"):
                continue
            if send.offset < self.starts.get(send.part, 0):
                continue
            if self.committed[send.part].get(send.offset) != send.value:
                yield f"lost write: {send}, there: {self.committed[send.part].get(send.offset)}"

    def _inconsistent(self) -> Iterable[str]:
        """Find inconsistent offsets: those that were seen with two values."""
        removed: dict[tuple[Part, int], str] = {}
        for poll in self.polls:
            for offset, value in poll.records:
                if offset < self.starts.get(poll.part, 0):
                    later = removed.setdefault((poll.part, offset), value)
                else:
                    later = self.log[poll.part].get(offset, "nothing")
                if later != value:
                    yield f"inconsistent offset: {poll.part} {offset}: {value}, later {later}"

    def _duplicate(self) -> Iterable[str]:
        """Find duplicates: values at two offsets, since each value is sent once."""
        seen: dict[str, tuple[Part, int]] = {}
        for part, values in self.committed.items():
            for offset, value in values.items():
                if value in seen:
                    yield f"duplicate: {value} at {seen[value]} and {(part, offset)}"
                seen[value] = part, offset

    def _disordered(self) -> Iterable[str]:
        """Find nonmonotonic sends: the offsets of one producer's records are in another order than the
        records were sent.
        """
        last: dict[tuple[str, Part], Send] = {}
        for send in sorted(self.sends, key=lambda s: s.sequence):
            if send.offset < 0:
                continue
            before = last.get((send.producer, send.part))
            if before is not None and before.offset >= send.offset:
                yield f"nonmonotonic send: {before} before {send}"
            last[send.producer, send.part] = send

    def _aborted(self) -> Iterable[str]:
        """Find aborted reads (G1a): a read_committed reader saw a record of an aborted transaction."""
        aborted = {s.value for s in self.sends if s.txn and self.ends.get(s.txn) == "aborted"}
        for poll in self.polls:
            for offset, value in poll.records if poll.committed_only else ():
                if value in aborted:
                    yield f"aborted read: {poll.part} {offset}: {value}"

    def _uncommitted(self) -> Iterable[str]:
        """Find precommitted reads: of records of a transaction whose commit was not yet requested."""
        transactions = {s.value: s.txn for s in self.sends if s.txn}
        asked: set[str] = set()
        for event in self.events:
            if isinstance(event, End):
                asked.add(event.txn)
            elif isinstance(event, Poll) and event.committed_only:
                for offset, value in event.records:
                    if transactions.get(value, "") not in asked | {""}:
                        yield f"precommitted read: {event.part} {offset}: {value}"

    def _skipped(self) -> Iterable[str]:
        """Find poll skips and nonmonotonic polls: within one assignment offsets must rise, and leave out no
        record that this reader may see.
        """
        last: dict[tuple[str, Part], int] = {}
        for poll in self.polls:
            there = (self.committed if poll.committed_only else self.log)[poll.part]
            for offset, _ in poll.records:
                before = last.get((poll.owner, poll.part))
                if before is not None and offset <= before:
                    yield f"nonmonotonic poll: {poll.owner} {poll.part}: {offset} after {before}"
                elif before is not None and (left := [o for o in range(before + 1, offset) if o in there]):
                    yield f"poll skip: {poll.owner} {poll.part}: {left} between {before} and {offset}"
                last[poll.owner, poll.part] = offset

    def _unseen(self) -> Iterable[str]:
        """Find unseen records: committed records below the group's committed offset that no member was ever
        given.
        """
        seen = defaultdict(set)
        for poll in self.polls:
            seen[poll.part].update(offset for offset, _ in poll.records)
        for part, values in self.committed.items():
            if left := sorted(o for o in values if o < self.group.get(part, 0) and o not in seen[part]):
                yield f"unseen: {part}: {left}"

    def _lost_commits(self) -> Iterable[str]:
        """Find lost commits: the group has a lower offset than the last one whose commit was acknowledged."""
        last = {event.part: event.offset for event in self.events if isinstance(event, Commit)}
        for part, offset in last.items():
            if self.group.get(part, 0) < offset:
                yield f"lost commit: {part}: {offset} was acknowledged, {self.group.get(part)} is there"
