"""Helpers for share groups over real stores: one topic, and members that acquire and acknowledge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groups import Monotonic, Unsynced
from stores import Clock

import segstore
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType
from segstore.coordinator.share.grants import AcquiredPartition, AcquireTerms
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared
from segstore.errors import SegstoreError
from segstore.files import Files

ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
    AcknowledgeType.GAP,
)
LOCK_MS = 30_000
Runs = list[tuple[int, int, int]]


class ShareStore:
    """An open store with topic "t", and share group "g", which reads it from its start. `now` is the clock of
    the locks, which stands still.
    """

    def __init__(
        self,
        path: Path,
        files: Files | None = None,
        partitions: int = 1,
        time: Monotonic | None = None,
        **config: Any,
    ) -> None:
        self.clock, self.time = Clock(), time or Monotonic()
        settings = {
            "share.coordinator.state.topic.num.partitions": 1,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        self.store = segstore.open(path, config=settings, clock=self.clock, files=files or Unsynced())
        if "t" not in self.store.topics():
            self.store.create_topic("t", partitions)
        self.share = shared(self.store, ShareCoordinator, lambda store: ShareCoordinator(store, self.time))
        self.states = shared(self.store, StateLog)
        self.log = self.store.partition("t")

    def __enter__(self) -> ShareStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    @property
    def topic_id(self) -> str:
        return self.store.topics()["t"].topic_id

    def key(self, partition: int = 0, group: str = "g") -> ShareKey:
        return ShareKey(group, self.topic_id, partition)

    def begin(self, start: int = 0, group: str = "g", epoch: int = 2) -> None:
        """Initialise the group in all partitions of the topic, as its first heartbeat does."""
        numbers = self.store.topics()["t"].partition_ids
        self.states.initialise({self.key(each, group): (epoch, start) for each in numbers})

    def alter(self, group: str = "g", **config: Any) -> None:
        """Change settings of the group, by names with underscores."""
        changes = {name.replace("_", "."): value for name, value in config.items()}
        group_settings(self.store).alter(group, changes)

    def acquire(
        self,
        want: int = 500,
        member: str = "m",
        group: str = "g",
        partition: int = 0,
        mode: int = 0,
        max_bytes: int = 1 << 20,
    ) -> AcquiredPartition | None:
        """Acquire records of one partition; raise its error."""
        terms = AcquireTerms(want, want, mode, max_bytes)
        found = self.share.acquire(group, member, [(self.topic_id, partition)], terms)
        assert len(found) <= 1
        if found and found[0].error is not None:
            raise found[0].error
        return found[0] if found else None

    def runs(self, *args: Any, **named: Any) -> Runs:
        """Acquire records; return offsets and counts."""
        found = self.acquire(*args, **named)
        return [] if found is None else [tuple(each) for each in found.acquired]  # type: ignore[misc]

    def acknowledge(
        self,
        *batches: tuple[int, int, int | Sequence[int]],
        member: str = "m",
        group: str = "g",
        partition: int = 0,
    ) -> SegstoreError | None:
        """Acknowledge batches of one partition: first and last offset, and a type, or one for each offset."""
        acks = [AckBatch(first, last, _types(types)) for first, last, types in batches]
        at = self.topic_id, partition
        return self.share.acknowledge(group, member, {at: acks})[at]

    def ack(self, *batches: tuple[int, int, int | Sequence[int]], **named: Any) -> None:
        """Acknowledge batches of one partition; raise its error."""
        error = self.acknowledge(*batches, **named)
        if error is not None:
            raise error

    def start(self, group: str = "g", partition: int = 0) -> int:
        """Return the start offset in memory."""
        leader = self.share._leaders.get(group, self.topic_id, partition)
        assert leader is not None
        return leader.core.start

    def durable(self, group: str = "g", partition: int = 0) -> tuple[int, Runs]:
        """Return the durable start, and batches as first, last, state and count."""
        state = self.states.read(self.key(partition, group))
        assert state is not None
        return state.start, [tuple(each) for each in state.batches]  # type: ignore[misc]

    def pass_ms(self, ms: float) -> None:
        """Let time pass, and locks end that run out by then."""
        self.time.now += ms
        self.share._timer.ring()


def filled(path: Path, *sizes: int, **config: Any) -> ShareStore:
    """Return a store with record batches of these sizes, and a group that reads them from the start."""
    store = ShareStore(path, **config)
    for size in sizes:
        store.log.append_batch([b"%d" % n for n in range(size)])
    store.begin()
    return store


def _types(types: int | Sequence[int]) -> Sequence[int]:
    return (types,) if isinstance(types, int) else tuple(types)
