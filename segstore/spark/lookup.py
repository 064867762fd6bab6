"""The driver's look at a store: which partitions a query reads, from where, and up to where.

On disk: reads only, as every store opened with mode="r". Threads: one, that of a query's planning.
"""

from __future__ import annotations

import logging
import re

from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    ConfigError,
    DataLossError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.spark.offsets import EARLIEST, LATEST, Offsets, OffsetSpec, names
from segstore.spark.options import SourceOptions
from segstore.storage.store import store as storage
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

log = logging.getLogger("segstore.spark")


def open_store(path: str) -> Store:
    """The store to read. ConfigError where there is no directory."""
    try:
        return storage.open(path, "r")
    except StorageError as error:
        raise ConfigError(
            f"option path={path!r}: {error.strerror}: give the directory of a store, or of a broker's logs"
        ) from error


class Lookup:
    """Answers for one query; a context manager."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.store = open_store(options.path)

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.store.close()

    # --- partitions -----------------------------------------------------------------------

    def partitions(self, *, all_there: bool = True) -> list[TopicPartition]:
        """Those of the subscription, in order. ConfigError where one is not there, unless `all_there` is
        False: then the others.
        """
        subscription, topics = self.options.subscription, self.store.topics()
        if subscription.pattern or subscription.option == "subscribePattern":
            match = re.compile(subscription.pattern).fullmatch
            wanted = [name for name, info in topics.items() if match(name) and not info.internal]
        else:
            wanted = list(subscription.topics or dict.fromkeys(topic for topic, _ in subscription.partitions))
        found = []
        for topic in wanted:
            if topic in topics and topics[topic].error is None:
                found += [TopicPartition(topic, number) for number in topics[topic].partition_ids]
            elif all_there:
                self._raise_unknown(topic, 0)
        if subscription.partitions:
            for each in set(subscription.partitions).difference(found) if all_there else ():
                self._raise_unknown(*each)
            found = [each for each in found if each in subscription.partitions]
        return sorted(found)

    def _raise_unknown(self, topic: str, partition: int) -> None:
        option = self.options.subscription.option
        try:
            self.store.partition(topic, partition)
        except UnknownTopicOrPartitionError as error:
            raise ConfigError(f"option {option}: {error} (path={self.options.path!r})") from error

    def log(self, partition: TopicPartition) -> PartitionLog:
        """UnknownTopicOrPartitionError, StoreClosedError."""
        return self.store.partition(*partition)

    # --- offsets --------------------------------------------------------------------------

    def earliest(self, partitions: list[TopicPartition]) -> Offsets:
        """The log start offsets."""
        return {each: self.log(each).start_offset for each in partitions}

    def latest(self, partitions: list[TopicPartition]) -> Offsets:
        """The ends that may be read up to now, of those partitions that are still there."""
        found = {}
        for each in partitions:
            try:
                found[each] = self.end_of(each)
            except (UnknownTopicOrPartitionError, StoreClosedError):
                log.debug("%s was deleted meanwhile", each)
        return found

    def end_of(self, partition: TopicPartition) -> int:
        """What is visible at the isolation level ends here."""
        at = self.log(partition)
        return at.end_offset if self.options.isolation_level == "read_uncommitted" else at.last_stable_offset

    def resolve(self, spec: OffsetSpec, partitions: list[TopicPartition], *, begin: bool) -> Offsets:
        """The offsets that an option stands for; what it names itself is held against what is there.

        ConfigError, DataLossError.
        """
        numbers = spec.of(partitions)
        if spec.times:
            return {each: self._at_time(spec, each, numbers[each], begin) for each in partitions}
        found = {}
        for each in partitions:
            number = numbers[each]
            if number == EARLIEST:
                found[each] = self.log(each).start_offset
            elif number == LATEST:
                found[each] = self.end_of(each)
            else:
                found[each] = self._within(spec.option, each, number)
        return found

    def _at_time(self, spec: OffsetSpec, partition: TopicPartition, time: int, begin: bool) -> int:
        end = self.end_of(partition)
        offset = self.log(partition).offset_for_time(time)
        if offset is None and begin and not self.options.or_latest:
            raise ConfigError(
                f"option {spec.option}: {names([partition])} has no record stamped {time} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins at its end then"
            )
        return end if offset is None else min(offset, end)

    def _within(self, option: str, partition: TopicPartition, offset: int) -> int:
        """An offset that a user gave, moved to the nearest that is there where data loss is allowed."""
        at = self.log(partition)
        first, end = at.start_offset, at.end_offset
        if not first <= offset <= end:
            self.lost(
                f"option {option}: offset {offset} of {names([partition])} is not there: "
                f"offsets {first} to {end} are; give one of those, or -2 for earliest"
            )
        return min(max(offset, first), self.end_of(partition))

    def lost(self, what: str) -> None:
        """DataLossError, or a warning where failOnDataLoss is false."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what}. With option failOnDataLoss=false what is left is read")
        log.warning("%s; failOnDataLoss=false: what is left is read", what)
