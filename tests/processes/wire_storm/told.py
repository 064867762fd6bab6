"""What all processes of a round share: topics, groups, settings, and flags that say how far the round is."""

from __future__ import annotations

from pathlib import Path

ANYWHERE = -2
"""The offset of a record that was acknowledged without an offset: librdkafka's, of a batch that it had sent
before.
"""
COMMITTING, EXACT = "committing", "exact"
GROUPS = {COMMITTING: ("t", "p"), EXACT: ("a",)}
TOPICS = {
    "t": (3, {"segment.bytes": 20_000}),
    "p": (1, {"segment.bytes": 20_000}),
    "a": (2, {"segment.bytes": 20_000}),
    "b": (2, {}),
}
HOPS = {"a": 0b01, "b": 0b10}
"""By topic of the loop, how often its records were forwarded: a bit for each number."""
NOT_IDEMPOTENT = frozenset({"p"})
CONFIG = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "group.min.session.timeout.ms": 1,
}
SESSION_MS, HEARTBEAT_MS = 4000, 300


class Flags:
    """Files beside the events. `calm`: nothing more is sent; `over`: everybody ends."""

    def __init__(self, told: Path) -> None:
        self._calm, self._over = told.with_name("calm"), told.with_name("over")

    @property
    def is_calm(self) -> bool:
        return self._calm.exists()

    @property
    def is_over(self) -> bool:
        return self._over.exists()

    def calm(self) -> None:
        self._calm.touch()

    def over(self) -> None:
        self._over.touch()


class Ended(Exception):
    """A client can't go on; another one takes its place."""


class Refused(Exception):
    """A transaction can only be aborted."""
