"""A consumer's positions, and offsets that are looked up. Nothing on disk. Threads: one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from segstore.client.consumer.base import alone
from segstore.client.consumer.parts import Parts
from segstore.client.consumer.subscription import topic_partition, topic_partitions
from segstore.config import arguments
from segstore.coordinator.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from segstore.errors import IllegalStateError, InvalidTypeError


class Seeking(Parts):
    """Where a consumer reads."""

    @alone
    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record that will be given. IllegalStateError where it is not assigned,
        NoOffsetForPartitionError.
        """
        state = self._subscription.state(partition)
        self._positions.resolve()
        if state.position is None:
            self._lookups.log(topic_partition(partition))
            raise IllegalStateError(f"{partition} has no position yet: poll() first")
        return state.position

    @alone
    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on at `offset`; one that is not there is dealt with by auto_offset_reset in the next poll.
        IllegalStateError where the partition is not assigned, InvalidArgumentError.
        """
        epoch = offset.leader_epoch if isinstance(offset, OffsetAndMetadata) else -1
        at = offset.offset if isinstance(offset, OffsetAndMetadata) else offset
        self._subscription.state(partition).seek(arguments.whole("offset", at, 0), epoch)
        self._iteration.clear()

    @alone
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the log start offset of these partitions, by default of all that are assigned: found in
        the next poll or `position`. IllegalStateError.
        """
        self._seek_to("earliest", partitions)

    @alone
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on behind the last record; as `seek_to_beginning`."""
        self._seek_to("latest", partitions)

    def _seek_to(self, where: str, partitions: Sequence[TopicPartition]) -> None:
        self._subscription.look(self._subscription.chosen(partitions), where)
        self._iteration.clear()

    @alone
    def pause(self, *partitions: TopicPartition) -> None:
        """Give no records of these partitions until they are resumed. IllegalStateError."""
        for state in [self._subscription.state(tp) for tp in partitions]:
            state.paused = True

    @alone
    def resume(self, *partitions: TopicPartition) -> None:
        """Give records of paused partitions again. IllegalStateError."""
        for state in [self._subscription.state(tp) for tp in partitions]:
            state.paused = False

    @alone
    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, state in self._subscription.states.items() if state.paused}

    @alone
    def highwater(self, partition: TopicPartition) -> int:
        """The high watermark of an assigned partition: the offset behind its last record."""
        self._subscription.state(partition)
        return self._lookups.log(topic_partition(partition)).high_watermark

    @alone
    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The log start offsets. UnknownTopicOrPartitionError."""
        return {tp: self._lookups.log(tp).start_offset for tp in topic_partitions(partitions)}

    @alone
    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets behind the last record that may be read: the high watermark, with read_committed the
        last stable offset. UnknownTopicOrPartitionError.
        """
        lookups = self._lookups
        return {tp: lookups.end(lookups.log(tp)) for tp in topic_partitions(partitions)}

    @alone
    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition its first record stamped at or after a time (ms since the epoch), None where
        there is none. UnknownTopicOrPartitionError, InvalidArgumentError for a negative time.
        """
        if not isinstance(timestamps, Mapping):
            raise InvalidTypeError(f"timestamps must be a dict, not {type(timestamps).__name__}")
        wanted = {topic_partition(tp): arguments.whole("timestamp", at, 0) for tp, at in timestamps.items()}
        return {tp: self._lookups.for_time(self._lookups.log(tp), at) for tp, at in wanted.items()}
