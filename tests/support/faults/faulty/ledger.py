"""Records what a store was told to do, and what it has acknowledged: what must be in it after a power cut,
and what may be.

Values are unique, so that a value tells which write it came from.
"""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[str, int]


class Record(NamedTuple):
    """A record of a log, with the leader epoch of its batch."""

    offset: int
    epoch: int
    key: bytes | None
    value: bytes | None


@dataclass
class Log:
    """What was read from one partition."""

    start: int
    end: int
    records: list[Record]
    batches: list[tuple[int, int, int]]  # base offset, last offset, leader epoch
    committed: list[bytes | None] = field(default_factory=list)


def _no_state() -> list[object]:
    return [None]


@dataclass
class Told:
    """All that was done and acknowledged so far."""

    tried: dict[Place, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    seen: dict[Place, dict[int, Record]] = field(default_factory=lambda: defaultdict(dict))
    durable: dict[Place, dict[int, Record]] = field(default_factory=lambda: defaultdict(dict))
    starts: dict[Place, tuple[int, int]] = field(default_factory=dict)  # least, most
    topics: dict[str, tuple[bool, bool]] = field(default_factory=dict)  # may be there, may be missing
    settings: dict[str, list[dict[str, object]]] = field(default_factory=dict)  # any one of these
    together: dict[str, tuple[str, dict[Place, list[bytes]]]] = field(default_factory=dict)
    """Transactions and staged appends: "open" (all or nothing), "there", "gone"."""
    offsets: list[int | None] = field(default_factory=lambda: [None])  # of the group: any one of these
    acknowledged: int | None = None  # the last of them that the group was told is committed
    states: dict[str, list[object]] = field(default_factory=lambda: defaultdict(_no_state))
    """Of a group's share partition: any one of these."""
    changed: dict[str, int] = field(default_factory=dict)
    """Which of them was acknowledged last, by its place in the list."""
    compacted: set[str] = field(default_factory=set)
    guard: threading.RLock = field(default_factory=threading.RLock)

    def freeze(self) -> Told:
        """Return a copy of the present state."""
        with self.guard:
            frozen = Told()
            for name, value in vars(self).items():
                if isinstance(value, defaultdict):
                    copied = {place: held.copy() for place, held in value.items()}
                    setattr(frozen, name, defaultdict(value.default_factory, copied))
                elif name != "guard":
                    setattr(frozen, name, copy.copy(value))
            return frozen

    # --- what must hold after a cut ------------------------------------------------------------

    def judge(self, found: dict[Place, Log]) -> None:
        """Raise AssertionError where a promise was broken."""
        topics = {topic for topic, _ in found}
        for topic, (may, may_not) in self.topics.items():
            assert may_not or topic in topics, f"topic {topic!r} is missing"
            assert may or topic not in topics, f"topic {topic!r} is there again"
        for place, log in found.items():
            self._judge_log(place, log)
        for name, (state, parts) in self.together.items():
            self._judge_together(name, state, parts, found)

    def _judge_log(self, place: Place, log: Log) -> None:
        least, most = self.starts.get(place, (0, 0))
        assert least <= log.start <= most, f"{place} starts at {log.start}, not from {least} to {most}"
        held = {record.offset: record for record in log.records}
        offsets = [record.offset for record in log.records]
        assert offsets == sorted(set(offsets)), f"{place}: offsets do not rise: {offsets}"
        for record in log.records:
            assert record.value in self.tried[place], f"{place}: {record} was never written"
        latest = {record.key: record.offset for record in log.records}
        for offset, record in self.durable[place].items():
            if offset < log.start or held.get(offset, (0, 0, 0, None))[3] == record.value:
                continue
            newer = place[0] in self.compacted and latest.get(record.key, -1) > offset
            assert newer, f"{place}: {record} was durable, and there is {held.get(offset)}"
        if place[0] not in self.compacted:
            ends = [batch[1] + 1 for batch in log.batches]
            assert [batch[0] for batch in log.batches[1:]] == ends[:-1], (
                f"{place}: there are gaps: {log.batches}"
            )
            assert not ends or ends[-1] == log.end, f"{place} ends at {log.end}, its last batch at {ends[-1]}"

    def _judge_together(
        self, name: str, state: str, parts: dict[Place, list[bytes]], found: dict[Place, Log]
    ) -> None:
        counts = [
            found[place].committed.count(value) if place in found else 0
            for place, values in parts.items()
            for value in values
        ]
        allowed = {"open": (0, 1), "there": (1,), "gone": (0,)}[state]
        assert len(set(counts)) == 1, f"{name}: a part of it is there: {counts}"
        assert counts[0] in allowed, f"{name} is {state}, and there {counts[0]} times"

    def judge_epochs(self, found: dict[Place, Log]) -> None:
        """Check that an offset never has two contents under one leader epoch; `found` was read after
        appends.
        """
        for place, log in found.items():
            for record in log.records:
                before = self.seen[place].get(record.offset)
                same = before is None or before.epoch != record.epoch or before.value == record.value
                assert same, f"{place}: {before} was seen, and now there is {record}"
