"""`python -m jepsen.reader DIR TOLD RUN KIND`: a process that follows the store, opened "r", whoever writes.

KIND "consumer" polls all partitions, those that are added too; "logs" reads one after the other to its end,
in an order that is drawn, committed records only. At SIGTERM, when nobody writes any more, it reads the rest.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
from pathlib import Path

from histories import Part, Poll

import segstore
from segstore import Consumer

from .telling import Telling

TOPICS = ("t", "a", "b")


class Reader:
    """Until `ending`, and once more behind it."""

    def __init__(self, store: segstore.Store, told: Path, run: str) -> None:
        self.store, self.tell, self.run = store, Telling(told), run
        self.rng = random.Random(run)
        self.ending, self.parent = False, os.getppid()
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "ending", True))

    def _is_ending(self) -> bool:
        return self.ending or os.getppid() != self.parent

    def consumer(self) -> None:
        only = self.rng.random() < 0.5
        with Consumer(
            self.store,
            *TOPICS,
            auto_offset_reset="earliest",
            metadata_max_age_ms=200,
            max_poll_records=self.rng.choice((1, 20, 500)),
            isolation_level="read_committed" if only else "read_uncommitted",
        ) as consumer:
            left = 2
            while left:
                polled = consumer.poll(timeout_ms=50)
                for tp, records in polled.items():
                    found = [(record.offset, record.value.decode()) for record in records]
                    self.tell(Poll(self.run, tuple(tp), found, only))
                left = left - 1 if self._is_ending() and not polled else 2

    def logs(self) -> None:
        at: dict[Part, int] = {}
        left = 2
        while left:
            left -= self._is_ending()
            parts = [(topic, n) for topic in TOPICS for n in self.store.topics()[topic].partition_ids]
            for part in self.rng.sample(parts, len(parts)):
                self._read(part, at)
            time.sleep(self.rng.choice((0, 0.01)))

    def _read(self, part: Part, at: dict[Part, int]) -> None:
        """To the end that there is as it begins."""
        log = self.store.partition(*part)
        end, found = log.last_stable_offset, []
        offset = max(at.get(part, 0), log.start_offset)
        while offset < end:
            try:
                records = log.read(offset, isolation_level="read_committed")
            except segstore.OffsetOutOfRangeError:  # deleted meanwhile
                offset = max(offset, log.start_offset)
                continue
            found += [(record.offset, record.value.decode()) for record in records]
            offset = records.next_offset
        at[part] = offset
        self.tell(Poll(self.run, part, found, True, whole=True))


def main(directory: str, told: str, run: str, kind: str) -> None:
    faulthandler.enable()
    with segstore.open(directory, mode="r") as store:
        reader = Reader(store, Path(told), run)
        (reader.consumer if kind == "consumer" else reader.logs)()


if __name__ == "__main__":
    main(*sys.argv[1:])
