"""`Inboxes`: the inboxes of a replicated store, one in each of its directories.

A client stages files in any inbox. Each inbox has a thread that adopts its sealed manifests, so that an inbox
whose disk hangs delays no other inbox. The adopted ids of all inboxes are in `__segstore_adopted`. Each
directory has a copy of the ids in `.segstore/adopted`, for the clients that seal manifests in this directory.

On disk: the inboxes of the directories. Threads: any.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from segstore.coordinator.inboxes.adoptions import Adoptions, side_of
from segstore.coordinator.shared import shared
from segstore.errors import (
    IllegalStateError,
    ReplicaOfflineError,
    SegstoreError,
    StagedFilesError,
    StoreClosedError,
)
from segstore.logger import Logger
from segstore.replication.replicated_writer import ENDING
from segstore.storage.inbox.known_ids import Adoption
from segstore.storage.inbox.manifest import Manifest
from segstore.storage.inbox.staged_file import StagedFile
from segstore.threads import Background

if TYPE_CHECKING:
    from segstore.replication.data_directory import DataDirectory
    from segstore.storage.store.store import Store

log = Logger("segstore")

RETRY = 1.0  # seconds until the next attempt to read the adopted ids
COPYING = 10.0
"""Longest time, in seconds, for which an adoption waits for the directories to copy its id."""


class Inboxes:
    """The inboxes of a store. A store has one `Inboxes`, which `serve` sets as the `inbox` of the store's
    writer.
    """

    def __init__(self, store: Store) -> None:
        """Read the adopted ids. Raises CorruptRecordError, StorageError, NotLeaderOrFollowerError."""
        self._side, self._store = side_of(store), weakref.ref(store)
        self._adoptions = shared(store, Adoptions)
        self._ids = self._adoptions.ids

    def serve(self, store: Store) -> None:
        """Start to adopt the sealed manifests of all present and future directories. Raises the errors of an
        append if an id that is only in the file of a directory can't be written to the topic.
        """
        side = self._side
        adoptions = [adoption for directory in side.manager.online for adoption in directory.writer.inbox.ids]
        self._ids.bring(store, adoptions)
        side.inbox, side.directory_began = self, self.begin
        for directory in side.manager.online:
            self.begin(directory)

    def begin(self, directory: DataDirectory) -> None:
        """Start to serve the inbox of a directory. If the directory's disk fails, the directory
        goes offline.
        """
        adopter = _Adopter(self._store, directory, self._copy)
        try:
            directory.writer.inbox.begin_with(adopter, self._ids.all(), ENDING)
        except OSError as error:
            self._side.manager.failed(directory.broker, error)

    def _copy(self, adoption: Adoption) -> None:
        """Write the id of an adopted manifest into all directories, for the clients that seal manifests in
        them. If a directory hangs or its disk is full, the id is copied later.
        """
        self._side.manager.on_each(
            lambda directory: directory.writer.inbox.note(adoption),
            lambda directory: not directory.hangs,
            COPYING,
        )

    def adopt(self, id_: str, files: Sequence[StagedFile], /) -> Adoption:
        """Adopt staged files from the inbox of the directory that has all of them, and return the adoption.
        Raises the errors of `Inbox.adopt`.
        """
        for directory in self._side.manager.online:
            inbox = directory.writer.inbox
            if all(inbox.folder.files.exists(inbox.folder.staged(file)) for file in files):
                return inbox.adopt(id_, files)
        raise StagedFilesError(f"{id_!r}: no directory of the store has all of the staged files")

    def close(self) -> None:
        """Wait for running adoptions. Other sealed manifests are adopted after the next open of the store."""
        self._adoptions.close()
        for directory in self._side.manager.directories.values():
            directory.writer.inbox.close()


class _Adopter:
    """Adopts the manifests of one directory's inbox (protocol `Adopts`). The object has only a weak reference
    to the store, so that an unused store can be garbage collected.
    """

    def __init__(
        self,
        store: Callable[[], Store | None],
        directory: DataDirectory,
        copy: Callable[[Adoption], None],
    ) -> None:
        self._store, self._directory, self._copy = store, directory, copy

    def adopt(self, manifest: Manifest) -> Adoption:
        """Adopt a manifest of this directory, and return the adoption. Raises the errors of
        `Adoptions.adopt`, and ReplicaOfflineError if the directory is offline.
        """
        directory, store = self._directory, self._store()
        if directory.error is not None:
            raise ReplicaOfflineError(f"{directory!r} is offline: {directory.error}")
        if store is None:
            raise StoreClosedError(f"{directory.path} is being closed")
        adoption = shared(store, Adoptions).adopt(directory.writer.inbox.folder, manifest)
        self._copy(adoption)
        return adoption


def serve_inboxes(store: Store) -> None:
    """Start to adopt the manifests in the inboxes of a store that was opened. If the adopted ids can't be
    read yet, because too few replicas are in sync, the store opens without inboxes, and tries again later.
    Clients that seal a manifest wait until the ids are read.
    """
    try:
        shared(store, Inboxes).serve(store)
    except StoreClosedError:
        return
    except (SegstoreError, OSError) as error:
        log.warning("%r: staged appends are not adopted yet: %s", store, error)
        store.context.scheduler.after(RETRY, partial(_begin_again, weakref.ref(store)))


def _begin_again(ref: Callable[[], Store | None]) -> None:
    """Call `serve_inboxes` again, in another thread than the scheduler's, because an adoption waits for work
    of the scheduler's thread.
    """
    with suppress(IllegalStateError):  # raised at interpreter exit, when no thread can start
        Background(partial(_again, ref), "segstore-inboxes").start()


def _again(ref: Callable[[], Store | None]) -> None:
    store = ref()
    if store is not None and not store.context.closed:
        serve_inboxes(store)
