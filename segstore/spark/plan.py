"""Plans a read: `Lookup` finds the partitions and offsets in the store, and `divide` divides ranges of
offsets into parts.

On disk: only reads. Threads: one plans a query; any thread may use the values. There are as many parts as
Spark's KafkaOffsetRangeCalculator would make. If possible, a part begins at the begin of a record batch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from segstore.closing import Closing
from segstore.coordinator.structs import TopicPartition
from segstore.errors import ConfigError, DataLossError, UnknownTopicOrPartitionError
from segstore.replication.observed_log import GONE, OffsetAndEpoch
from segstore.spark.archive_logs import open_logs
from segstore.spark.logs import LogSource, PlannedLog
from segstore.spark.offsets import EARLIEST, LATEST, Offsets, OffsetSpec, names
from segstore.spark.options import SourceOptions
from segstore.storage.meta.topic_info import INTERNAL

log = logging.getLogger("segstore.spark")

Positions = dict[TopicPartition, OffsetAndEpoch]
Edge = Callable[["PlannedRange", int], int]
"""A function (range, offset) that returns the base offset of the batch that has the offset."""


class PlannedRange(NamedTuple):
    """The offsets of a partition from `start` to before `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


def divide(
    ranges: list[PlannedRange], least_parts: int | None, most_records: int | None, edge: Edge
) -> list[PlannedRange]:
    """Divide `ranges` into parts of at most `most_records` offsets, and return at least about `least_parts`
    parts. A limit that is None does not apply. Empty ranges are omitted.
    """
    parts = [each for each in ranges if each.size]
    if most_records is not None:
        parts = [part for each in parts for part in _capped(each, most_records, edge)]
    if least_parts is not None and len(parts) < least_parts:
        parts = [part for each, n in _shares(parts, least_parts) for part in _evenly(each, n, edge)]
    return parts


def _capped(whole: PlannedRange, most: int, edge: Edge) -> Iterator[PlannedRange]:
    """Divide a range into parts of at most `most` offsets. A batch is divided if `edge` finds no begin of a
    batch after the part's start.
    """
    start = whole.start
    while whole.end - start > most:
        cut = edge(whole, start + most)
        cut = cut if cut > start else start + most
        yield whole._replace(start=start, end=cut)
        start = cut
    yield whole._replace(start=start)


def _evenly(whole: PlannedRange, n: int, edge: Edge) -> Iterator[PlannedRange]:
    start = whole.start
    for i in range(1, n):
        cut = edge(whole, whole.start + whole.size * i // n)
        if cut > start:
            yield whole._replace(start=start, end=cut)
            start = cut
    yield whole._replace(start=start)


def _shares(parts: list[PlannedRange], least: int) -> Iterator[tuple[PlannedRange, int]]:
    """Yield (range, number of parts for it). A small range gets one part. The rest of the `least` parts is
    distributed among the larger ranges in proportion to their sizes.
    """
    total = sum(each.size for each in parts)
    small = {each for each in parts if _count(each.size, total, least) == 1}
    total -= sum(each.size for each in small)
    left = max(least - len(small), 1)
    for each in parts:
        yield each, 1 if each in small else _count(each.size, total, left)


def _count(size: int, total: int, parts: int) -> int:
    return max(round(size / total * parts), 1) if total else 1


# --- lookup ------------------------------------------------------------------------------------

# By a `Lookup` the driver finds the partitions that a query reads, and the offsets of each partition.


class Lookup(Closing):
    """Finds the partitions and offsets of one query in the store. A `Lookup` is a context manager."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.logs = open_logs(options)

    def close(self) -> None:
        self.logs.close()

    # --- partitions -----------------------------------------------------------------------

    def partitions(self, *, all_there: bool = True) -> list[TopicPartition]:
        """Return the partitions that the options select, sorted. If a topic or partition is missing, raises
        ConfigError if `all_there` is True, else omits it.
        """
        subscription, topics = self.options.subscription, self.logs.topics
        if subscription.pattern or subscription.option == "subscribePattern":
            match = re.compile(subscription.pattern).fullmatch
            wanted = [name for name in topics if match(name) and name not in INTERNAL]
        else:
            wanted = list(subscription.topics or dict.fromkeys(topic for topic, _ in subscription.partitions))
        found = []
        for topic in wanted:
            if topic in topics:
                found += [TopicPartition(topic, number) for number in topics[topic]]
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
            self.logs.check(topic, partition)
        except UnknownTopicOrPartitionError as error:
            raise ConfigError(f"option {option}: {error} (path={self.options.path!r})") from None

    # --- offsets --------------------------------------------------------------------------

    def earliest(self, partitions: list[TopicPartition]) -> Offsets:
        """Return the log start offset of each of `partitions` that still exists."""
        found: Offsets = {}
        for each in partitions:
            try:
                found[each] = self._start_of(each)
            except GONE:
                log.debug("%s was deleted after its end was looked up", each)
        return found

    def latest(self, partitions: list[TopicPartition], begin: Positions | None = None) -> Positions:
        """Return the present end of each of `partitions` that still exists. `begin` has the ends of the last
        read.
        """
        found: Positions = {}
        for each in partitions:
            try:
                self.logs.await_shown([each])
                found[each] = self.logs.end(each, self._end, (begin or {}).get(each))
            except GONE:
                log.debug("%s was deleted meanwhile", each)
        return found

    def positions(self, offsets: Offsets, *known: Positions) -> Positions:
        """Return offsets as positions, which have leader epochs too. The leader epoch of an offset is taken
        from a position in one of the dicts `known`; if none has it, it is read from the log.
        """
        return {each: self._position(each, offset, known) for each, offset in offsets.items()}

    def _position(self, partition: TopicPartition, offset: int, known: Sequence[Positions]) -> OffsetAndEpoch:
        for some in known:
            at = some.get(partition)
            if at is not None and at.offset == offset and at.epoch >= 0:
                return at
        try:
            return OffsetAndEpoch(offset, self.logs.epoch(partition, offset))
        except GONE:
            return OffsetAndEpoch(offset)  # `range_of` will report that the log is missing.

    def _start_of(self, partition: TopicPartition) -> int:
        return self.logs.ask(partition, lambda log: log.start_offset)

    def _end_of(self, partition: TopicPartition) -> int:
        return self.logs.ask(partition, self._end)

    def _end(self, log: PlannedLog) -> int:
        """Return the offset after the last record that the query's isolation level shows."""
        return (
            log.end_offset if self.options.isolation_level == "read_uncommitted" else log.last_stable_offset
        )

    def resolve(self, spec: OffsetSpec, partitions: list[TopicPartition], *, begin: bool) -> Offsets:
        """Return the offsets that an option stands for in each of `partitions`. If the option has an offset
        as a number, check that the log has this offset. `begin` is True if the option is for the begin of the
        read. Raises ConfigError, DataLossError.
        """
        numbers = spec.of(partitions)
        self.logs.await_shown(partitions)
        if spec.times:
            return {each: self._at_time(spec, each, numbers[each], begin) for each in partitions}
        found = {}
        for each in partitions:
            number = numbers[each]
            if number == EARLIEST:
                found[each] = self._start_of(each)
            elif number == LATEST:
                found[each] = self._end_of(each)
            else:
                found[each] = self._within(
                    spec.option, each, OffsetAndEpoch(number, spec.epochs.get(each, -1))
                )
        return found

    def _at_time(self, spec: OffsetSpec, partition: TopicPartition, time: int, begin: bool) -> int:
        end, offset = self.logs.ask(partition, lambda log: (self._end(log), log.offset_for_time(time)))
        if offset is None and begin and not self.options.or_latest:
            raise ConfigError(
                f"option {spec.option}: {names([partition])} has no record stamped {time} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins at its end then"
            )
        return end if offset is None else min(offset, end)

    def _within(self, option: str, partition: TopicPartition, at: OffsetAndEpoch) -> int:
        """Check that a log has the offset `at` of an option, and return it. If the log does not have it,
        raise DataLossError; but if failOnDataLoss is false, return the nearest offset of the log.
        """
        first, end = self.logs.ask(partition, lambda log: (log.start_offset, log.end_offset))
        offset = at.offset
        if not first <= offset <= end:
            self.lost(
                f"option {option}: offset {offset} of {names([partition])} is not there: "
                f"offsets {first} to {end} are; give one of those, or -2 for earliest"
            )
        elif (agreed := self.logs.there(partition, None, at).end) < offset:
            self.lost(divergence_text(partition, at, agreed))
            offset = agreed if agreed >= 0 else offset
        return min(max(offset, first), self._end_of(partition))

    def sources(self, part: PlannedRange) -> list[LogSource]:
        """Return the sources of a range of offsets. If neither the archive nor the store has some of the
        offsets, raises DataLossError, unless failOnDataLoss is false.
        """
        found = self.logs.sources(part.partition, part.start, part.end)
        if sum(each.end - each.start for each in found) < part.size:
            there = ", ".join(f"{each.start} to {each.end}" for each in found) or "none"
            self.lost(
                f"{names([part.partition])}: of offsets {part.start} to {part.end} there are {there}: others "
                "are in the store no more, and were not archived before"
            )
        return found

    def lost(self, what: str) -> None:
        """Raise DataLossError with the text `what`; if failOnDataLoss is false, only log it as a warning."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what}. With option failOnDataLoss=false what is left is read")
        log.warning("%s; failOnDataLoss=false: what is left is read", what)


def divergence_text(partition: TopicPartition, at: OffsetAndEpoch, agreed: int) -> str:
    """Return the error message for a position `at` that was taken from another log. `agreed` is the first
    offset at which the two logs differ, -1 if it is not known.
    """
    since = f"from offset {agreed} on" if agreed >= 0 else "from where is not known"
    return (
        f"{names([partition])}: records before offset {at.offset}, leader epoch {at.epoch}, were taken back, "
        "since a replica was elected that lacks them, the store was restored from an older copy, or the "
        f"topic was made anew: the log goes another way {since}"
    )
