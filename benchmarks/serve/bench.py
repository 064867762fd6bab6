"""One server's turn: how much is done, the topics that it is done with, and what is kept between turns.

On disk: topics of the server. Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from . import raw
from .server import Server

WAIT = 120.0
_names = map("bench-{}".format, count())


@dataclass(frozen=True)
class Effort:
    """How much one turn does: records by the bytes of their values, for librdkafka and for Java's tools;
    seconds of small requests; records that are followed; bytes that are fetched from segments; partitions and
    connections; seconds of watching idle ones.
    """

    records: dict[int, int]
    java: dict[int, int]
    seconds: float
    followed: int
    cached: int
    partitions: int
    spread: int
    connections: int
    idle_seconds: float


FULL = Effort(
    records={100: 300_000, 1_000: 60_000}, java={100: 600_000}, seconds=1.0, followed=500,
    cached=128 << 20, partitions=1_000, spread=50_000, connections=1_000, idle_seconds=2.0,
)  # fmt: skip
QUICK = Effort(
    records={100: 2_000, 1_000: 500}, java={100: 2_000}, seconds=0.05, followed=20,
    cached=1 << 20, partitions=20, spread=400, connections=20, idle_seconds=0.2,
)  # fmt: skip


@dataclass
class Bench:
    """`made` has the topics that all turns of a work share, by the work's name."""

    server: Server
    effort: Effort
    made: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, str]:
        """What each client of librdkafka has."""
        return {"bootstrap.servers": self.server.address, "log_level": "2"}  # a server's end is no news

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self.config)

    @contextmanager
    def topic(self, partitions: int = 1) -> Iterator[str]:
        """A topic that goes when the work is over."""
        name = self.create(partitions)
        try:
            yield name
        finally:
            self._admin.delete_topics([name], operation_timeout=WAIT)[name].result(WAIT)

    def create(self, partitions: int = 1) -> str:
        """A topic with a name that no other had, whose leader takes requests: a broker tells of a topic
        before.
        """
        name = next(_names)
        self._admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=WAIT)[name].result(WAIT)
        with self.server.connect() as wire:
            until(lambda: raw.leads(wire, name, partitions - 1))
        return name

    def kept(self, work: str, partitions: int = 1) -> str:
        """The topic that all turns of a work share."""
        if work not in self.made:
            self.made[work] = self.create(partitions)
        return self.made[work]

    def log(self, topic: str) -> Path:
        """The only segment of a topic's partition 0."""
        (path,) = self.server.directory.rglob(f"{topic}-0/*.log")
        return path

    def fill(self, topic: str, records: bytes, size: int) -> None:
        """Append a batch again and again until there are `size` bytes."""
        times = size // len(records)
        with raw.raw(self.server.address) as client:
            data = raw.produce(topic, records)
            for _ in range(times):
                client.exchange(data)
        with self.server.connect() as wire:
            found = raw.end_offset(wire, topic)
        assert found == times, f"{topic} has {found} records, and {times} were produced"
