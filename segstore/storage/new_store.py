"""`NewStore`: makes a copied or restored store in a temporary directory, and renames the directory when the
store is complete.

`<target><suffix>` is synced whole before it is renamed to `<target>`. `<target><suffix>.lock` is locked while
the store is made. Threads and processes: any, but only one at a time can make a store at the same target.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from segstore import names
from segstore.errors import StorageError
from segstore.files import Files
from segstore.storage.meta.directory_safety import remove_tree
from segstore.storage.meta.offset_checkpoints import write_offsets
from segstore.storage.meta.root_checkpoints import TopicPartitionKey
from segstore.storage.store.store import Store


class NewStore:
    """A store that is made at `target`, an absolute path. `what` is a noun for error texts, such as
    "copy".
    """

    def __init__(self, files: Files, target: str, suffix: str, what: str) -> None:
        self._files, self._target, self._what = files, target, what
        self.path = target + suffix
        """The directory in which the store is made."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run a block during which nobody else can make a store at the same target. Raises StorageError; the
        errno is EBUSY if another store is being made at this target.
        """
        path = self.path + names.LOCK
        try:
            lock = self._files.lock(path)
        except BlockingIOError:
            pid = self._files.lock_holder(path)
            message = f"Process {pid or '?'} is making another {self._what} here"
            raise StorageError(errno.EBUSY, message, self.path) from None
        except OSError as error:
            message = f"No {self._what} can be made there: {error.strerror}"
            raise StorageError(error.errno, message, self._target) from error
        with lock:
            try:
                yield
            finally:
                self._files.unlink(path)

    def begin(self) -> None:
        """Remove the directory that a killed process may have left, and make a new directory. Raises
        StorageError (EEXIST) if the target exists, and is not an empty directory.
        """
        files, target = self._files, self._target
        if files.exists(target) and (files.is_symlink(target) or files.listdir(target)):
            raise StorageError(errno.EEXIST, f"The target of a {self._what} exists already", target)
        if files.exists(self.path):
            remove_tree(files, self.path)
        files.mkdir(self.path)

    def drop(self) -> None:
        """Remove the unfinished store."""
        remove_tree(self._files, self.path)

    def finish(self) -> None:
        """Rename the directory of the store to the target, durably."""
        self._files.rename(self.path, self._target)
        self._files.sync_dir(os.path.dirname(self._target))


class NewCheckpoints:
    """Collects the offsets for the checkpoints in a new store's root, and writes the checkpoints."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[TopicPartitionKey, int]] = {name: {} for name in names.OFFSET_CHECKPOINTS}

    def add(self, key: TopicPartitionKey, start: int, end: int, cleaned: int | None) -> None:
        """Add a partition whose log has the offsets from `start` to `end`, exclusive, and is synced.
        `cleaned` is the offset for the cleaner's checkpoint, or None.
        """
        lines = {names.RECOVERY_POINTS: end, names.LOG_STARTS: start, names.HIGH_WATERMARKS: end}
        if cleaned is not None:
            lines[names.CLEANER_OFFSETS] = min(cleaned, end)
        for name, offset in lines.items():
            self._lines[name][key] = offset

    @property
    def ends(self) -> dict[TopicPartitionKey, int]:
        """Return the log end offset of each partition."""
        return self._lines[names.HIGH_WATERMARKS]

    def write(self, files: Files, root: str) -> None:
        """Write the checkpoint files in the store's root, durably. Raises OSError."""
        for name, lines in self._lines.items():
            write_offsets(files, os.path.join(root, name), lines)


def build_indexes(store: Store) -> None:
    """Build the missing indexes of all segments. Raises CorruptRecordError, StorageError."""
    for info in store.topics().values():
        for number in info.partition_ids:
            for segment in store.partition(info.name, number).source.view.segments:
                segment.indexes  # noqa: B018 (the property builds missing indexes)
