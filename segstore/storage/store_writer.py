"""The writing side of a store: lock, topics, partitions, published ends, checkpoints; opens and closes them.

On disk: `.lock`, and through its parts the root and `.segstore/`.
Threads: any; one lock around topic changes and the loading of partitions.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    SegstoreError,
    StoreClosedError,
    StoreLockedError,
    TopicAlreadyExistsError,
)
from segstore.files import Handle
from segstore.storage.context import Context
from segstore.storage.ends import EndsWriter, slot_key
from segstore.storage.gaps import forgets, remembering
from segstore.storage.partition import Partition
from segstore.storage.partition_loader import PartitionLoader
from segstore.storage.recovery import Recovered
from segstore.storage.root_checkpoints import RootCheckpoints, TopicPartitionKey
from segstore.storage.shutdown import put_marker, take_marker
from segstore.storage.staging.inbox import Inbox
from segstore.storage.sweeper import Sweeper
from segstore.storage.topics import NOT_A_FILE, TopicFiles, TopicInfo, find_topic, new_topic, with_config
from segstore.storage.view import LogView

log = logging.getLogger("segstore")


class StoreWriter:
    """Opens what is there, and finishes what a crash left: topic changes, swaps, torn tails."""

    def __init__(self, context: Context, config: StoreConfig) -> None:
        self.context, self.config = context, config
        self._lock = threading.RLock()
        self._partitions: dict[TopicPartitionKey, Partition] = {}
        self._broken: dict[TopicPartitionKey, Exception] = {}
        self._dying: set[str] = (
            set()
        )  # topics that are deleted, and whose directories could not be moved away
        self._held = _take_lock(context)
        try:
            self._open()
        except BaseException:
            self._held.close()
            raise

    # --- opening --------------------------------------------------------------------------

    def _open(self) -> None:
        files, root = self.context.files, self.context.root
        ours = os.path.join(root, names.OURS)
        marker = take_marker(files, root)
        if not files.exists(ours):
            files.mkdir(ours)
            files.sync_dir(root)
        self._topic_files = TopicFiles(files, root)
        self._topic_files.prepare()
        self._ends = EndsWriter(files, os.path.join(ours, names.ENDS))
        self._clean = marker is not None
        # The ends are those of the last writer, if no broker closed the directory since.
        self._ends_hold = self._ends.nonce == (marker or 0) and marker != 0
        if not self._ends_hold:
            # Gone before the number is: a second crash must not find them believable.
            self._ends.clear()
        # A broker that was killed has left a number of ours without a marker.
        gaps_known = marker is not None or self._ends.nonce == 0
        self._ends.begin()
        self._checkpoints = RootCheckpoints(files, root)
        self._loader = PartitionLoader(
            self.context,
            self._topic_files,
            self._ends,
            self._checkpoints,
            self._clean,
            self._ends_hold,
            gaps_known,
            self.config.producer_id_expiration_ms,
        )
        self.topics, dying = self._topic_files.load()
        for topic in dying:
            self._bury(topic)
        self._topic_files.remove_buried()
        self.inbox = Inbox(self.context, self.config, lambda: self.topics, self.partition, self.nudge)
        finished = self.inbox.settle()
        if finished:
            self._clean = self._loader.clean = False
            with self._ends.together():
                for key in sorted(finished):
                    self._open_partition(*key)
        self._open_partitions()
        seconds = self.config.log_flush_offset_checkpoint_interval_ms / 1000
        self.context.scheduler.every(seconds, self.checkpoint)
        seconds = self.config.producer_id_expiration_check_interval_ms / 1000
        self.context.scheduler.every(seconds, self._expire_producers)
        cleaned = self._checkpoints.cleaner_offsets
        self.sweeper = Sweeper(
            self.context, self.config, lambda: self.topics, self.partition, cleaned, self.checkpoint
        )
        self.sweeper.start()
        self.inbox.begin()

    def _open_partitions(self) -> None:
        """After a clean close a partition is opened when it is asked for; else now, to be recovered."""
        known = self._ends.keys()
        live = set()
        for info in self.topics.values():
            if info.ours:
                self._make_partitions(info)
            for partition in info.partition_ids:
                key = slot_key(info.topic_id, info.name, partition)
                live.add(key)
                if not (self._clean and self._ends_hold and key in known):
                    self._open_partition(info.name, partition)
        for key in known - live:
            self._ends.release(key)

    def _open_partition(self, topic: str, partition: int) -> None:
        """One that can't be opened for what lies in its directory is told when it is asked for."""
        try:
            self.partition(topic, partition)
        except (SegstoreError, OSError) as error:
            if (
                not isinstance(error, CorruptCheckpointError)
                and getattr(error, "errno", None) not in NOT_A_FILE
            ):
                raise
            log.warning("%s can't be opened: %s", names.partition_dir(topic, partition), error)
            self._broken[topic, partition] = error

    def _make_partitions(self, info: TopicInfo) -> None:
        """Make the directories that are missing. OSError."""
        made = [p for p in info.partition_ids if self._loader.make(info, p)]
        if made:
            self.context.files.sync_dir(self.context.root)

    # --- partitions -----------------------------------------------------------------------

    @property
    def recovered(self) -> list[Recovered]:
        """What recovery did, in order."""
        return self._loader.recovered

    def partition(self, topic: str, partition: int) -> Partition:
        """The partition, opened if it was not. UnknownTopicOrPartitionError, StorageError."""
        found = self._partitions.get((topic, partition))
        if found is None:
            with self._lock:
                self.context.check_open()
                if (topic, partition) in self._broken:
                    raise self._broken[topic, partition]
                found = self._partitions.get((topic, partition))
                if found is None:
                    info = find_topic(self.topics, topic, partition)
                    found = self._loader.load(info, partition, partial(self._move_start, info, partition))
                    self._partitions[topic, partition] = found
        return found

    def cleaned_offset(self, topic: str, partition: int) -> int | None:
        """What cleaner-offset-checkpoint says of a partition."""
        return self._checkpoints.cleaner_offsets.get((topic, partition))

    def forget_cleaned(self, topic: str, partition: int) -> None:
        """Let that say nothing: all of the log is dirty. OSError."""
        self._checkpoints.cleaner_offsets.update({}, frozenset({(topic, partition)}))

    def _move_start(self, info: TopicInfo, partition: int, start: int) -> None:
        """Make a log start offset durable. StoreClosedError where the topic is another by now."""
        with self._lock:
            self.context.check_open()
            if info.name not in self.topics or self.topics[info.name].topic_id != info.topic_id:
                raise StoreClosedError(f"{names.partition_dir(info.name, partition)}: the topic was deleted")
            self._checkpoints.log_starts.update({(info.name, partition): start})

    # --- topics ------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        """Durable when it returns. TopicAlreadyExistsError, InvalidTopicError, ConfigError, StorageError."""
        info = new_topic(name, partitions, config)
        with self._lock:
            self.context.check_open()
            if name in self.topics:
                raise TopicAlreadyExistsError(f"topic {name!r} is there already")
            if name in self._dying:  # what its deletion has left must not be the new one's
                self._bury(name)
                self._dying.discard(name)
            self._forget_lines(name)
            try:
                self._topic_files.write(info)
                self._make_partitions(info)
                self._begin_recovery_points(info)
            except OSError:
                self._bury(name)
                self._topic_files.remove_buried()
                raise
            self._show_topic(info)
        return info

    def _begin_recovery_points(self, info: TopicInfo) -> None:
        """Recovery tells compaction's gaps from those of a power cut by these lines. OSError."""
        if info.gapped:
            held, keys = self._checkpoints.recovery_points, ((info.name, n) for n in info.partition_ids)
            held.update({key: 0 for key in keys if held.get(key) is None})

    def _show_topic(self, info: TopicInfo) -> None:
        self.topics = {**self.topics, info.name: info}
        for partition in info.partition_ids:
            self._ends.claim(slot_key(info.topic_id, info.name, partition))

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """Change settings; None goes back to the default. ConfigError, UnknownTopicOrPartitionError."""
        with self._lock:
            self.context.check_open()
            before = find_topic(self.topics, name)
            info = with_config(before, config)
            if forgets(before, info):
                self._load_all(before)
            # The settings first: no compaction begins any more behind where there may be gaps.
            self._configure(info)
            try:
                info = remembering(before, info, self._ends_of(before))
                self._begin_recovery_points(info)
                self._topic_files.write(info)
            except BaseException:
                self._configure(before)
                with suppress(OSError):
                    self._topic_files.restore(before)
                raise
            self.topics = {**self.topics, name: info}
        return info

    def _configure(self, info: TopicInfo) -> None:
        for (topic, _), partition in self._partitions.items():
            if topic == info.name:
                partition.configure(info.settings)

    def _load_all(self, info: TopicInfo) -> None:
        for number in info.partition_ids:
            with suppress(SegstoreError, OSError):  # who asks for it is told
                self.partition(info.name, number)

    def _ends_of(self, info: TopicInfo) -> dict[int, tuple[LogView, int]]:
        """Views and recovery points of the partitions that could be opened."""
        found = {n: p for (topic, n), p in self._partitions.items() if topic == info.name}
        return {n: (p.view, p.recovery_point) for n, p in found.items()}

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Have `total` partitions from now on (Kafka: createPartitions). InvalidArgumentError where that is
        fewer.
        """
        with self._lock:
            self.context.check_open()
            before = find_topic(self.topics, name)
            if total <= before.partitions or before.partition_ids != tuple(range(before.partitions)):
                raise InvalidArgumentError(
                    f"total={total}: topic {name!r} has partitions {list(before.partition_ids)}; they "
                    "can only become more"
                )
            info = replace(before, partition_ids=tuple(range(total)), ours=True)
            if forgets(before, info):
                self._load_all(before)
            info = remembering(before, info, self._ends_of(before))
            self._forget_lines(name, before.partition_ids)
            try:
                self._topic_files.write(info)
                self._make_partitions(info)
                self._begin_recovery_points(info)
            except OSError:
                # The settings last: while they tell of partitions, the next open makes what is missing.
                for directory in self._topic_files.bury(name, before.partition_ids):
                    self.context.pool.forget_directory(directory)
                self._topic_files.remove_buried()
                self._topic_files.write(before)
                raise
            self._show_topic(info)
        return info

    def delete_topic(self, name: str) -> None:
        """Readers keep what they have read; all else goes. UnknownTopicOrPartitionError."""
        with self._lock:
            self.context.check_open()
            info = find_topic(self.topics, name)
            try:
                self._topic_files.write(info, deleting=True)
            except OSError:
                # It may say so all the same, and the topic goes on: the next open must not delete it.
                with suppress(OSError):
                    self._topic_files.write(info)
                raise
            self.topics = {n: t for n, t in self.topics.items() if n != name}
            for key in [k for k in self._partitions if k[0] == name]:
                self._partitions.pop(key).abandon()
            self._broken = {k: e for k, e in self._broken.items() if k[0] != name}
            self._dying.add(name)
            self._bury(name)
            self._dying.discard(name)
            for partition in info.partition_ids:
                self._ends.release(slot_key(info.topic_id, name, partition))
            self._topic_files.remove_buried()

    def _bury(self, topic: str) -> None:
        for directory in self._topic_files.bury(topic):
            self.context.pool.forget_directory(directory)
        self._forget_lines(topic)
        self._topic_files.forget(topic)

    def _forget_lines(self, topic: str, but: tuple[int, ...] = ()) -> None:
        """What the checkpoints say of partitions that are gone must not be said of new ones."""
        held = self._checkpoints.keys()
        self._checkpoints.forget(frozenset(k for k in held if k[0] == topic and k[1] not in but))

    def unstable(self) -> list[TopicPartitionKey]:
        """Partitions in which a transaction is open, by what is published: none is opened for it."""
        found = []
        for info in self.topics.values():
            for partition in info.partition_ids:
                ends = self._ends.get(slot_key(info.topic_id, info.name, partition))
                if ends is not None and ends.stable < ends.end:
                    found.append((info.name, partition))
        return found

    def opened(self) -> list[TopicPartitionKey]:
        """Partitions that are open: after an unclean shutdown all that can be."""
        return list(self._partitions)

    @property
    def publications(self) -> int:
        return self._ends.publications

    def wait(self, seen: int, seconds: float) -> None:
        """See `Store.wait`."""
        self._ends.wait(seen, seconds)

    def nudge(self) -> None:
        """See `Store._nudge`."""
        self._ends.publish([], [])

    def _expire_producers(self) -> None:
        for partition in list(self._partitions.values()):
            partition.expire_producers(self.config.producer_id_expiration_ms)

    # --- closing -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all partitions durable, and the checkpoints say so. StorageError."""
        errors: list[Exception] = []
        for partition in list(self._partitions.values()):
            try:
                partition.flush()
            except StoreClosedError:
                continue  # its topic was deleted meanwhile
            except SegstoreError as error:
                errors.append(error)
        self.checkpoint()
        if errors:
            raise errors[0]

    def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks. OSError."""
        with self._lock:
            held = self._partitions
            self._checkpoints.recovery_points.update({k: p.recovery_point for k, p in held.items()})
            self._checkpoints.log_starts.update({k: p.view.start_offset for k, p in held.items()})
            self._checkpoints.high_watermarks.update({k: p.view.end_offset for k, p in held.items()})

    def abandon(self) -> None:
        """Nobody can close the store any more: end its threads. The next open recovers."""
        self.inbox.close()
        self.sweeper.stop()
        self.context.scheduler.close()

    def close(self) -> None:
        """Close cleanly. The first error is raised when all is let go; the next open recovers then."""
        self.inbox.close()
        self.sweeper.close()
        self.context.closed = True
        self.context.scheduler.close()
        with self._lock:
            errors: list[Exception] = []
            for partition in self._partitions.values():
                try:
                    partition.close()
                except Exception as error:
                    errors.append(error)
            try:
                whole = (
                    not errors and not self._broken and all(p.settled() for p in self._partitions.values())
                )
                if whole:
                    self.checkpoint()
                    self._ends.sync()  # what the marker says holds after a power cut
                    self._ends.set_nonce(put_marker(self.context.files, self.context.root))
            finally:
                self.context.pool.close()
                self._held.close()
            if errors:
                raise errors[0]


def _take_lock(context: Context) -> Handle:
    path = os.path.join(context.root, names.LOCK)
    try:
        return context.files.lock(path)
    except BlockingIOError:
        raise StoreLockedError(context.root, context.files.lock_holder(path)) from None
