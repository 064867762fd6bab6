"""`GroupOffsets`: what groups have committed, and their membership as it is kept. A store's shared part.

On disk: owner of the topic `__consumer_offsets` (see `offsets_topic`, `schemas`). A commit is one
record batch of one append: a crash keeps all of it or nothing.
Threads: any; see `offsets_cache`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from segstore.coordinator.offsets.cleanup import OffsetsCleanup
from segstore.coordinator.offsets.schema import (
    Commit,
    GroupRecord,
    MemberRecord,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from segstore.coordinator.offsets.state import OffsetsState
from segstore.coordinator.offsets.topic import TOPIC
from segstore.coordinator.offsets.write import Writer, check_group, check_offsets
from segstore.coordinator.shared import existing, shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.records.encoded import PLAIN
from segstore.storage.store.store import Store

log = Logger("segstore")

__all__ = ["TOPIC", "GroupOffsets", "GroupRecord", "MemberRecord"]

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class GroupOffsets(OffsetsCleanup):
    """Ask for it with `shared(store, GroupOffsets)`."""

    # --- offsets ------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit all of `offsets`, or none: durable as the topic's `flush.messages` says.

        InvalidGroupIdError, InvalidArgumentError, InvalidTypeError, OffsetMetadataTooLargeError,
        UnknownTopicOrPartitionError, RecordTooLargeError (they make no one batch), UnsupportedVersionError,
        StorageError: nothing was committed.
        """
        self._commit(group, offsets, PLAIN)

    def commit_transactional(
        self, group: str, offsets: Offsets, producer_id: int, producer_epoch: int
    ) -> None:
        """As `commit`, within the producer's transaction: they count when `complete` says so.

        InvalidProducerEpochError too.
        """
        self._commit(group, offsets, Template(TRANSACTIONAL_FLAG, producer_id, producer_epoch, 0))

    def _commit(self, group: str, offsets: Offsets, template: Template) -> None:
        check_group(group)
        known = check_offsets(offsets, self._topic.check_topic, self._config.offset_metadata_max_bytes)
        if not known:
            return

        def write(state: OffsetsState, writer: Writer) -> None:
            commits = {
                tp: Commit(offset, writer.now, topic_id=self._topic.topic_id(tp.topic))
                for tp, offset in known.items()
            }
            keys = [offset_key(group, tp) for tp in commits]
            first = writer.write(keys, [offset_value(each) for each in commits.values()], template)
            for at, (tp, commit) in enumerate(commits.items(), first):
                if template is PLAIN:
                    state.put_offset(group, tp, commit, at)
                else:
                    state.put_pending(template.producer_id, group, tp, commit, at)

        self._writing(group, write)

    def complete(self, producer_id: int, committed: bool, partitions: Collection[int]) -> None:
        """The producer's transaction was ended in these partitions of the topic, its markers are written: its
        offsets count, or never will.
        """
        with self._lock:
            read = [held for number, held in self._partitions.items() if number in partitions]
        for held in read:
            with held.lock:
                # What was not read yet will be found with its marker.
                if held.state is not None:
                    held.state.end(producer_id, committed)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of those partitions that have one, by default of all.

        InvalidGroupIdError, UnsupportedVersionError, CorruptRecordError.
        """

        def look(state: OffsetsState) -> dict[TopicPartition, OffsetAndMetadata]:
            held = state.usable(group).offsets
            wanted = held if partitions is None else {tp: held[tp] for tp in partitions if tp in held}
            return self._topic.held(wanted)

        return self._held(self.partition_for(group), look)

    def pending(self, group: str) -> set[TopicPartition]:
        """Those that open transactions are about to commit (Kafka: unstable offsets)."""
        return self._held(self.partition_for(group), lambda state: state.pending_of(group))

    def delete(self, group: str, partitions: Collection[TopicPartition] | None = None) -> set[TopicPartition]:
        """Forget those offsets, by default all and the group itself: which there were. Errors as `commit`."""
        if self.partition_for(group) not in self._topic.ids:
            return set()

        def write(state: OffsetsState, writer: Writer) -> set[TopicPartition]:
            held, pending = state.usable(group), state.pending_of(group)
            there = set(held.offsets) | pending
            gone = there if partitions is None else there & set(partitions)
            self._drop(state, writer, group, gone, whole=partitions is None and held.record is not None)
            return gone

        return self._writing(group, write)

    # --- groups -------------------------------------------------------------------------------

    def groups(self) -> set[str]:
        """All that have offsets, pending ones too, or a membership that is kept."""
        found: set[str] = set()
        for partition in self._topic.ids:
            found |= self._held(partition, OffsetsState.names)
        return found

    def group(self, group_id: str) -> GroupRecord | None:
        """The membership as it was written last. UnsupportedVersionError."""
        return self._held(self.partition_for(group_id), lambda state: state.classic(group_id).record)

    def write_group(self, record: GroupRecord) -> None:
        """Keep a membership. Errors as `commit`."""
        group = check_group(record.group_id)

        def write(state: OffsetsState, writer: Writer) -> None:
            writer.write([group_key(group)], [group_value(record)])
            state.put_group(group, record)

        self._writing(group, write)


def _after_delete(store: Store, topic: str) -> None:
    """A topic of that name that is made later begins without what was committed for this one."""
    if topic != TOPIC and TOPIC not in store.topics():
        return
    part = existing(store, GroupOffsets) if topic == TOPIC else shared(store, GroupOffsets)
    try:
        if part is not None:
            part.topic_deleted(topic)
    except SegstoreError as error:
        log.warning("%s: deleted, but what groups have committed for it is still there: %s", topic, error)


Store._after_delete.append(_after_delete)
