"""A log under a storm: appends of all lengths, rolls, flushes, sweeps, deletes, reads, transfers, closes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import segstore
from segstore.storage.log.append import AHEAD_PLAIN

from .striking import Striker, at_rest, descriptors, opened

TOPIC = {
    "segment.bytes": 60_000,
    "flush.messages": 50,
    "index.interval.bytes": 100,
    "file.delete.delay.ms": 0,
}
LONG = {"segment.bytes": 32 << 20}


class Logs:
    """What is in topic "t" from `start` on is `there`, in order."""

    def __init__(self, directory: Path, striker: Striker) -> None:
        self.path, self.striker, self.rng = directory / "store", striker, striker.rng
        self.number, self.start = 0, 0
        self.there: list[bytes | None] = []
        self._open().close()  # what is imported and made once is there
        self.descriptors = descriptors()
        self.store = self._open()
        self.store.create_topic("t", config=TOPIC)
        self.store.create_topic("long", config=LONG)
        self.log = self.store.partition("t")
        self.steps: dict[str, tuple[int, Callable[[], None]]] = {
            "append": (30, self.append),
            "append_batch": (20, self.append_batch),
            "long append": (2, self.append_long),
            "flush": (4, self.flush),
            "roll": (4, self.roll),
            "sweep": (2, self.sweep),
            "delete_records": (2, self.delete_records),
            "read": (6, self.read),
            "transfer": (4, self.transfer),
            "topics": (2, self.topics),
            "reopen": (1, self.reopen),
        }

    def _open(self) -> segstore.Store:
        return segstore.open(self.path)

    def step(self) -> None:
        """One operation, struck, and what must be true behind it."""
        weights = [weight for weight, _ in self.steps.values()]
        (name,) = self.rng.choices(list(self.steps), weights)
        self.steps[name][1]()

    def _values(self, n: int, size: int) -> list[bytes]:
        self.number += 1
        return [b"%d.%d " % (self.number, i) + bytes(size) for i in range(n)]

    # --- appends ----------------------------------------------------------------------------

    def append(self) -> None:
        (value,) = self._values(1, self.rng.choice([0, 100, 5000]))
        self._appended("append", [value], lambda: self.log.append(value))

    def append_batch(self) -> None:
        values = self._values(self.rng.choice([3, 30, 300]), 60)
        size = self.rng.choice([1, 500, 65536])
        self._appended("append_batch", values, lambda: self.log.append_batch(values, batch_bytes=size))

    def _appended(self, name: str, values: list[bytes], run: Callable[[], object]) -> None:
        """It is there whole, or not at all, and so is what comes behind it."""
        ended = self.striker.strike(name, run)
        end = self.log.append(b"behind")
        came = self._from(self.start + len(self.there))
        whole = [*values, b"behind"]
        assert came == whole or (not ended and came == [b"behind"]), (name, ended, len(came), len(whole))
        self.there += came
        assert end == self.start + len(self.there) - 1

    def _from(self, offset: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        while offset < self.log.end_offset:
            records = self.log.read(offset)
            found += [record.value for record in records]
            offset = records.next_offset
        return found

    def append_long(self) -> None:
        """By a thread that writes while this one encodes."""
        log = self.store.partition("long")
        values, before = [bytes(AHEAD_PLAIN // 8)] * 10, log.end_offset
        ended = self.striker.strike("long append", lambda: log.append_batch(values, batch_bytes=1))
        assert log.append(b"behind") == log.end_offset - 1
        came = log.end_offset - before - 1
        assert came == len(values) or (not ended and not came), (ended, came)
        assert log.read(log.end_offset - 1)[0].value == b"behind"
        if log.end_offset > 40:
            log.delete_records(log.end_offset)

    # --- the rest ---------------------------------------------------------------------------

    def flush(self) -> None:
        self.striker.strike("flush", self.log.flush)
        self.log.flush()

    def roll(self) -> None:
        partition = self.log.partition_for_write()
        if self.log.start_offset == self.log.end_offset:  # there is nothing to roll
            self.append()
        self.striker.strike("roll", lambda: partition.roll_from(partition.view))
        self.append()

    def sweep(self) -> None:
        self.striker.strike("sweep", self.store.sweep)

    def delete_records(self) -> None:
        before = self.start + self.rng.randint(0, len(self.there))
        self.striker.strike("delete_records", lambda: self.log.delete_records(before))
        self.log.delete_records(before)
        assert self.log.start_offset == max(before, self.start)
        self.there, self.start = self.there[max(before - self.start, 0) :], max(before, self.start)

    def read(self) -> None:
        found: list[bytes | None] = []
        at = self.rng.randint(self.start, self.start + len(self.there))
        self.striker.strike("read", lambda: found.extend(r.value for r in self.log.read(at)))
        assert found == self.there[at - self.start :][: len(found)]

    def transfer(self) -> None:
        out = os.open(self.path.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self.striker.strike("transfer", lambda: self.log.transfer(out, self.start, 1 << 20))
        finally:
            os.close(out)

    def topics(self) -> None:
        """Made and deleted: struck in either, it is there or not, and may be made and deleted again."""
        store = self.store
        for name, run in (
            ("create_topic", lambda: store.create_topic("other", partitions=2)),
            ("delete_topic", lambda: store.delete_topic("other")),
        ):
            if name == "delete_topic" and "other" not in store.topics():
                store.create_topic("other")
            try:
                self.striker.strike(name, run)
            except segstore.TopicAlreadyExistsError:
                store.delete_topic("other")
        if "other" in store.topics():
            store.delete_topic("other")

    def reopen(self) -> None:
        """Closed, struck; opened, struck, until that goes well; all is there."""
        self.striker.strike("close", self.store.close)
        self.store.close()
        self.log = None
        at_rest(self.descriptors)
        self.store = opened(self.striker, self._open)
        self.log = self.store.partition("t")
        assert self.log.start_offset == self.start, (self.log.start_offset, self.start, self.store.recovered)
        assert self._from(self.start) == self.there

    def end(self) -> None:
        self.reopen()
        self.store.close()
        found = segstore.check(self.path)
        assert found == [], found
