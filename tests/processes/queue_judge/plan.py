"""What a round of the queue judge is like: all of it is drawn by the round's seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

GROUP, LETTERS = "workers", "dlq.workers"
TOPICS: dict[str, dict[str, Any]] = {
    "t": {"segment.bytes": 20_000},
    "short": {"segment.bytes": 3_000, "retention.bytes": 9_000, "file.delete.delay.ms": 0},
    "keys": {
        "segment.bytes": 3_000,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "file.delete.delay.ms": 0,
    },
}
"""One that keeps all, one under retention, one that is compacted."""
MOST_PARTITIONS = 4
LOCAL = ("explicit", "implicit", "asyncio", "iteration")
"""Consumers in the process that has the store."""
WIRE = ("librdkafka", "librdkafka implicit", "raw", "raw")
"""Consumers in processes of their own; raw ones renew, and acquire in both modes."""
FAULTS = (
    *("worker killed", "worker killed", "worker stopped", "cut", "torn", "answers lost", "stalled"),
    *("store stopped",),
)
BESIDE = ("records deleted", "swept", "partitions added", "clock stepped", "limit changed")
"""What is done beside the consumers in the process that has the store."""


@dataclass(frozen=True)
class Plan:
    """A round. `lives` of the process that has the store end, each by a kill or not (`kills`); `faults` come
    in each of them.
    """

    seed: int
    defect: str = "none"
    topics: tuple[str, ...] = ("t",)
    partitions: int = 2
    lock_ms: int = 1000
    limits: tuple[int, ...] = (5,)
    window: int = 2000
    isolation: str = "read_uncommitted"
    letters: bool = False
    copies: bool = False
    updates: int = 500
    local: tuple[str, ...] = LOCAL
    wire: tuple[str, ...] = ("raw",)
    beside: tuple[str, ...] = ()
    kills: tuple[bool, ...] = (True,)
    sleeps: bool = False
    """At the end one consumer holds records for longer than their locks, and never lets go of them."""
    faults: tuple[tuple[str, ...], ...] = field(default=((),))

    @classmethod
    def drawn(cls, seed: int, defect: str = "none", **fixed: Any) -> Plan:
        """Draw a round; `fixed` are not drawn."""
        rng = random.Random(f"plan {seed}")
        lives = rng.choice((1, 2, 2, 3))
        letters = rng.random() < 0.5
        first = rng.choice((2, 3, 4, 5))
        drawn: dict[str, Any] = {
            "topics": ("t", *rng.sample(("short", "keys"), rng.randrange(3))),
            "partitions": rng.randint(1, 3),
            "lock_ms": rng.choice((1000, 1000, 1300)),
            "limits": (first, rng.choice((2, 3, 5))),
            "window": rng.choice((100, 200, 2000)),
            "isolation": rng.choice(("read_uncommitted", "read_committed")),
            "letters": letters,
            "copies": letters and rng.random() < 0.5,
            "updates": rng.choice((3, 20, 500)),
            "local": some(rng, LOCAL, 0, 3),
            "wire": some(rng, WIRE, 1, 3),
            "beside": some(rng, BESIDE, 0, 4),
            "sleeps": rng.random() < 0.5,
            "kills": tuple(rng.random() < 0.8 for _ in range(lives)),
            "faults": tuple(tuple(rng.choices(FAULTS, k=rng.randint(1, 4))) for _ in range(lives)),
        }
        drawn.update(fixed)
        if "limit changed" not in drawn["beside"]:
            drawn["limits"] = drawn["limits"][:1]
        return cls(seed, defect, **drawn)

    def dumped(self) -> str:
        """Return the plan as text for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def loaded(cls, text: str) -> Plan:
        """Return the plan of `dumped`."""
        read = json.loads(text)
        read["faults"] = tuple(map(tuple, read["faults"]))
        for name, value in read.items():
            read[name] = tuple(value) if isinstance(value, list) else value
        return cls(**read)

    @property
    def config(self) -> dict[str, Any]:
        """Return the settings of the store, whose bounds are lowered for short times."""
        return {
            "share.coordinator.state.topic.num.partitions": 2,
            "share.coordinator.snapshot.update.records.per.snapshot": self.updates,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
            "group.share.min.record.lock.duration.ms": 1000,
            "group.share.min.heartbeat.interval.ms": 1,
            "group.share.heartbeat.interval.ms": 300,
            "group.share.min.session.timeout.ms": 1,
            "group.share.session.timeout.ms": 2500,
            "group.share.assignment.interval.ms": 0,
            "errors.deadletterqueue.auto.create.topics.enable": True,
        }

    @property
    def group_config(self) -> dict[str, Any]:
        """Return the settings of the group."""
        found = {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": self.lock_ms,
            "share.delivery.count.limit": self.limits[0],
            "share.partition.max.record.locks": self.window,
            "share.isolation.level": self.isolation,
        }
        if self.letters:
            found["errors.deadletterqueue.topic.name"] = LETTERS
            found["errors.deadletterqueue.copy.record.enable"] = self.copies
        return found


def some(rng: random.Random, among: Sequence[str], least: int, most: int) -> tuple[str, ...]:
    """Return a random number of different ones."""
    return tuple(rng.sample(among, rng.randint(least, most)))
