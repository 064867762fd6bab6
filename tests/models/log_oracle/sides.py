"""The sides of a game: stores with two logs, and the oracle of both logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from golden_logs.calls import FullLogs
from oracle_log import Disk, OracleLog
from oracle_producers import Refused
from stores import START_MS, Clock

import segstore


class Seen(NamedTuple):
    """The state before the bytes of an append are written: the ends of both logs as readers see them, and
    the bytes of the index of the segment.
    """

    ends: tuple[int, int]
    index: Path
    entries: bytes


class WatchedLogs(FullLogs):
    """Files that look at a store before its next write to a log, once `watch` was called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen | None = None
        self._place: Place | None = None

    def watch(self, place: Place) -> None:
        self._place, self.seen = place, None

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = Path(getattr(args[0], "path", "")) if args else Path()
        if self._place is not None and name in self.names and path.suffix == ".log":
            ends = self._place.log.end_offset, self._place.follower.end_offset
            index = path.with_suffix(".index")
            self.seen, self._place = Seen(ends, index, index.read_bytes()), None
        super().before(name, args, kwargs)


class Place:
    """A store whose topic "t" has one partition, and whose topic "f" is a follower's copy of another log."""

    def __init__(
        self, path: Path, led: dict[str, object], followed: dict[str, object], files: WatchedLogs | None
    ) -> None:
        self.path, self.clock, self.files = path, Clock(START_MS), files
        self.store = segstore.open(path, clock=self.clock, files=self.files)
        self.store.create_topic("t", 1, led)
        self.store.create_topic("f", 1, followed)
        self.take_logs()

    def take_logs(self) -> None:
        self.log, self.follower = self.store.partition("t"), self.store.partition("f")
        assert self.store.engine is not None
        self.replica = self.store.engine.partitions.replica("f", 0)
        self.replica.follow()

    def reopen(self) -> None:
        self.store.close()
        self.store = segstore.open(self.path, clock=self.clock, files=self.files)
        self.take_logs()

    def answer(self, run: Callable[[Place], object]) -> object:
        """Return what an operation gives, or its error."""
        if self.files is not None:
            self.files.watch(self)
        try:
            return run(self)
        except segstore.SegstoreError as error:
            return type(error).__name__, str(error).replace(f"{self.path}/", "")

    @property
    def appends_by_c(self) -> int:
        """Return how many appends C has made since the tails were opened."""
        natives = [log.partition_for_write().tail.native for log in (self.log, self.follower)]
        return sum(native.c.appends for native in natives)


class World:
    """The oracle of both logs, their clock and their disk."""

    def __init__(
        self, led: dict[str, object], followed: dict[str, object], with_transactions: bool, may_fill: bool
    ) -> None:
        self.now, self.disk, self.may_fill = START_MS, Disk(), may_fill
        self.led, self.followed = OracleLog("t-0", led, self.disk), OracleLog("f-0", followed, self.disk)
        self.with_transactions = with_transactions
        """Whether the follower gets transactions: while one is open there, C does not append."""

    @property
    def indexed(self) -> dict[str, int]:
        """Return how many entries the indexes of the active segments have, by their paths."""
        logs = self.led, self.followed
        return {f"{log.name}/{log.active.base:020d}.index": len(log.active.offsets) for log in logs}

    def reopen(self) -> None:
        self.led.reopen()
        self.followed.reopen()

    def answer(self, foretell: Callable[[World], object]) -> object:
        """Return what an operation must give, or its error."""
        try:
            return foretell(self)
        except Refused as refused:
            return refused.kind, refused.text


class Operation(NamedTuple):
    """`run` plays it on a store, `foretell` on the oracle: both answer."""

    kind: str
    run: Callable[[Place], object]
    foretell: Callable[[World], object]
