"""`Partitions` keeps the open partitions of a store.

It writes the checkpoints in the store's root; the partitions write their own files. Threads: any; the store's
lock is held while a partition is opened, and while topics or topic settings change.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from segstore import names
from segstore.errors import CorruptCheckpointError, SegstoreError, StoreClosedError, copy_of
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import StoreContext
from segstore.storage.log.partition import Partition
from segstore.storage.log.replica import Replica
from segstore.storage.meta.root_checkpoints import RootCheckpoints, TopicPartitionKey
from segstore.storage.meta.topics import NOT_A_FILE, TopicInfo, find_topic
from segstore.storage.segment.log_view import LogView
from segstore.storage.store.partition_loader import PartitionLoader

log = Logger("segstore")


class Partitions:
    """Keeps the open partitions of one store. `topics()` returns the current topics. `lock` is the store's
    lock, which is also held while topics change.
    """

    def __init__(
        self,
        context: StoreContext,
        topics: Callable[[], Mapping[str, TopicInfo]],
        loader: PartitionLoader,
        checkpoints: RootCheckpoints,
    ) -> None:
        self._context, self._topics, self._loader, self._checkpoints = context, topics, loader, checkpoints
        self.lock = Mutex()
        self._open: dict[TopicPartitionKey, Partition] = {}
        self._broken: dict[TopicPartitionKey, Exception] = {}
        self._replicas: dict[TopicPartitionKey, Replica] = {}
        self.on_opened: Callable[[Partition], None] | None = None
        """`on_opened(partition)` is called after a partition was opened. The store's lock is held during the
        call.
        """

    # --- one ------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Partition:
        """Return the partition, and open it first if needed. Raises UnknownTopicOrPartitionError,
        StorageError.
        """
        found = self._open.get((topic, partition))
        if found is None:
            with self.lock:
                found = self._get(topic, partition)
        return found

    def _get(self, topic: str, partition: int) -> Partition:
        self._context.check_open()
        if (topic, partition) in self._broken:
            raise copy_of(self._broken[topic, partition])
        found = self._open.get((topic, partition))
        if found is None:
            info = find_topic(self._topics(), topic, partition)
            with self._context.reserve:
                found = self._loader.load(info, partition, partial(self._move_start, info, partition))
            if self.on_opened is not None:
                self.on_opened(found)
            self._open[topic, partition] = found
        return found

    def open(self, topic: str, partition: int) -> None:
        """Open a partition. If a file or directory of the partition is damaged, this method raises nothing,
        and each later `get` of the partition raises the error. All other errors are raised here.
        """
        try:
            self.get(topic, partition)
        except (SegstoreError, OSError) as error:
            if not isinstance(error, CorruptCheckpointError) and getattr(
                error, "errno", None
            ) not in NOT_A_FILE | {errno.EACCES}:
                raise
            log.warning("%s can't be opened: %s", names.partition_dir(topic, partition), error)
            self._broken[topic, partition] = copy_of(error)

    def replica(self, topic: str, partition: int, high_watermark: int | None = None) -> Replica:
        """Return the `Replica` of a partition, the same object at each call. In a replicated store each
        partition is opened as a replica. In a plain store the first call for a partition makes it a replica
        with this `high_watermark` (None: 0). Raises the errors of `get`.
        """
        key = topic, partition
        with self.lock:
            found = self._get(topic, partition)
            if key not in self._replicas:
                if not found.visible.is_replica:
                    high_watermark = high_watermark or 0
                info = find_topic(self._topics(), topic, partition)
                self._replicas[key] = self._replica(found, info, partition, high_watermark)
            return self._replicas[key]

    def begin_epoch(self, topic: str, partition: int, epoch: int) -> None:
        """Begin the leader epoch `epoch` at the end of a partition's log. The epoch is durable when this
        returns. In a plain store the partition does not become a replica. Raises the errors of `get`.
        """
        with self.lock:
            found = self._get(topic, partition)
            info = find_topic(self._topics(), topic, partition)
            held = self._replicas.get((topic, partition)) or self._replica(found, info, partition, None)
        held.begin_epoch(epoch)
        found.flush()

    def _replica(
        self, found: Partition, info: TopicInfo, partition: int, high_watermark: int | None
    ) -> Replica:
        quarantine = names.below(self._context.root, f"{names.OURS}/{names.QUARANTINE}")
        return Replica(
            found,
            high_watermark,
            quarantine,
            lambda offset: self._cut((info.name, partition), offset),
            # The replica holds the lock `naming` during this call. A deletion of the topic waits for
            # `naming`, so it removes the partition's line from the checkpoint only after this call has
            # written the line.
            lambda offset: self._checkpoints.log_starts.update({(info.name, partition): offset}),
        )

    def _cut(self, key: TopicPartitionKey, end: int) -> None:
        """Lower the recovery point and the cleaner's offset to `end`, durably, because records that a replica
        copies after a cut at `end` are neither synced nor compacted (Kafka:
        LogCleaner.maybeTruncateCheckpoint).
        """
        changes: dict[str, dict[TopicPartitionKey, int | None]] = {names.RECOVERY_POINTS: {key: end}}
        cleaned = self._checkpoints.cleaner_offsets.get(key)
        if cleaned is not None and cleaned > end:
            changes[names.CLEANER_OFFSETS] = {key: end}
        self._checkpoints.update(changes)

    def _move_start(self, info: TopicInfo, partition: int, start: int) -> None:
        """Write a log start offset into the checkpoint, durably. Raises StoreClosedError if the topic was
        deleted, even if a new topic has the same name.
        """
        with self.lock:
            self._context.check_open()
            topic = self._topics().get(info.name)
            if topic is None or topic.topic_id != info.topic_id:
                raise StoreClosedError(f"{names.partition_dir(info.name, partition)}: the topic was deleted")
            self._checkpoints.log_starts.update({(info.name, partition): start})

    # --- of a topic; with the lock held ---------------------------------------------------

    def configure(self, info: TopicInfo) -> None:
        """Use a topic's changed settings from the next append on."""
        for partition in self._of(info).values():
            partition.configure(info.settings)

    def load_all(self, info: TopicInfo) -> None:
        """Open all partitions of a topic. If a partition can't be opened, the error is not raised here, but
        by `get`.
        """
        for number in info.partition_ids:
            with suppress(SegstoreError, OSError):  # a later `get` raises the error again
                self._get(info.name, number)

    def ends_of(self, info: TopicInfo) -> dict[int, tuple[LogView, int]]:
        """Return {partition: (view of the log, recovery point)} of a topic's open partitions."""
        return {n: (p.view, p.recovery_point) for n, p in self._of(info).items()}

    def _of(self, info: TopicInfo) -> dict[int, Partition]:
        return {n: p for (topic, n), p in self._open.items() if topic == info.name}

    def abandon(self, topic: str) -> None:
        """Forget the partitions of a topic that was deleted, and refuse further appends to them."""
        self._abandon({key for key in (*self._open, *self._broken) if key[0] == topic})

    def abandon_some(self, topic: str, numbers: Collection[int]) -> None:
        """Forget partitions that were removed from a topic, or moved to another data directory, and refuse
        further appends to them.
        """
        self._abandon({(topic, number) for number in numbers})

    def _abandon(self, keys: Collection[TopicPartitionKey]) -> None:
        for key in keys:
            self._replicas.pop(key, None)
            if key in self._open:
                self._open.pop(key).abandon()
        self._broken = {k: e for k, e in self._broken.items() if k not in keys}

    # --- all ------------------------------------------------------------------------------

    def all_open(self) -> list[Partition]:
        """Return the partitions that are open."""
        return list(self._open.values())

    def begin_sync(self) -> None:
        """Begin the sync mode: each partition that is opened later has a high watermark. The caller holds
        the store's lock.
        """
        self._loader.sync = True

    def end_sync(self) -> None:
        """End the sync mode: a partition that is opened later has no high watermark, so readers see the whole
        log. The caller holds the store's lock.
        """
        self._loader.sync = False
        self._replicas.clear()

    def keys(self) -> list[TopicPartitionKey]:
        """Return the keys of the partitions that are open."""
        return list(self._open)

    def epochs(self, topic: str, numbers: Sequence[int]) -> list[int]:
        """Return the leader epochs of a topic's partitions; -1 for a partition that is not open."""
        get = self._open.get
        found = [get((topic, number)) for number in numbers]
        return [-1 if each is None else each.visible.publisher.epoch for each in found]

    def expire_producers(self, after_ms: int) -> None:
        """Forget the producer ids that were not used for `after_ms`, in all open partitions."""
        for partition in list(self._open.values()):
            partition.expire_producers(after_ms)

    def flush(self) -> None:
        """Sync all partitions, and write the checkpoints. An error of one partition does not stop the sync of
        the next partition. The first error is raised at the end.
        """
        errors: list[Exception] = []
        try:
            for partition in list(self._open.values()):
                try:
                    partition.flush()
                except StoreClosedError:
                    continue  # the partition's topic was deleted
                except SegstoreError as error:
                    errors.append(error)
            self.checkpoint()
            if errors:
                raise errors[0]
        finally:
            # This breaks a reference cycle: each error's traceback refers to this frame, whose `errors`
            # refers to the error.
            errors.clear()

    def checkpoint(self, nonce: int = 0) -> None:
        """Write recovery points, log start offsets and high watermarks. `nonce` is the number in the clean
        shutdown marker of a clean close, else 0. Raises OSError.
        """
        with self.lock:
            self.checkpoint_held(nonce)

    def checkpoint_held(self, nonce: int) -> None:
        """Write the checkpoints as `checkpoint` does. The caller holds the lock."""
        self._checkpoints.update(self._offsets, nonce)

    def _offsets(self) -> dict[str, dict[TopicPartitionKey, int | None]]:
        partitions = self._open
        return {
            names.RECOVERY_POINTS: {k: p.recovery_begin for k, p in partitions.items()},
            names.LOG_STARTS: {k: p.visible.start_offset for k, p in partitions.items()},
            names.HIGH_WATERMARKS: {k: p.view.end_offset for k, p in partitions.items()},
        }

    def close(self) -> list[Exception]:
        """Close all partitions; returns the errors. The caller holds the lock."""
        errors: list[Exception] = []
        for partition in self._open.values():
            try:
                partition.close()
            except Exception as error:
                errors.append(error)
        return errors

    def is_clean(self) -> bool:
        """Return whether all partitions could be opened, and no open partition needs recovery at the next
        open.
        """
        return not self._broken and all(p.is_clean() for p in self._open.values())
