"""Judges histories of share groups, whose events are `queue_events`: no record may be lost, delivered again
once it was told to be done with, held by two at a time, or delivered oftener than its count says. Writes
nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from queue_events import (
    ACCEPT,
    GAP,
    REJECT,
    RENEW,
    Answered,
    Asked,
    Ended,
    Event,
    Got,
    Granted,
    Part,
    Released,
    TakenBack,
    Told,
)

Log = Mapping[Part, Mapping[int, str]]
"""Values by offset."""
SLACK = 0.02  # seconds: a lock's time is in ms
WRITE_S = 5.0
"""What memory has of a lock that ran out is in the log after so long."""


class Left(NamedTuple):
    """What a round has left. `log` has all records, `visible` those that the group may read; `starts` the log
    start offsets; `letters` by partition and offset the dead letters, each a delivery count and a value.
    """

    log: Log
    visible: Log
    starts: Mapping[Part, int]
    letters: Mapping[tuple[Part, int], list[tuple[int, str | None]]]


class Terms(NamedTuple):
    """The settings of the group: the delivery limit, at its least and at its most; whether dead letters are
    sent, and have values.
    """

    least: int
    most: int
    has_letters: bool = False
    copies: bool = False


class Hold:
    """One offset that one grant has acquired. `over` is the time before which the lock has certainly not
    ended: the end of its duration, or the begin of what ended it. `kind` is the acknowledgement that ended
    it, `durable` the time at which this was answered, None if it was not. One that `is_late` may have come
    behind the lock's end: what is below the group's start then is answered well, without effect.
    """

    __slots__ = (
        *("began", "count", "durable", "ended", "is_back", "is_late", "kind", "life", "lock_s", "member"),
        "over",
    )

    def __init__(self, grant: Granted, count: int) -> None:
        self.life, self.member, self.count = grant.life, grant.member, count
        self.began, self.ended = grant.began, grant.ended
        self.lock_s = grant.lock_ms / 1000
        self.over = grant.began + self.lock_s
        self.is_back = self.is_late = False
        self.kind: int | None = None
        self.durable: float | None = None

    def __repr__(self) -> str:
        how = "" if self.kind is None else f", type {self.kind}"
        how += " answered" if self.durable else ""
        return (
            f"{self.member[:12]} in life {self.life} x{self.count} at {self.began:.3f}-{self.ended:.3f}"
            f" until {self.over:.3f}{how}{', taken back' * self.is_back}"
        )

    @property
    def is_done(self) -> bool:
        """Return whether the record was told to be done with."""
        return self.durable is not None and self.kind in (GAP, ACCEPT, REJECT)


class QueueHistory:
    """The events of all lives over one store."""

    def __init__(self, events: Iterable[Event], left: Left, terms: Terms) -> None:
        self.events, self.left, self.terms = list(events), left, terms
        self.killed = {e.life: e.at for e in self.events if isinstance(e, Ended) and e.is_killed}
        self.holds: dict[tuple[Part, int], list[Hold]] = defaultdict(list)
        self.answers = {(e.life, e.call, e.part): e for e in self.events if isinstance(e, Answered)}
        self.counts: Counter[str] = Counter()
        self._take_grants()
        self._take_ends()
        for holds in self.holds.values():
            holds.sort(key=lambda hold: (hold.life, hold.count, hold.began))

    def anomalies(self) -> list[str]:
        """Return the anomalies of the history; there are none in a sound one."""
        checks: tuple[Callable[[], Iterator[str]], ...] = (
            *(self._together, self._again, self._counts, self._lost, self._letters),
            *(self._untold, self._strange, self._given_twice),
        )
        return [found for check in checks for found in check()]

    # --- what happened to each offset ------------------------------------------------------------

    def _take_grants(self) -> None:
        back = {(e.life, e.part, e.token): e for e in self.events if isinstance(e, TakenBack)}
        for event in self.events:
            if not isinstance(event, Granted):
                continue
            taken = back.get((event.life, event.part, event.token))
            for first, last, count in event.runs:
                for offset in range(first, last + 1):
                    hold = Hold(event, count)
                    if taken is not None:
                        hold.is_back, hold.is_late = True, taken.ended >= hold.over
                        hold.over = min(hold.over, taken.began)
                    self.holds[event.part, offset].append(hold)
                self.counts["taken back" if taken is not None else "grants"] += last - first + 1

    def _take_ends(self) -> None:
        """Give each hold what ended it, in the order of time."""
        of_member: dict[tuple[int, str, Part], list[Hold]] = defaultdict(list)
        for (part, _), holds in self.holds.items():
            for hold in holds:
                of_member[hold.life, hold.member, part].append(hold)
        ends = [e for e in self.events if isinstance(e, Asked | Released)]
        for event in sorted(ends, key=lambda e: e.began):
            if isinstance(event, Asked):
                self._take_asked(event)
                continue
            for part in event.parts:
                for hold in of_member[event.life, event.member, part]:
                    if hold.began <= event.ended:
                        hold.over = min(hold.over, max(hold.began, event.began))

    def _take_asked(self, event: Asked) -> None:
        answer = self.answers.get((event.life, event.call, event.part))
        for first, last, types in event.acks:
            for offset in range(first, last + 1):
                kind = types[0] if len(types) == 1 else types[offset - first]
                found = [
                    hold
                    for hold in self.holds.get((event.part, offset), ())
                    if (hold.life, hold.member) == (event.life, event.member)
                    and hold.began <= event.began
                    and not hold.is_back
                ]
                if found:
                    self._end(max(found, key=lambda hold: hold.count), kind, event, answer)

    def _end(self, hold: Hold, kind: int, event: Asked, answer: Answered | None) -> None:
        if answer is not None and answer.error:
            self.counts["refused"] += 1
            return
        if kind == RENEW:
            # Later, the record may be done with: then the answer is good, and means nothing.
            if answer is not None and event.began < hold.over:
                hold.over = event.began + hold.lock_s
                self.counts["renewed"] += 1
            return
        if hold.durable is not None:  # once more, without effect
            return
        hold.kind, hold.is_late, hold.over = kind, event.began >= hold.over, min(hold.over, event.began)
        if answer is not None:
            hold.durable = answer.ended
            self.counts[("gaps", "accepted", "released", "rejected")[kind]] += 1

    # --- properties --------------------------------------------------------------------------------

    def _together(self) -> Iterator[str]:
        """Find offsets that two members hold at a time."""
        for (part, offset), holds in self.holds.items():
            for hold, later in pairwise(holds):
                if hold.life == later.life and later.ended < hold.over - SLACK:
                    yield f"held twice: {part} {offset}: {hold}; {later}"

    def _again(self) -> Iterator[str]:
        """Find records that were granted after it was told that they are done with."""
        for (part, offset), holds in self.holds.items():
            done = [hold for hold in holds if hold.is_done]
            for hold in done:
                later = [each for each in holds if each.began > (hold.durable or 0)]
                if later:
                    yield f"delivered again: {part} {offset}: {hold}; {later[0]}"

    def _counts(self) -> Iterator[str]:
        """Find delivery counts that do not rise by 1, and those above the limit."""
        for (part, offset), holds in self.holds.items():
            if max(hold.count for hold in holds) > self.terms.most:
                yield f"above the limit of {self.terms.most}: {part} {offset}: {holds}"
            if holds[0].count != 1:
                yield f"first delivery counted {holds[0].count}: {part} {offset}: {holds}"
            for i, (hold, later) in enumerate(pairwise(holds)):
                least = self._least_after(holds[: i + 1], later)
                most = hold.count + (not hold.is_back or hold.is_late)
                if not least <= later.count <= most:
                    yield f"count after {hold.count} is {later.count}: {part} {offset}: {holds}"

    def _least_after(self, before: list[Hold], later: Hold) -> int:
        """Return the least delivery count that a grant may have: a crash repeats one, and those whose end was
        only in memory.
        """
        hold = before[-1]
        if hold.life == later.life:
            return hold.count + (not hold.is_back)
        killed = self.killed.get(hold.life)
        if killed is None:
            return hold.count + (not hold.is_back and hold.durable is not None)
        least, until = hold.count + 1, killed
        for each in reversed(before):
            if each.life != hold.life or each.durable is not None or until < killed - WRITE_S:
                break
            least, until = each.count, each.began
        return max(least, 1)

    def _lost(self) -> Iterator[str]:
        """Find records that are gone from the queue without a cause."""
        for part, values in self.left.visible.items():
            for offset in values:
                if offset < self.left.starts.get(part, 0):
                    continue
                holds = [hold for hold in self.holds.get((part, offset), ()) if not hold.is_back]
                if not holds:
                    yield f"lost, never delivered: {part} {offset}"
                elif not self._has_ended(holds[-1]):
                    yield f"lost: {part} {offset}: {holds}"

    def _has_ended(self, hold: Hold) -> bool:
        """Return whether a record needs no further delivery: what was not answered may have been done."""
        if hold.kind == GAP:  # the record is there
            return False
        return hold.kind in (ACCEPT, REJECT) or hold.count >= self.terms.least

    def _letters(self) -> Iterator[str]:
        """Find records whose dead letters are missing, or too many, or not theirs."""
        for (part, offset), holds in self.holds.items():
            found = self.left.letters.get((part, offset), [])
            if offset < self.left.starts.get(part, 0) or offset not in self.left.visible.get(part, {}):
                continue
            if len(found) > 1 + len(self.killed):
                yield f"{len(found)} dead letters: {part} {offset}: {holds}"
            last = next((hold for hold in reversed(holds) if not hold.is_back), None)
            if last is not None:
                yield from self._letters_of(part, offset, last, found)
        if not self.terms.has_letters and self.left.letters:
            yield f"dead letters of a group that sends none: {list(self.left.letters)[:5]}"

    def _letters_of(
        self, part: Part, offset: int, hold: Hold, found: list[tuple[int, str | None]]
    ) -> Iterator[str]:
        is_due = (hold.is_done and hold.kind == REJECT) or (
            hold.count >= self.terms.most and hold.kind != ACCEPT
        )
        if self.terms.has_letters and is_due and not found:
            yield f"no dead letter: {part} {offset}: {hold}"
        if hold.is_done and hold.kind == ACCEPT and not hold.is_late and found:
            yield f"accepted, and a dead letter: {part} {offset}: {hold}"
        value = self.left.log[part].get(offset) if self.terms.copies else None
        for count, copy in found:
            if count > hold.count or (copy != value and copy is not None):
                yield f"dead letter x{count} with {copy}: {part} {offset}: {hold}, {value}"
        self.counts["dead letters"] += len(found)

    # --- what consumers were told ----------------------------------------------------------------

    def _untold(self) -> Iterator[str]:
        """Find acknowledgements of which consumers were told that they count, and that do not."""
        durable: dict[tuple[Part, int], float] = {}
        for event in self.events:
            if not isinstance(event, Asked):
                continue
            answer = self.answers.get((event.life, event.call, event.part))
            if answer is not None and not answer.error:
                for first, last, _ in event.acks:
                    for offset in range(first, last + 1):
                        key = event.part, offset
                        durable[key] = min(durable.get(key, answer.ended), answer.ended)
        for event in self.events:
            if isinstance(event, Told):
                self.counts["told" if not event.error else "told of errors"] += len(event.offsets)
            if isinstance(event, Told) and not event.error:
                for offset in event.offsets:
                    if event.at < durable.get((event.part, offset), event.at + 1):
                        yield f"told too early: {event.who} {event.part} {offset} at {event.at:.3f}"

    def _strange(self) -> Iterator[str]:
        """Find records that consumers got with other values than they have, or that nobody may read."""
        for event in self.events:
            if not isinstance(event, Got):
                continue
            log, visible = self.left.log[event.part], self.left.visible[event.part]
            for offset, _, value in event.records:
                if log.get(offset, value) != value:
                    yield f"strange value: {event.who} {event.part} {offset}: {value}, not {log[offset]}"
                if offset in log and offset not in visible:
                    yield f"aborted: {event.who} {event.part} {offset}: {value}"

    def _given_twice(self) -> Iterator[str]:
        """Find records that more consumers got than were granted."""
        owners: dict[tuple[Part, int, int], set[str]] = defaultdict(set)
        for event in self.events:
            if isinstance(event, Got):
                self.counts["got"] += len(event.records)
                for offset, count, _ in event.records:
                    owners[event.part, offset, count].add(event.who)
        for (part, offset, count), who in owners.items():
            holds = self.holds.get((part, offset), [])
            given = [hold for hold in holds if hold.count == count and not hold.is_back]
            if len(who) > len(given):
                yield f"given to {sorted(who)}: {part} {offset} x{count}: {holds}"
