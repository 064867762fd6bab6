"""`seal` turns staged files into one append, and waits until the records are in the log. `abort` removes
staged files. `adopt` appends staged files in the writer's own process.

`seal` writes a manifest (`inbox.manifest`), and reads and removes the result file. Threads and processes:
any. If no process is the store's writer, the sealer becomes the writer until the adoption has ended.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable

from segstore import names
from segstore.config import arguments
from segstore.errors import (
    KafkaTimeoutError,
    ReplicaOfflineError,
    SegstoreError,
    StorageError,
    StoreLockedError,
)
from segstore.files import Files
from segstore.storage.context import Clock, os_errors, wall_clock
from segstore.storage.inbox.known_ids import Adoption, check_again
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import Manifest
from segstore.storage.inbox.sealing import SealedManifest, remove_unsealed
from segstore.storage.inbox.staged_file import Staged, check_id, check_source, files_of
from segstore.storage.meta.directory_safety import check_places, kept_mode
from segstore.storage.meta.topics import TopicFiles
from segstore.storage.store import store as store_module
from segstore.storage.store.store import Store

Opener = Callable[[], Store]
"""Opens a replicated store for writing; the open adopts sealed files."""


def seal(
    path: str | os.PathLike[str],
    id: str,
    messages: Iterable[Staged],
    timeout: float = 60.0,
    *,
    source: str = "",
    clock: Clock = wall_clock,
    files: Files | None = None,
    opener: Opener | None = None,
) -> Adoption:
    """Append the staged files of `messages` (results of `Stager.finish`) to the store at `path`: all of them,
    once, or none. In a replicated store `path` is the directory in which the files were staged.

    Returns the offsets of each partition when the records are durable and visible. If `id` was adopted
    before, nothing is appended: the offsets of the earlier adoption are returned, and the files of `messages`
    are removed. inbox.ids.retention.ms and inbox.ids.retention.count (StoreConfig) limit how long and how
    many ids are kept.
    `source` describes the origin of the records, such as offsets that were read, in up to 1,000 characters.

    Raises IdempotencyConflictError if other records were adopted under `id`: records of another `source`, or,
    if one of the two sealers gave no source, another number of records. The staged files stay, or are in the
    quarantine.

    Raises UnknownTopicOrPartitionError (a topic was deleted, a partition is missing), StagedFilesError,
    RecordTooLargeError: nothing was or will be appended; the sealed files are in the quarantine. Raises
    StorageError, and KafkaTimeoutError after `timeout` seconds: the files are sealed and will be adopted,
    unless the manifest could not be written; a second call of `seal` with the same id shows whether they were
    adopted. Raises InvalidTypeError, InvalidArgumentError.

    If no process has the store open for writing, this process opens it for the adoption. A replicated store
    is opened by `opener`, because a sealer knows only one of its directories; without an `opener`
    ReplicaOfflineError is raised. A replicated store may also raise NotEnoughReplicasError,
    NotEnoughReplicasAfterAppendError, InvalidReplicationFactorError, NotLeaderOrFollowerError,
    RequestTimedOutError, ConcurrentTransactionsError and QuorumLostError; after these errors, as after
    StorageError, the files are sealed and will be adopted. If the directory is lost, the records may be
    staged again in another directory, and sealed there with the same id: they are adopted only once.
    """
    work = Manifest("", check_id(id), files_of(messages), check_source(source))
    seconds = arguments.milliseconds("timeout", timeout)
    return _Sealing(_root(path), work, clock, files or Files(), opener).run(seconds)


def abort(
    messages: Iterable[Staged], path: str | os.PathLike[str] | None = None, *, files: Files | None = None
) -> None:
    """Remove the staged files in `messages`, except those that a sealed manifest names. `path` is the store's
    present path, by default the path at which the files were staged. Raises StorageError, InvalidTypeError,
    InvalidArgumentError.
    """
    held = list(messages) if isinstance(messages, Iterable) else messages
    files_of(held)
    with os_errors():
        for message in held:
            root = message.path if path is None else _root(path)
            check_places(files or Files(), root)
            remove_unsealed(Folder(files or Files(), root), message.files)


def _root(path: str | os.PathLike[str]) -> str:
    return arguments.path("path", path)


class _Sealing:
    def __init__(
        self,
        root: str,
        work: Manifest,
        clock: Clock,
        files: Files,
        opener: Opener | None,
    ) -> None:
        self._root, self._work, self._id = root, work, work.id
        self._clock, self._files = clock, files
        self._sealed = SealedManifest(files, root, work)
        self._opener, self._replicated = opener, False

    def run(self, seconds: float) -> Adoption:
        with os_errors():
            self._begin()
            until = time.monotonic() + seconds
            while True:
                known = self._sealed.outcome() or self._adopt()
                if known is not None:
                    check_again(known, self._work.records, self._work.source)
                    return known
                left = until - time.monotonic()
                if left <= 0:
                    raise KafkaTimeoutError(self._late(seconds))
                self._sealed.wait(min(left, self._sealed.patience))

    def _begin(self) -> None:
        if not self._files.exists(self._root):
            raise StorageError(
                errno.ENOENT, 'No such store (segstore.open with mode="rw" makes it)', self._root
            )
        check_places(self._files, self._root)
        self._replicated = TopicFiles(self._files, self._root).is_replicated()
        self._files.file_mode = kept_mode(self._files, self._root)
        self._sealed.begin()

    # --- one round --------------------------------------------------------------------------

    def _adopt(self) -> Adoption | None:
        """Open the store for writing, because an open adopts the sealed files, and close it. Return the
        adoption, or None if the adoption is not finished, or another process has the store open.
        """
        if self._files.is_locked(os.path.join(self._root, names.LOCK)):
            return None
        try:
            self._opened().close()
        except StoreLockedError:
            return None
        except SegstoreError:
            known = self._sealed.outcome()
            if known is not None:
                return known
            raise
        return self._sealed.outcome()

    def _opened(self) -> Store:
        if not self._replicated:
            return store_module.open(self._root, clock=self._clock, files=self._files)
        if self._opener is None:
            raise ReplicaOfflineError(
                f"{self._id!r} is sealed, and no process has {self._root} open, which is a directory of a "
                "replicated store: the next `segstore.open_replicated` adopts it"
            )
        return self._opener()

    def _late(self, seconds: float) -> str:
        pid = self._files.lock_holder(os.path.join(self._root, names.LOCK))
        return (
            f"{self._id!r} is sealed, but was not adopted in {seconds:g} s by process {pid or 'unknown'}, "
            f"which has {self._root} open for writing; it will be, and sealing {self._id!r} again tells when"
        )


# --- directly ----------------------------------------------------------------------------------


def adopt(store: Store, id_: str, messages: Iterable[Staged]) -> Adoption:
    """Append the staged files of `messages` as `seal` does, but at once, in the process that has the store
    open for writing.

    No manifest is sealed, so an adoption that fails is not tried again, and its staged files are removed.
    Raises UnknownTopicOrPartitionError, StagedFilesError, RecordTooLargeError, InvalidRecordError,
    IdempotencyConflictError, StorageError, ReadOnlyError, StoreClosedError, InvalidTypeError,
    InvalidArgumentError. After an error nothing was appended. Threads: any.
    """
    staged = files_of(messages)
    with os_errors():
        return store.writer().inbox.adopt(check_id(id_), staged)
