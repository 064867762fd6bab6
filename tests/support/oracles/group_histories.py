"""Judges histories of groups whose members come, go, pause and die: finds the anomalies of Jepsen's Kafka
workload, for each group, and those of the group protocol. Writes nothing.

A value of an exactly-once loop is `NAME/HOP#TXN`: the value that was sent first, how often it was forwarded
since, and the transaction that forwarded it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from histories import Ask, Commit, Event, History, Log, Part, Poll, Take


def run_of(member: str) -> str:
    """Return the process that a member lives in; generations of different processes are not comparable."""
    return member.partition(":")[0]


def _life(poll: Poll) -> str:
    """Return the member's life in which it polled, whatever it was assigned meanwhile."""
    return poll.owner.rpartition("/")[0]


class Forwarded(NamedTuple):
    """A parsed value of an exactly-once loop."""

    name: str
    hop: int
    txn: str

    @classmethod
    def parse(cls, value: str) -> Forwarded:
        rest, _, txn = value.partition("#")
        name, _, hop = rest.rpartition("/")
        return cls(name, int(hop), txn)

    def __str__(self) -> str:
        return f"{self.name}/{self.hop}#{self.txn}"


class GroupHistory(History):
    """A `History` of several groups."""

    def __init__(
        self,
        events: Iterable[Event],
        log: Log,
        committed: Log,
        groups: Mapping[str, Mapping[Part, int]],
        starts: Mapping[Part, int],
        hops: Mapping[str, int] | None = None,
    ) -> None:
        """`groups` has the committed offsets of each group, which has read all records below them. `hops`
        has, by topic of an exactly-once loop, the hops that its partitions have (a bit for each).
        """
        super().__init__(events, log, committed, {}, starts)
        self.groups, self.hops = groups, hops or {}

    def _checks(self) -> list[Callable[[], Iterable[str]]]:
        return [
            *super()._checks(),
            *(self._shared, self._zombies, self._back, self._moved, self._fractured, self._not_once),
            *(self._circular, self._same_offset),
        ]

    def _unseen(self) -> Iterable[str]:
        """Find unseen records: committed records below a group's committed offset that no member was ever
        given.
        """
        for group, offsets in self.groups.items():
            seen = defaultdict(set)
            for poll in self.polls:
                if poll.group == group:
                    seen[poll.part].update(offset for offset, _ in poll.records)
            for part, end in offsets.items():
                if left := sorted(o for o in self.committed[part] if o < end and o not in seen[part]):
                    yield f"unseen: {group} {part}: {left}"

    def _lost_commits(self) -> Iterable[str]:
        """Find lost commits: a group has a lower offset than the highest one whose commit was
        acknowledged.
        """
        highest: Counter[tuple[str, Part]] = Counter()
        for e in self.events:
            if isinstance(e, Commit):
                highest[e.group, e.part] = max(e.offset, highest[e.group, e.part])
        for (group, part), offset in highest.items():
            if (there := self.groups[group].get(part, 0)) < offset:
                yield f"lost commit: {group} {part}: {offset} was acknowledged, {there} is there"

    def _shared(self) -> Iterable[str]:
        """Find shared partitions: partitions that one generation gave to more than one member."""
        owners: dict[tuple[str, str, int, Part], str] = {}
        for poll in self.polls:
            if poll.group:
                place = poll.group, run_of(poll.member), poll.generation, poll.part
                owner = owners.setdefault(place, poll.member)
                if owner != poll.member:
                    yield f"shared partition: {poll}, of {owner} in the same generation"

    def _zombies(self) -> Iterable[str]:
        """Find zombie commits: those that were requested after a later generation had read the partition."""
        last: dict[tuple[str, str, Part], Poll] = {}
        asked: dict[tuple[str, str, Part], Poll | None] = {}
        for e in self.events:
            if isinstance(e, Poll) and e.group:
                place = e.group, run_of(e.member), e.part
                if place not in last or last[place].generation <= e.generation:
                    last[place] = e
            elif isinstance(e, Ask):
                later = last.get((e.group, run_of(e.member), e.part))
                is_late = later is not None and later.generation > e.generation and later.member != e.member
                asked[e.group, e.member, e.part] = later if is_late else None
            elif isinstance(e, Commit) and (later := asked.pop((e.group, e.member, e.part), None)):
                yield f"zombie commit: {e} behind {later}"

    def _back(self) -> Iterable[str]:
        """Find commits that go back: to an offset below one whose commit had ended when they were
        requested.
        """
        highest: Counter[tuple[str, Part]] = Counter()
        asked: dict[tuple[str, str, Part], int] = {}
        for e in self.events:
            if isinstance(e, Ask):
                asked[e.group, e.member, e.part] = highest[e.group, e.part]
            elif isinstance(e, Commit):
                before = asked.pop((e.group, e.member, e.part), 0)
                if e.offset < before:
                    yield f"commit goes back: {e}, {before} was committed when it was asked for"
                highest[e.group, e.part] = max(e.offset, highest[e.group, e.part])

    def _moved(self) -> Iterable[str]:
        """Find rebalance skips and rewinds: a member that gets a partition must go on where the group has
        committed. One that had it last may go on where it was, as kafka-python does: what it was given and
        has not committed yet is still its own.
        """
        asked: defaultdict[tuple[str, Part], set[int]] = defaultdict(lambda: {0})
        highest: Counter[tuple[str, Part]] = Counter()
        taken: dict[tuple[str, Part], int] = {}
        last: dict[tuple[str, Part], tuple[str, int]] = {}
        for e in self.events:
            if isinstance(e, Ask):
                asked[e.group, e.part].add(e.offset)
            elif isinstance(e, Commit):
                highest[e.group, e.part] = max(e.offset, highest[e.group, e.part])
            elif isinstance(e, Take):
                taken[e.owner, e.part] = highest[e.group, e.part]
            elif isinstance(e, Poll) and e.records:
                had, first = last.get((e.group, e.part)), e.records[0][0]
                last[e.group, e.part] = _life(e), e.records[-1][0] + 1
                if (before := taken.pop((e.owner, e.part), None)) is None:
                    continue
                own = {had[1]} if had is not None and had[0] == _life(e) else set()
                if first < before:
                    yield f"rebalance rewind: {e.owner} {e.part}: from {first}, {before} was committed"
                elif not self._follows(e, first, own | {o for o in asked[e.group, e.part] if o >= before}):
                    yield f"rebalance skip: {e.owner} {e.part}: from {first}, behind {before}"

    def _follows(self, poll: Poll, first: int, commits: set[int]) -> bool:
        """Return whether `first` is the first record behind one of these offsets."""
        there = (self.committed if poll.committed_only else self.log)[poll.part]
        nearest = max((o for o in commits if o <= first), default=0)
        return not any(offset in there for offset in range(nearest, first))

    def _fractured(self) -> Iterable[str]:
        """Find intermediate reads (G1b): a reader that saw one record of a transaction must see all of it
        from then on, except behind the first record of another transaction that may be open. A transaction
        whose process was killed during its commit is completed by the next open, one partition after the
        other.
        """
        of = self._transactions()
        parts: dict[str, dict[Part, int]] = defaultdict(dict)  # the last offset of each in a partition
        for part, values in self.committed.items():
            for offset, value in values.items():
                txn = of.get(value, "")
                if self.ends.get(txn) == "committed":
                    parts[txn][part] = max(offset, parts[txn].get(part, 0))
        wanted: defaultdict[tuple[str, Part], int] = defaultdict(
            lambda: -1
        )  # up to where a reader's next poll must go
        at: defaultdict[tuple[str, Part], int] = defaultdict(lambda: -1)
        known: defaultdict[str, set[str]] = defaultdict(set)
        for poll in self.polls:
            if not (poll.whole and poll.committed_only):
                continue
            place = poll.owner, poll.part
            at[place] = max([at[place], *(offset for offset, _ in poll.records)])
            there, behind = self.log[poll.part], range(at[place] + 1, wanted[place] + 1)
            following = next((of.get(there[o], "") for o in behind if o in there), None)
            if following == "" or following in known[poll.owner]:
                yield f"intermediate read (G1b): {poll.owner} {poll.part}: {at[place]} of {wanted[place]}"
            for txn in {of[value] for _, value in poll.records if value in of}:
                known[poll.owner].add(txn)
                for part, offset in parts.get(txn, {}).items():
                    wanted[poll.owner, part] = max(offset, wanted[poll.owner, part])

    def _transactions(self) -> dict[str, str]:
        """Return the transaction of each value that was sent in one."""
        return {send.value: send.txn for send in self.sends if send.txn}

    def _forwarded(self) -> Iterable[tuple[Part, Forwarded]]:
        for part, values in self.committed.items():
            if part[0] in self.hops:
                yield from ((part, Forwarded.parse(value)) for value in values.values())

    def _not_once(self) -> Iterable[str]:
        """Find records of a loop that were not forwarded exactly once at each hop."""
        found = Counter((part[0], value.name, value.hop) for part, value in self._forwarded())
        for (topic, name, hop), times in found.items():
            if times > 1 or hop not in range(8) or not self.hops[topic] >> hop & 1:
                yield f"not once: {name}/{hop} is {times} times in {topic}"
        for name in {name for _, name, _ in found}:
            for topic, hops in self.hops.items():
                for hop in range(8):
                    if hops >> hop & 1 and not found[topic, name, hop]:
                        yield f"not once: {name}/{hop} is not in {topic}"

    def _circular(self) -> Iterable[str]:
        """Find circular information flow (G1c): transactions each of which has read what another one
        wrote.
        """
        writers = {(value.name, value.hop): value.txn for _, value in self._forwarded()}
        read: defaultdict[str, set[str]] = defaultdict(set)
        for (name, hop), txn in writers.items():
            if (before := writers.get((name, hop - 1))) is not None:
                read[txn].add(before)
        left = dict(read)
        while ends := [txn for txn, others in left.items() if not others & left.keys()]:
            for txn in ends:
                del left[txn]
        if left:
            yield f"circular information flow (G1c): {sorted(left)}"

    def _same_offset(self) -> Iterable[str]:
        """Find duplicated offsets: two records that were acknowledged at the same offset."""
        at: dict[tuple[Part, int], str] = {}
        for send in self.sends:
            if send.offset >= 0 and at.setdefault((send.part, send.offset), send.value) != send.value:
                yield f"duplicated offset: {send}, of {at[send.part, send.offset]} too"
