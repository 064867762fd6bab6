"""What the test and its processes share, and what the test was told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

TOPIC, PARTITIONS = "t", 3
QUICK = {
    "metadata.max.age.ms": 50,
    "fetch.max.wait.ms": 50,
    "request.timeout.ms": 2000,
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 100,
}
Place = tuple[int, int]
"""A partition and an offset."""


class Cut(NamedTuple):
    """A record that was cut. Two may have been at one place, in different reigns."""

    place: Place
    epoch: int
    value: str


@dataclass
class Told:
    """What was acknowledged, which may be two values at one place; by place, what the standby has shown, and
    what was told as cut.
    """

    may_cut: bool
    """Whether an acknowledged record may be cut, where that is told: in async mode."""
    acknowledged: set[tuple[Place, str]] = field(default_factory=set)
    seen: dict[Place, str] = field(default_factory=dict)
    cut: dict[Place, str] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)
    """Which reign has written under a leader epoch."""

    def anomalies(self, stored: dict[Place, tuple[int, str]], cut: list[Cut]) -> list[str]:
        """Judge a log that both have now, leader epoch and value by place, and all records that were cut."""
        wrong, gone = [], {(each.place, each.value) for each in cut}
        for place, value in sorted(self.acknowledged):
            if stored.get(place, (0, None))[1] == value:
                continue
            if self.may_cut and (place, value) in gone:
                self.acknowledged.remove((place, value))
                self.cut[place] = value
            else:
                there = [each for each in cut if each.place == place]
                wrong.append(f"lost: {value} at {place}, where {stored.get(place)} is; cut {there}")
        for place, value in self.seen.items():
            if stored.get(place, (0, None))[1] != value:
                wrong.append(f"vanished: {value} at {place}, where {stored.get(place)} is")
        for epoch, value in (*stored.values(), *((each.epoch, each.value) for each in cut)):
            reign = value.partition(":")[0]
            if self.writers.setdefault(epoch, reign) != reign:
                wrong.append(f"two writers of epoch {epoch}: {value}, and reign {self.writers[epoch]}")
        return wrong
