"""`ReplicatedReader`: reads a replicated store through its directories, from the replicas that may be read,
whether another process has the store open or none has (R24, R39; Kafka: KIP-392).

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
"""Seconds that a question waits for a replica that may answer it: an election takes some of them."""
SHOWN = 2.0
"""Seconds that a new leader is waited for, as by an open."""
_PAUSE = 0.05
FAILURES = (*GONE, *UNREADABLE)
"""What is raised where another replica is to be read."""


def in_sync(state: PartitionRegistration) -> tuple[int, ...]:
    """Return the replicas that have all that was committed: the leader, the others that are in sync, and the
    eligible leader replicas (P3).
    """
    leader = [state.leader] if state.leader >= 0 else []
    return tuple(dict.fromkeys([*leader, *state.isr, *state.elr]))


class ReplicatedReader(Closing):
    """Reads the store of which `paths` are the directories, in any order, and `witness` the witness where it
    has one. It is a context manager.

    A directory may be missing, as long as those that are there must know the newest metadata: half of all
    that have it, or more. Otherwise it might be read what was in sync once.
    """

    def __init__(self, paths: Sequence[str], witness: str | None = None, files: Files | None = None) -> None:
        """Raises as `refresh`; InvalidArgumentError for a directory that is there twice, or within another
        one.
        """
        self._files, self._witness = files or Files(), witness is not None
        given = check_paths(self._files, paths, witness)
        self.paths = tuple(given[: len(paths)])
        self._observer = Observer(given, self._files)
        self._told: set[str] = set()
        self._shown: dict[tuple[str, int], int] = {}
        """Leader epochs that are shown, or were."""
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
        """Read the news of the metadata, and open directories that have come back.

        Raises QuorumLostError where too few directories are there; StaleDirectoryError where they belong to
        different stores; StorageError where none belongs to any.
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
        told = [f"{path}: {error}" for path, error in self._observer.failed.items()]
        return "; ".join(told) or "no others were named"

    @property
    def image(self) -> MetadataImage:
        """Return the metadata as the last `refresh` has found it."""
        return self._image

    @property
    def topics(self) -> Mapping[str, tuple[int, ...]]:
        """Return the numbers of all partitions by topic."""
        found: dict[str, list[int]] = {name: [] for name in self._image.topics}
        for topic, number in sorted(self._image.partitions):
            found[topic].append(number)
        return {name: tuple(numbers) for name, numbers in sorted(found.items())}

    def state(self, topic: str, partition: int) -> PartitionRegistration:
        """Return what the metadata says of a partition. Raises UnknownTopicOrPartitionError."""
        state = self._image.partitions.get(PartitionKey(topic, partition))
        if state is None:
            numbers = self.topics.get(topic)
            there = f"its partitions are {list(numbers)}" if numbers else f"topics are {list(self.topics)}"
            raise UnknownTopicOrPartitionError(f"{topic}-{partition} does not exist: {there}")
        return state

    # --- replicas -------------------------------------------------------------------------

    def places(self, topic: str, partition: int) -> tuple[str, ...]:
        """Return all directories in the order in which a read is to try them: first those with replicas that
        are in sync. The others may get the partition until it is read. Raises UnknownTopicOrPartitionError.
        """
        state, stores = self.state(topic, partition), self._observer.stores
        first = [stores[each].path for each in (*in_sync(state), *state.replicas) if each in stores]
        return tuple(dict.fromkeys([*first, *self.paths]))

    def ask(
        self, topic: str, partition: int, question: Question[T], holding: OffsetAndEpoch | None = None
    ) -> T:
        """Return what the log of the leader answers; where its directory can't be read, or lacks records
        below `holding`, that of an in-sync replica that has them: of several the one with the highest high
        watermark. Where none has them, the leader answers, once it has begun its epoch: then they were lost.

        Waits for such a replica, for at most PATIENCE seconds. Raises then ReplicaOfflineError;
        UnknownTopicOrPartitionError where the partition was deleted; what `question` raises, but for errors
        of the disk.
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
        """Wait until new leaders show what was committed before they were elected, for at most SHOWN seconds:
        where no process has the store open, they never do (R38). Errors as `ask`.
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
        """Yield the replicas that may be read, and whether each leads: the leader, then the others by falling
        high watermark. `failed` gets what is wrong with those that can't be read.
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
            if directory not in self._told:
                log.warning("%s can't be read, another replica is: %s", directory, error)
            self._told.add(directory)
            self._observer.lose(directory, error)
