"""Shared by all processes of a round: its topics and groups, and the file to which they write events."""

from __future__ import annotations

import os
from pathlib import Path

from histories import Event, to_line

PLAIN, AUTO, EXACT = "plain", "auto", "exact"
GROUPS = {PLAIN: ("t", "short"), AUTO: ("t",), EXACT: ("a", "b")}
TOPICS = {
    "t": (2, {"segment.bytes": 20_000}),
    "short": (2, {"segment.bytes": 2_000, "retention.bytes": 6_000}),
    "a": (2, {"segment.bytes": 20_000}),
    "b": (2, {}),
}
HOPS = {"a": 0b101, "b": 0b010}
"""By topic of the loop, how often its records were forwarded: a bit for each number."""
MOST_PARTITIONS = 6
CONFIG = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "group.min.session.timeout.ms": 1,
    "group.initial.rebalance.delay.ms": 0,
}


class Telling:
    """Events in the order in which they happened, over all processes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, event: Event) -> None:
        os.write(self._file, to_line(event))
