"""The partitions of a store that is open for writing: those that are open, and those that can't be.

On disk: through `partition_loader` and `partition`; what the root's checkpoints say of them.
Threads: any; the store's lock is held while one is opened, and while topics or their settings change.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from segstore import names
from segstore.errors import CorruptCheckpointError, SegstoreError, StoreClosedError, copy_of
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.context import Context
from segstore.storage.log.partition import Partition
from segstore.storage.meta.root_checkpoints import RootCheckpoints, TopicPartitionKey
from segstore.storage.meta.topics import NOT_A_FILE, TopicInfo, find_topic
from segstore.storage.segment.log_view import LogView
from segstore.storage.store.partition_loader import PartitionLoader

log = Logger("segstore")


class Partitions:
    """`topics()` are those there are now. `lock` is the store's: who changes topics holds it, too."""

    def __init__(
        self,
        context: Context,
        topics: Callable[[], Mapping[str, TopicInfo]],
        loader: PartitionLoader,
        checkpoints: RootCheckpoints,
    ) -> None:
        self._context, self._topics, self._loader, self._checkpoints = context, topics, loader, checkpoints
        self.lock = Mutex()
        self._open: dict[TopicPartitionKey, Partition] = {}
        self._broken: dict[TopicPartitionKey, Exception] = {}

    # --- one ------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Partition:
        """The partition, opened if it was not. UnknownTopicOrPartitionError, StorageError."""
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
            found = self._loader.load(info, partition, partial(self._move_start, info, partition))
            self._open[topic, partition] = found
        return found

    def open(self, topic: str, partition: int) -> None:
        """One that can't be opened for what lies in its directory is told when it is asked for."""
        try:
            self.get(topic, partition)
        except (SegstoreError, OSError) as error:
            if not isinstance(error, CorruptCheckpointError) and getattr(
                error, "errno", None
            ) not in NOT_A_FILE | {errno.EACCES}:
                raise
            log.warning("%s can't be opened: %s", names.partition_dir(topic, partition), error)
            self._broken[topic, partition] = copy_of(error)

    def _move_start(self, info: TopicInfo, partition: int, start: int) -> None:
        """Make a log start offset durable. StoreClosedError where the topic is another by now."""
        with self.lock:
            self._context.check_open()
            held = self._topics().get(info.name)
            if held is None or held.topic_id != info.topic_id:
                raise StoreClosedError(f"{names.partition_dir(info.name, partition)}: the topic was deleted")
            self._checkpoints.log_starts.update({(info.name, partition): start})

    # --- of a topic; with the lock held ---------------------------------------------------

    def configure(self, info: TopicInfo) -> None:
        """Use a topic's changed settings from the next append on."""
        for partition in self._of(info).values():
            partition.configure(info.settings)

    def load_all(self, info: TopicInfo) -> None:
        """Open all that can be."""
        for number in info.partition_ids:
            with suppress(SegstoreError, OSError):  # who asks for it is told
                self._get(info.name, number)

    def ends_of(self, info: TopicInfo) -> dict[int, tuple[LogView, int]]:
        """Views and recovery points of the partitions that could be opened."""
        return {n: (p.view, p.recovery_point) for n, p in self._of(info).items()}

    def _of(self, info: TopicInfo) -> dict[int, Partition]:
        return {n: p for (topic, n), p in self._open.items() if topic == info.name}

    def abandon(self, topic: str) -> None:
        """It was deleted."""
        for key in [k for k in self._open if k[0] == topic]:
            self._open.pop(key).abandon()
        self._broken = {k: e for k, e in self._broken.items() if k[0] != topic}

    # --- all ------------------------------------------------------------------------------

    def keys(self) -> list[TopicPartitionKey]:
        """Those that are open."""
        return list(self._open)

    def expire_producers(self, after_ms: int) -> None:
        """See `Partition.expire_producers`."""
        for partition in list(self._open.values()):
            partition.expire_producers(after_ms)

    def flush(self) -> None:
        """Make all durable, and the checkpoints say so. StorageError: the first; all are tried."""
        errors: list[Exception] = []
        try:
            for partition in list(self._open.values()):
                try:
                    partition.flush()
                except StoreClosedError:
                    continue  # its topic was deleted meanwhile
                except SegstoreError as error:
                    errors.append(error)
            self.checkpoint()
            if errors:
                raise errors[0]
        finally:
            errors.clear()  # this frame is in their tracebacks

    def checkpoint(self, nonce: int = 0) -> None:
        """Write recovery points, log starts and high watermarks; `nonce`: of a clean close. OSError."""
        with self.lock:
            self.checkpoint_held(nonce)

    def checkpoint_held(self, nonce: int) -> None:
        """As `checkpoint`, with the lock held."""
        held = self._open
        changes = {
            names.RECOVERY_POINTS: {k: p.recovery_point for k, p in held.items()},
            names.LOG_STARTS: {k: p.view.start_offset for k, p in held.items()},
            names.HIGH_WATERMARKS: {k: p.view.end_offset for k, p in held.items()},
        }
        self._checkpoints.update(changes, nonce)

    def close(self) -> list[Exception]:
        """Close all, and say what failed; with the lock held."""
        errors: list[Exception] = []
        for partition in self._open.values():
            try:
                partition.close()
            except Exception as error:
                errors.append(error)
        return errors

    def settled(self) -> bool:
        """Whether the next open has nothing to finish in any of them, nor to take back."""
        return not self._broken and all(p.settled() for p in self._open.values())
