"""`ReplicatedReader`: reads a replicated store from the directories of in-sync replicas. Another process may
write to the store at the same time (R24, R39; Kafka: KIP-392).

On disk nothing is locked or changed. Threads: one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from segstore.closing import Closing
from segstore.errors import QuorumLostError, ReplicaOfflineError, UnknownTopicOrPartitionError
from segstore.files import Files
from segstore.logger import Logger
from segstore.replication.core.registration import PartitionRegistration
from segstore.replication.metadata.image import MetadataImage, PartitionKey
from segstore.replication.metadata.voters import check_one_store, check_paths
from segstore.replication.observed_log import GONE, UNREADABLE, ObservedLog, OffsetAndEpoch
from segstore.replication.observer import Observer

log = Logger("segstore")

T = TypeVar("T")
Question = Callable[[ObservedLog], T]

PATIENCE = 20.0
"""The longest time in seconds that `ask` waits for a replica that can be read. (An election takes some
seconds.)
"""
SHOWN = 2.0
"""The longest time in seconds that `await_shown` waits until the high watermark of a new leader is above all
committed records.
"""
_PAUSE = 0.05
FAILURES = (*GONE, *UNREADABLE)
"""The errors after which another replica is read."""


def in_sync(state: PartitionRegistration) -> tuple[int, ...]:
    """Return the ids of the replicas that have all committed records: the leader, the ISR, and the eligible
    leader replicas (P3).
    """
    leader = [state.leader] if state.leader >= 0 else []
    return tuple(dict.fromkeys([*leader, *state.isr, *state.elr]))


class ReplicatedReader(Closing):
    """A reader of a replicated store, and a context manager. `paths` are the paths of its directories, in any
    order. `witness` is the path of its witness, None if it has none.

    At least half of all directories, the witness counted, must be readable: then one of them has the newest
    metadata. If fewer directories were allowed, records of a replica that is not in sync any more could be
    returned.
    """

    def __init__(self, paths: Sequence[str], witness: str | None = None, files: Files | None = None) -> None:
        """Open the directories. Raises the errors of `refresh`, and InvalidArgumentError if two paths are the
        same directory, or if one directory is inside another.
        """
        self._files, self._witness = files or Files(), witness is not None
        given = check_paths(self._files, paths, witness)
        self.paths = tuple(given[: len(paths)])
        self._observer = Observer(given, self._files)
        self._warned: set[str] = set()
        self._shown: dict[tuple[str, int], int] = {}
        """By partition: the last leader epoch in which the leader's high watermark has reached the start of
        the epoch.
        """
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all directories."""
        self._observer.close()

    # --- metadata -------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the newest metadata, and open the directories that can be read again.

        Raises QuorumLostError if too few directories can be read, StaleDirectoryError if they belong to
        different stores, and StorageError if none of them belongs to a replicated store.
        """
        self._image = image = self._observer.look()
        check_one_store(self._observer.found)
        directories = max(len(self.paths), len(image.brokers))
        total, there = directories + self._witness, len(self._observer.stores)
        if there < total - total // 2:
            raise QuorumLostError(
                f"{total - total // 2} of the {total} directories are needed to tell which replicas are in "
                f"sync, and {there} can be read: {self._failures()}"
            )

    def _failures(self) -> str:
        failures = [f"{path}: {error}" for path, error in self._observer.failed.items()]
        return "; ".join(failures) or "no others were named"

    @property
    def image(self) -> MetadataImage:
        """Return the metadata that the last `refresh` has read."""
        return self._image

    @property
    def topics(self) -> Mapping[str, tuple[int, ...]]:
        """Return the partition numbers of all topics, by topic name."""
        found: dict[str, list[int]] = {name: [] for name in self._image.topics}
        for topic, number in sorted(self._image.partitions):
            found[topic].append(number)
        return {name: tuple(numbers) for name, numbers in sorted(found.items())}

    def state(self, topic: str, partition: int) -> PartitionRegistration:
        """Return a partition's state in the metadata. Raises UnknownTopicOrPartitionError."""
        state = self._image.partitions.get(PartitionKey(topic, partition))
        if state is None:
            numbers = self.topics.get(topic)
            there = f"its partitions are {list(numbers)}" if numbers else f"topics are {list(self.topics)}"
            raise UnknownTopicOrPartitionError(f"{topic}-{partition} does not exist: {there}")
        return state

    # --- replicas -------------------------------------------------------------------------

    def places(self, topic: str, partition: int) -> tuple[str, ...]:
        """Return the paths of all directories, in the order in which a read should try them. Directories with
        in-sync replicas come first. Directories without a replica are in the list, too, because the partition
        may be moved to them before the read. Raises UnknownTopicOrPartitionError.
        """
        state, stores = self.state(topic, partition), self._observer.stores
        first = [stores[each].path for each in (*in_sync(state), *state.replicas) if each in stores]
        return tuple(dict.fromkeys([*first, *self.paths]))

    def ask(
        self, topic: str, partition: int, question: Question[T], holding: OffsetAndEpoch | None = None
    ) -> T:
        """Call `question` with the log of one replica, and return the result. The leader's log comes first.
        If the leader's log can't be read, or lacks records below `holding`, the other in-sync replicas
        follow, by descending high watermark. If all in-sync replicas lack these records, the records were
        lost. In this case the leader's log is used, if it has the leader epoch of the metadata.

        If no replica can be used within PATIENCE seconds, raises ReplicaOfflineError. Raises the errors of
        `question` except for those in FAILURES, and UnknownTopicOrPartitionError if the partition was
        deleted.
        """
        end = time.monotonic() + PATIENCE
        while True:
            failed: list[str] = []
            leader: ObservedLog | None = None
            for replica, leads in self._replicas(topic, partition, failed):
                try:
                    if holding is None or replica.holds(holding):
                        return question(replica)
                    failed.append(f"{replica.directory} lacks records below offset {holding.offset}")
                    leader = replica if leads and replica.epoch >= self._epoch(topic, partition) else leader
                except FAILURES as error:
                    self._lose(replica.directory, error, failed)
            if leader is not None:
                with suppress(*FAILURES):
                    return question(leader)
            if time.monotonic() >= end:
                raise ReplicaOfflineError(
                    f"no replica of {topic}-{partition} can be read that is in sync: {'; '.join(failed)}"
                )
            time.sleep(_PAUSE)
            self.refresh()

    def _epoch(self, topic: str, partition: int) -> int:
        return self.state(topic, partition).leader_epoch

    def await_shown(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Wait for at most SHOWN seconds until the high watermark of each new leader is above all records
        that were committed before its election. The high watermark rises only while a process has the store
        open for writing (R38). Raises the errors of `ask`.
        """
        end = time.monotonic() + SHOWN
        for key in partitions:
            while self._shown.get(key) != self._epoch(*key):
                epoch = self._epoch(*key)
                if self.ask(*key, lambda replica: replica.shows_its_epoch):
                    self._shown[key] = epoch
                elif time.monotonic() >= end:
                    break
                else:
                    time.sleep(_PAUSE)
                    self.refresh()

    def _replicas(self, topic: str, partition: int, failed: list[str]) -> Iterator[tuple[ObservedLog, bool]]:
        """Yield (log of the replica, whether it is the leader's) for each in-sync replica: the leader first,
        and then the followers by descending high watermark. If a replica can't be read, its error is added to
        `failed`.
        """
        state, stores = self.state(topic, partition), self._observer.stores
        others: list[tuple[int, ObservedLog]] = []
        for broker in in_sync(state):
            if broker not in stores:
                failed.append(f"directory {broker} is not there")
                continue
            try:
                replica = ObservedLog(stores[broker], topic, partition, self._files)
                if broker != state.leader:
                    others.append((replica.end_offset, replica))
            except FAILURES as error:
                self._lose(stores[broker].path, error, failed)
                continue
            if broker == state.leader:
                yield replica, True
        for _, replica in sorted(others, key=lambda each: each[0], reverse=True):
            yield replica, False

    def _lose(self, directory: str, error: Exception, failed: list[str]) -> None:
        failed.append(f"{directory}: {error}")
        if not isinstance(error, GONE):
            if directory not in self._warned:
                log.warning("%s can't be read, another replica is: %s", directory, error)
            self._warned.add(directory)
            self._observer.lose(directory, error)
