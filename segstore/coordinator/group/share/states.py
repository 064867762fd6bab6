"""`ShareStates`: creates and deletes the durable states of a share group's partitions, and writes the group's
record of partitions before and after each step (KIP-932; Kafka: GroupMetadataManager,
GroupCoordinatorService).

On disk: records of the group, and between them records of `StateLog`. Threads: under the group's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from segstore import names
from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.share.initialising import all_of, begun, deleted, deleting, done, keys_of
from segstore.coordinator.group.share.keeper import ShareKeeper
from segstore.coordinator.offsets.share_schema import (
    ShareKind,
    ShareRecordKey,
    TopicPartitionsInfo,
    TopicsInfo,
)
from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    FencedStateEpochError,
    InvalidRequestError,
    SegstoreError,
    UnknownTopicOrPartitionError,
)
from segstore.integers import INT64_MAX

_ENDED = (
    ShareKind.CURRENT,
    ShareKind.TARGET,
    ShareKind.TARGET_EPOCH,
    ShareKind.MEMBER,
    ShareKind.PARTITIONS,
    ShareKind.EPOCH,
)
"""The order in which a deleted group's tombstones are written."""


class ShareStates(ShareKeeper):
    """The part of `ShareMembership` that creates and deletes the durable states of share partitions."""

    def begin(self, new: TopicsInfo, begins: Mapping[ShareKey, int], epoch: int) -> int:
        """Create or replace the states of the partitions `new`, with the start offsets `begins`. Return the
        state epoch of the new states: `epoch`, or a larger epoch if a partition already has a state with a
        later epoch than `epoch`. The caller must raise the group's epoch to the returned epoch. Raises the
        errors of `ShareOutside.write` and of `StateLog`.
        """
        noted = begun(self.group.partitions, new)
        if noted != self.group.partitions:
            self.note(noted)
        states = self._outside.states()
        try:
            states.initialise({key: (epoch, start) for key, start in begins.items()})
        except FencedStateEpochError:
            known = [states.read(key) for key in begins]
            epoch = max(epoch, *(1 + recorded.state_epoch for recorded in known if recorded is not None))
            states.initialise({key: (epoch, start) for key, start in begins.items()})
        return epoch

    def begun_states(self, keys: Iterable[ShareKey]) -> dict[ShareKey, Durable]:
        """Return the states of those of these share partitions whose creation was begun, and not recorded as
        done. Raises the errors of `StateLog`.
        """
        initializing = set(keys_of(self.group.group_id, self.group.partitions.initializing))
        states = self._outside.states()
        found = {key: states.read(key) for key in keys if key in initializing}
        return {key: state for key, state in found.items() if state is not None}

    def initialised(self) -> list[ShareKey]:
        """Return the share partitions that have a state, sorted by number within each topic."""
        return keys_of(self.group.group_id, self.group.partitions.initialized)

    def alter(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, SegstoreError | None]:
        """Replace the states of partitions by states with other start offsets; return one error or None for
        each partition. The new state epoch fences share sessions that are still open. Raises the errors of
        `begin`.
        """
        topics = self._outside.topics()
        errors = {tp: _refused(topics, tp, offset) for tp, offset in offsets.items()}
        good = [tp for tp, error in errors.items() if error is None]
        new = {
            topic_id: TopicPartitionsInfo(topics.names[topic_id], numbers)
            for topic_id, numbers in topics.assignment(good).items()
        }
        begins = {
            key: offsets[TopicPartition(topic.name, key.partition)]
            for topic_id, topic in new.items()
            for key in keys_of(self.group.group_id, {topic_id: topic})
        }
        if begins:
            draft = self._draft(topics, self.begin(new, begins, self.group.next_epoch))
            draft.raise_epoch()
            self.note(done(self.group.partitions, new), draft)
            self._outside.fence(list(begins))
        return errors

    def delete_offsets(self, topics: Collection[str]) -> dict[str, SegstoreError | None]:
        """Delete the states of all partitions of these topics; return one error or None for each topic.
        Raises the errors of `ShareOutside.write` and of `StateLog`.
        """
        recorded = all_of(self.group.partitions)
        by_name: dict[str, list[bytes]] = {}
        for topic_id, topic in recorded.items():
            by_name.setdefault(topic.name, []).append(topic_id)
        self._delete({topic_id for name in topics for topic_id in by_name.get(name, ())})
        return {
            name: None
            if name in by_name
            else UnknownTopicOrPartitionError(
                f"topic {name!r}: there is no offset information to delete: share group "
                f"{self.group.group_id!r} has none of it"
            )
            for name in topics
        }

    def forget_deleted(self, topics: AssignableTopics) -> None:
        """Delete the states of deleted topics, and finish deletions that were begun. Raises the errors of
        `ShareOutside.write` and of `StateLog`.
        """
        if topics is self._seen and not self.group.partitions.deleting:
            return
        recorded = {topic_id: topic.name for topic_id, topic in all_of(self.group.partitions).items()}
        gone = {topic_id for topic_id, name in recorded.items() if _is_gone(topics, topic_id, name)}
        self._delete(gone | self.group.partitions.deleting.keys())

    def end(self) -> None:
        """Delete all states, and then all records of the group. Raises the errors of `ShareOutside.write` and
        of `StateLog`.
        """
        self._delete({*all_of(self.group.partitions), *self.group.partitions.deleting}, is_end=True)
        members = {*self.group.members, *self.group.targets}
        keys = [
            ShareRecordKey(kind, member_id)
            for kind in _ENDED
            for member_id in (sorted(members) if kind in _OF_MEMBERS else ("",))
        ]
        self._write([(key, None) for key in keys])

    def _delete(self, topic_ids: Collection[bytes], is_end: bool = False) -> None:
        if not topic_ids and not is_end:
            return
        noted = deleting(self.group.partitions, topic_ids)
        if noted != self.group.partitions:
            self.note(noted)
        keys = self._keys(None if is_end else topic_ids)
        if keys:
            self._outside.states().delete(keys)
            self._outside.fence(keys)
        if not is_end:
            self.note(deleted(self.group.partitions, topic_ids))

    def _keys(self, topic_ids: Iterable[bytes] | None) -> list[ShareKey]:
        """Return the group's share partitions that have a state: those of `topic_ids`, or of all topics if
        `topic_ids` is None.
        """
        known = self._outside.states().keys_of(self.group.group_id)
        if topic_ids is None:
            return sorted(known)
        wanted = set(map(names.topic_id_of, topic_ids))
        return sorted(key for key in known if key.topic_id in wanted)


_OF_MEMBERS = (ShareKind.CURRENT, ShareKind.TARGET, ShareKind.MEMBER)


def _refused(topics: AssignableTopics, tp: TopicPartition, offset: int) -> SegstoreError | None:
    """Return the error that explains why this start offset can't be set, or None if it can be set."""
    if tp.topic not in topics.ids or not 0 <= tp.partition < topics.counts[topics.ids[tp.topic]]:
        return UnknownTopicOrPartitionError(f"{tp.topic}-{tp.partition} is not there")
    if not 0 <= offset <= INT64_MAX:
        return InvalidRequestError(f"{tp.topic}-{tp.partition}: offset={offset}: must not be negative")
    return None


def _is_gone(topics: AssignableTopics, topic_id: bytes, name: str) -> bool:
    """Return whether the topic with this id was deleted; False if the store has a topic `name` whose id can't
    be read.
    """
    info = topics.infos.get(name)
    return topic_id not in topics.names and (info is None or bool(info.topic_id))
