"""Creates, alters, grows and deletes topics of a store that is open for writing.

A change writes settings and directories (`meta.topics`, `partitions`), lines of the checkpoints in the
store's root, and slots of `.segstore/ends`. If a step of a change fails, this module finishes or undoes the
change, a deletion at the latest when the store is closed; after a crash, the next open finishes or undoes it.
Threads: any; the store's lock is held during each change. The dict `topics` is never changed in place, but
replaced by a new dict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from segstore import names
from segstore.errors import CorruptCheckpointError, InvalidArgumentError, TopicAlreadyExistsError
from segstore.storage.context import StoreContext
from segstore.storage.log.read import forgets, remembering
from segstore.storage.meta.published_ends import EndsWriter, slot_key
from segstore.storage.meta.root_checkpoints import RootCheckpoints
from segstore.storage.meta.small_files import Copy
from segstore.storage.meta.topic_info import TopicSettingsFile
from segstore.storage.meta.topics import (
    TopicFiles,
    TopicInfo,
    check_collision,
    find_topic,
    new_topic,
    with_config,
)
from segstore.storage.store.partition_loader import PartitionLoader
from segstore.storage.store.partitions import Partitions
from segstore.storage.store.topic_mending import mend_settings


class TopicAdmin:
    """Changes the topics of one store. `topics` has all topics by name."""

    def __init__(
        self,
        context: StoreContext,
        topic_files: TopicFiles,
        ends: EndsWriter,
        checkpoints: RootCheckpoints,
        loader: PartitionLoader,
        partitions: Partitions,
    ) -> None:
        """Load the topics, and finish deletions that were begun. Raises OSError."""
        self._context, self._topic_files, self._ends = context, topic_files, ends
        self._checkpoints, self._loader, self._partitions = checkpoints, loader, partitions
        self._lock = partitions.lock
        self._dying: dict[str, TopicInfo] = {}
        """By name the topics that were deleted, or whose creation failed, and whose directories may still
        have to be renamed.
        """
        self._shrunk: dict[str, set[int]] = {}
        """By topic the partitions that were removed from it, but may still have directories and slots."""
        self._unsettled: set[str] = set()
        """The topics whose settings on disk may differ from `topics`, because two writes in a row failed."""
        copies: dict[str, Copy[TopicSettingsFile]] = {}
        found, dying = topic_files.load(copies)
        published = ends.keys()
        self.topics = {
            name: mend_settings(context, topic_files, info, published, copies.get(name))
            for name, info in found.items()
        }
        for topic in dying:
            self._bury(topic)
        topic_files.remove_buried()
        self._has_graves = False
        """Whether renamed directories may still have to be removed."""

    def create(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        """Create a topic, and return it. The topic is durable when this returns. Raises
        TopicAlreadyExistsError, InvalidTopicError, ConfigError, StorageError.
        """
        info = new_topic(name, partitions, config)
        with self._lock:
            self._context.check_leads()
            if name in self.topics:
                raise TopicAlreadyExistsError(f"topic {name!r} is there already")
            check_collision(name, self.topics)
            self._create(info)
        return info

    def _create(self, info: TopicInfo) -> None:
        name = info.name
        # The new topic must not get the directories of a deleted topic of the same name.
        if name in self._dying:
            self._bury_dying(self._dying[name])
        self._topic_files.check_free(name)
        self._checkpoints.forget(name)
        try:
            self._make(info)
        except OSError:
            self._dying[name] = info
            # If the removal of the directories fails, the next `create` of this name or the close removes
            # them.
            with suppress(OSError):
                self._bury_dying(info)
                self._remove_graves()
            raise
        self._show(info)

    def make(self, info: TopicInfo) -> TopicInfo:
        """Create or change a topic so that it has exactly the id, the settings and the partitions of `info`.
        Partitions that `info` does not list are removed. Return the topic, whose changes are durable when
        this returns.

        After a crash in this call, the next call completes the change. Raises InvalidTopicError,
        StorageError; TopicAlreadyExistsError if the existing topic has another id; InvalidArgumentError if
        `info` has no id or no partitions.
        """
        names.check_topic(info.name)
        if not info.partition_ids or not names.is_topic_id(info.topic_id):
            raise InvalidArgumentError(f"topic {info.name!r}: it must have an id and partitions to be made")
        with self._lock:
            self._context.check_leads()
            before = self.topics.get(info.name)
            if before is None:
                made = replace(info, ours=True, error=None, lost=None)
                self._create(made)
                return made
            if before.topic_id != info.topic_id:
                raise TopicAlreadyExistsError(f"topic {info.name!r} is there with id {before.topic_id}")
            return self._bring(find_topic(self.topics, info.name), info)

    def _bring(self, before: TopicInfo, info: TopicInfo) -> TopicInfo:
        """Change a topic's settings, then its partitions, to those of `info`. Return the changed topic."""
        self._finish_earlier(before)
        if info.settings != before.settings:
            before = self._alter(before, replace(before, settings=info.settings, ours=True, lost=None))
        listed = set(info.partition_ids)
        stays = tuple(n for n in before.partition_ids if n in listed)
        if stays != before.partition_ids and stays:
            before = self._remove_partitions(before, stays)
        if info.partition_ids != before.partition_ids:
            # A topic must always have a partition. So if no old partition stays, all new partitions are made
            # before the old partitions are removed.
            both = tuple(sorted({*before.partition_ids, *info.partition_ids}))
            self._finish_shrinking(before)
            self._remove_graves()
            before = self._grow(before, replace(before, partition_ids=both, ours=True))
            if before.partition_ids != info.partition_ids:
                before = self._remove_partitions(before, info.partition_ids)
        return before

    def _finish_earlier(self, before: TopicInfo) -> None:
        """Finish an earlier change of a topic that has failed. Raises OSError."""
        if before.name in self._unsettled:
            self._topic_files.write(before)
            self._unsettled.discard(before.name)
        if before.name in self._shrunk:
            self._finish_shrinking(before)
            self._remove_graves()

    def _remove_partitions(self, before: TopicInfo, stays: tuple[int, ...]) -> TopicInfo:
        """Remove all partitions of a topic except `stays`, and return the changed topic."""
        info = replace(before, partition_ids=stays, ours=True)
        with self._context.reserve:
            return self._removed(before, info)

    def _removed(self, before: TopicInfo, info: TopicInfo) -> TopicInfo:
        # The settings are written first, because if they listed the removed partitions after a crash, the
        # next open would make these partitions anew.
        try:
            self._write(before, info)
        except OSError:
            # If the settings may list only the partitions of `info`, the next open may not have the others.
            # So no later append to the others is acknowledged.
            if info.name in self._unsettled:
                self._hide_removed(before, info)
            raise
        self._hide_removed(before, info)
        self._finish_shrinking(info)
        self._remove_graves()
        return info

    def _write(self, before: TopicInfo, info: TopicInfo) -> None:
        """Write the settings of `info`. If that fails, write those of `before`; if that fails too, the topic
        is in `_unsettled`. Raises the first error.
        """
        try:
            self._topic_files.write(info)
        except OSError:
            self._restore(before)
            raise
        self._unsettled.discard(info.name)

    def _restore(self, before: TopicInfo) -> None:
        try:
            self._topic_files.restore(before)
        except OSError:
            self._unsettled.add(before.name)
        else:
            self._unsettled.discard(before.name)

    def _hide_removed(self, before: TopicInfo, info: TopicInfo) -> None:
        """Refuse all uses of the partitions of `before` that `info` lacks."""
        gone = set(before.partition_ids).difference(info.partition_ids)
        self.topics = {**self.topics, info.name: info}
        self._partitions.abandon_some(info.name, gone)
        self._shrunk[info.name] = self._shrunk.get(info.name, set()) | gone

    def _finish_shrinking(self, info: TopicInfo) -> None:
        """Rename the directories of the partitions that are not in `info`, as Kafka renames deleted
        partitions, and free their slots. Raises OSError.
        """
        self._rename(info.name, info.partition_ids)
        self._checkpoints.forget(info.name, info.partition_ids)
        for number in self._shrunk.get(info.name, set()).difference(info.partition_ids):
            self._ends.release(slot_key(info.topic_id, info.name, number))
        self._shrunk.pop(info.name, None)

    def _make(self, info: TopicInfo) -> None:
        """Write the settings, then make the missing partitions. Raises OSError."""
        self._topic_files.write(info)
        self._loader.make(info)
        self._begin_recovery_points(info)

    def _begin_recovery_points(self, info: TopicInfo) -> None:
        """Add the partitions of a compacted topic to the recovery point checkpoint, with offset 0, so that
        recovery takes an offset gap above the recovery point for damage, not for a gap of compaction. Raises
        OSError.
        """
        if info.gapped:
            recovery_points, keys = (
                self._checkpoints.recovery_points,
                ((info.name, n) for n in info.partition_ids),
            )
            recovery_points.update({key: 0 for key in keys if recovery_points.get(key) is None})

    def _show(self, info: TopicInfo) -> None:
        self.topics = {**self.topics, info.name: info}
        for partition in info.partition_ids:
            self._ends.begin_empty(slot_key(info.topic_id, info.name, partition))

    def alter(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """Change the settings in `config`, and return the topic; the value None restores the default. Raises
        ConfigError, UnknownTopicOrPartitionError.
        """
        with self._context.reserve, self._lock:
            self._context.check_leads()
            before = find_topic(self.topics, name)
            return self._alter(before, with_config(before, config))

    def _alter(self, before: TopicInfo, info: TopicInfo) -> TopicInfo:
        if forgets(before, info):
            self._partitions.load_all(before)
        # The partitions get the new settings first, because a compaction that starts after `ends_of` could
        # leave gaps above the ends that `remembering` records.
        self._partitions.configure(info)
        try:
            info = remembering(before, info, self._partitions.ends_of(before))
            self._begin_recovery_points(info)
            self._topic_files.write(info)
        except BaseException:
            self._partitions.configure(before)
            self._restore(before)
            raise
        self._unsettled.discard(info.name)
        self.topics = {**self.topics, info.name: info}
        return info

    def remember_gaps(self, name: str, ends: Mapping[int, int]) -> TopicInfo:
        """Record durably that partitions may have offset gaps below these `ends`, even if the topic is not
        compacted, because their records were copied from another log. Raises
        UnknownTopicOrPartitionError, StorageError.
        """
        with self._lock:
            self._context.check_leads()
            before = find_topic(self.topics, name)
            info = replace(before, compacted=tuple(sorted({**dict(before.compacted), **ends}.items())))
            if info.compacted != before.compacted:
                self._topic_files.write(info)
                self.topics = {**self.topics, name: info}
            return info

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Add partitions to a topic, so that it has `total`, and return the topic (Kafka: createPartitions).
        Raises InvalidArgumentError if the topic already has `total` partitions or more.
        """
        with self._lock:
            self._context.check_leads()
            before = find_topic(self.topics, name)
            if total <= before.partitions or before.partition_ids != tuple(range(before.partitions)):
                raise InvalidArgumentError(
                    f"total={total}: topic {name!r} has partitions {list(before.partition_ids)}; they "
                    "can only become more"
                )
            return self._grow(before, replace(before, partition_ids=tuple(range(total)), ours=True))

    def _grow(self, before: TopicInfo, info: TopicInfo) -> TopicInfo:
        """Make the partitions of `info` that `before` lacks, and return the changed topic."""
        if forgets(before, info):
            self._partitions.load_all(before)
        info = remembering(before, info, self._partitions.ends_of(before))
        self._checkpoints.forget(info.name, before.partition_ids)
        try:
            self._make(info)
        except OSError:
            # The settings are restored last. If an interrupt comes before that, the settings list the new
            # partitions, and the next open makes the directories of these partitions.
            self._rename(info.name, before.partition_ids)
            self._remove_graves()
            self._topic_files.write(before)
            raise
        self._show(info)
        return info

    def delete(self, name: str) -> None:
        """Delete a topic. `Records` that were read before stay valid. Raises UnknownTopicOrPartitionError."""
        with self._context.reserve, self._lock:
            self._context.check_leads()
            info = find_topic(self.topics, name)
            try:
                self._topic_files.write(info, deleting=True)
            except OSError:
                # The failed write may have left `deleting` in the file. The file is written without
                # `deleting`, so that the next open does not delete the topic.
                may_be_deleting = self._may_be_deleting(name)
                try:
                    self._topic_files.write(info)
                except OSError:
                    # The next open may delete the topic, so no later append to the topic is acknowledged.
                    if may_be_deleting:
                        self._hide(info)
                raise
            self._hide(info)
            self._bury_dying(info)
            self._remove_graves()

    def _may_be_deleting(self, name: str) -> bool:
        """Return whether a copy of a topic's settings says that the topic's deletion has begun, or can't be
        read.
        """
        try:
            right, wrong = self._topic_files.settings(name).look()
        except (CorruptCheckpointError, OSError):
            return True
        return bool(wrong) or (right.content is not None and right.content.deleting)

    def _hide(self, info: TopicInfo) -> None:
        """Refuse all uses of a topic. If its deletion fails, the next `create` of the topic's name or the
        close finishes the deletion.
        """
        self.topics = {n: t for n, t in self.topics.items() if n != info.name}
        self._partitions.abandon(info.name)
        self._dying[info.name] = info

    def finish_deletions(self) -> None:
        """Write the settings that could not be restored, and finish the deletions that an error or an
        interrupt has stopped, before the store is marked as closed. The caller holds the store's lock. Raises
        OSError; the next open finishes the deletions.
        """
        # The settings come first, because only this process knows them.
        for name in [name for name in self._unsettled if name in self.topics]:
            self._topic_files.restore(self.topics[name])
        self._unsettled.clear()
        for info in list(self._dying.values()):
            self._bury_dying(info)
        for info in [self.topics[name] for name in self._shrunk if name in self.topics]:
            self._finish_shrinking(info)
        if self._has_graves:
            self._remove_graves()

    def _bury_dying(self, info: TopicInfo) -> None:
        """Mark the directories of a topic in `_dying` as deleted, and remove the topic's settings and slots.
        Raises OSError.
        """
        self._bury(info.name)
        for partition in {*info.partition_ids, *self._shrunk.pop(info.name, ())}:
            self._ends.release(slot_key(info.topic_id, info.name, partition))
        del self._dying[info.name]

    def _bury(self, topic: str) -> None:
        self._rename(topic)
        self._checkpoints.forget(topic)
        self._topic_files.forget(topic)

    def _rename(self, topic: str, but: Collection[int] = ()) -> None:
        """Rename the directories of a topic's partitions, except the partitions in `but`, to the names of
        deleted partitions. Raises OSError.
        """
        self._has_graves = True
        for directory in self._topic_files.bury(topic, but):
            self._context.pool.forget_directory(directory)

    def _remove_graves(self) -> None:
        """Remove the directories of all deleted partitions. Raises OSError."""
        self._topic_files.remove_buried()
        self._has_graves = False
