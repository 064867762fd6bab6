"""Upgrades partitions of a store to record batches of magic 2, on request.

The cleaner writes the segments anew (`storage.cleaner.upgrade`). Threads: the sweeper runs one upgrade or
sweep at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from segstore import names
from segstore.config import StoreConfig, arguments
from segstore.errors import InvalidArgumentError, SegstoreError, StoreClosedError
from segstore.logger import Logger
from segstore.storage.cleaner import CleaningStopped, Throttler, UpgradedSegment, upgrade
from segstore.storage.log.partition import Partition
from segstore.storage.meta.root_checkpoints import TopicPartitionKey
from segstore.storage.meta.topics import TopicInfo, find_topic

log = Logger("segstore")


class Upgraded(NamedTuple):
    """The result of an upgrade of a partition: the number of rewritten segments, the number of records in
    them, and their size in bytes before and after. `error` is the text of the upgrade's error, or None.
    """

    topic: str
    partition: int
    segments: int = 0
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    error: str | None = None

    def plus(self, done: UpgradedSegment) -> Upgraded:
        """Return the result with the numbers of one more segment added."""
        return Upgraded(
            self.topic,
            self.partition,
            self.segments + 1,
            self.records + done.records,
            self.bytes_before + done.bytes_before,
            self.bytes_after + done.bytes_after,
        )


def wanted(
    topics: Mapping[str, TopicInfo], topic: str | None, partition: int | None
) -> list[TopicPartitionKey]:
    """Return (topic, number) of the partitions to upgrade: all partitions of all topics if `topic` is None;
    all partitions of the topic if only `partition` is None; else the one partition. Raises
    InvalidArgumentError, UnknownTopicOrPartitionError.
    """
    if topic is None:
        if partition is not None:
            raise InvalidArgumentError(f"partition is {partition!r}: it goes with a topic")
        return [(i.name, number) for i in topics.values() if i.error is None for number in i.partition_ids]
    if partition is None:
        return [(topic, number) for number in find_topic(topics, topic).partition_ids]
    number = arguments.whole("partition", partition, None)
    return [(find_topic(topics, topic, number).name, number)]


class Upgrader:
    """Upgrades the partitions of one store. `partition(topic, n)` opens a partition; `checkpoint()` makes the
    recovery points durable.
    """

    def __init__(
        self,
        partition: Callable[[str, int], Partition],
        config: StoreConfig,
        throttle: Throttler,
        checkpoint: Callable[[], None],
    ) -> None:
        self._partition, self._config = partition, config
        self._throttle, self._checkpoint = throttle, checkpoint

    def run(self, key: TopicPartitionKey) -> Upgraded | None:
        """Upgrade a partition, and return the result; None if the partition has no messages of magic 0 or 1.
        Raises StoreClosedError.
        """
        done = Upgraded(*key)

        def swapped(segment: UpgradedSegment) -> None:
            nonlocal done
            done = done.plus(segment)

        try:
            partition = self._partition(*key)
            upgrade(partition, self._config, self._throttle, swapped, self._checkpoint)
        except CleaningStopped:
            raise StoreClosedError(f"{names.partition_dir(*key)}: the store is being closed") from None
        except StoreClosedError:
            raise
        except (SegstoreError, OSError) as error:
            log.warning("%s could not be upgraded: %s", names.partition_dir(*key), error)
            done = done._replace(error=str(error) or type(error).__name__)
        return done if done.segments or done.error else None
