"""`python -m jepsen.writer DIR TOLD RUN SEED SENDS [calm]`: the process that has the store: sources, members
of groups, changes of topics. It ends when all was read. `calm`: no member pauses, or is taken for failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from histories import Part

import segstore
from segstore import Consumer, TopicPartition
from segstore.errors import InvalidProducerEpochError

from . import members
from .sources import Changes, Source
from .telling import CONFIG, GROUPS, TOPICS, Telling


class Writer:
    """All threads over one store. The first that fails ends them all."""

    def __init__(
        self, store: segstore.Store, told: Path, run: str, seed: str, sends: int, calm: bool
    ) -> None:
        self.store, self.run, self.seed, self.sends, self.calm = store, run, seed, sends, calm
        self.tell = Telling(told)
        self.failed: list[BaseException] = []
        self.sources = 0
        self._lock = threading.Lock()
        self._looking: dict[str, Consumer] = {}

    def work(self) -> None:
        sources: list[Callable[[], None]] = [
            lambda: Source(self, "plain").produce(idempotent=False),
            lambda: Source(self, "idempotent").produce(idempotent=True),
            lambda: Source(self, "x1").transact("x"),
            lambda: Source(self, "x2").transact("x"),
            lambda: Source(self, "x3").transact("y"),
            lambda: Source(self, "feed").feed(),
        ]
        self.sources = len(sources)
        others: list[Callable[[], None]] = [Changes(self).run]
        others += [
            lambda group=group, n=n: self._members(group, n)  # type: ignore[misc]
            for group, count in members.NUMBERS.items()
            for n in range(count)
        ]
        threads = [threading.Thread(target=self._guarded, args=(each, True)) for each in sources]
        threads += [threading.Thread(target=self._guarded, args=(each, False)) for each in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for looking in self._looking.values():
            looking.close()
        if self.failed:
            raise self.failed[0]

    def _guarded(self, work: Callable[[], None], is_source: bool) -> None:
        try:
            work()
        except BaseException as error:
            self.failed.append(error)
            self.sends = 0
        finally:
            with self._lock:
                self.sources -= is_source

    def _members(self, group: str, number: int) -> None:
        rng, life = random.Random(f"{self.seed} {group} {number}"), 0
        while not self.done(group):
            life += 1
            members.KINDS[group](self, group, number, life, rng).live()

    @contextlib.contextmanager
    def fenced(self) -> Iterator[None]:
        """Who is fenced by another one with its transactional id ends, and nothing else does."""
        with contextlib.suppress(InvalidProducerEpochError):
            yield

    def parts(self, group: str) -> list[Part]:
        there = self.store.topics()
        return [(topic, n) for topic in GROUPS[group] for n in there[topic].partition_ids]

    def committed(self, group: str) -> dict[Part, int]:
        """What the group has committed."""
        with self._lock:
            if group not in self._looking:
                self._looking[group] = Consumer(self.store, group_id=group, enable_auto_commit=False)
            looking = self._looking[group]
            return {part: looking.committed(TopicPartition(*part)) or 0 for part in self.parts(group)}

    def done(self, group: str) -> bool:
        """Whether nothing comes any more, and the group has committed all there is."""
        if self.failed:
            return True
        if self.sources:
            return False
        return all(self._is_read(part, offset) for part, offset in self.committed(group).items())

    def _is_read(self, part: Part, offset: int) -> bool:
        """Whether nothing is there from `offset` on, nor will be."""
        log = self.store.partition(*part)
        if log.last_stable_offset < log.end_offset:
            return False
        return not len(log.read(max(offset, log.start_offset), 1, isolation_level="read_committed"))


def main(directory: str, told: str, run: str, seed: str, sends: str, *calm: str) -> None:
    faulthandler.enable()
    with segstore.open(directory, config=CONFIG) as store:
        for topic, (partitions, config) in TOPICS.items():
            if topic not in store.topics():
                store.create_topic(topic, partitions, config)
        Writer(store, Path(told), run, seed, int(sends), bool(calm)).work()


if __name__ == "__main__":
    main(*sys.argv[1:])
