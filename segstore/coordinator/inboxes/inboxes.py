"""`Inboxes`: the inboxes of a replicated store, one in each of its directories.

Whoever stages does so in any of them. What is sealed there is adopted by a thread of that inbox, so one whose
disk hangs holds up no other. All know the same ids: `__segstore_adopted` has them, and each directory a copy
in `.segstore/adopted`, in which its sealers look an id up.

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

RETRY = 1.0  # seconds
COPYING = 10.0
"""Seconds that an adoption waits at most for directories to copy its id."""


class Inboxes:
    """A store has one; `serve` begins. See `WritingSide.inbox`."""

    def __init__(self, store: Store) -> None:
        """Prepare. Raises what reading the adopted ids raises."""
        self._side, self._store = side_of(store), weakref.ref(store)
        self._adoptions = shared(store, Adoptions)
        self._ids = self._adoptions.ids

    def serve(self, store: Store) -> None:
        """Adopt what waits in the inboxes of all directories, and from now on what is sealed. Raises what an
        append raises, where ids of one directory can't be made known to all.
        """
        side = self._side
        held = [adoption for directory in side.manager.online for adoption in directory.writer.inbox.ids]
        self._ids.bring(store, held)
        side.inbox, side.directory_began = self, self.begin
        for directory in side.manager.online:
            self.begin(directory)

    def begin(self, directory: DataDirectory) -> None:
        """Serve the inbox of a directory; one whose disk refuses goes offline."""
        adopter = _Adopter(self._store, directory, self._copy)
        try:
            directory.writer.inbox.begin_with(adopter, self._ids.all(), ENDING)
        except OSError as error:
            self._side.manager.failed(directory.broker, error)

    def _copy(self, adoption: Adoption) -> None:
        """Let the sealers of all directories find an id. One that has no room, or hangs, gets it later."""
        self._side.manager.on_each(
            lambda directory: directory.writer.inbox.note(adoption),
            lambda directory: not directory.hangs,
            COPYING,
        )

    def adopt(self, id_: str, files: Sequence[StagedFile], /) -> Adoption:
        """See `Inbox.adopt`: in whichever directory the files lie."""
        for directory in self._side.manager.online:
            inbox = directory.writer.inbox
            if all(inbox.folder.files.exists(inbox.folder.staged(file)) for file in files):
                return inbox.adopt(id_, files)
        raise StagedFilesError(f"{id_!r}: no directory of the store has all of the staged files")

    def close(self) -> None:
        """Wait for the adoptions that are under way; what else is sealed waits for the next open."""
        self._adoptions.close()
        for directory in self._side.manager.directories.values():
            directory.writer.inbox.close()


class _Adopter:
    """See `Adopts`. The store is not referred to, so that one that nobody uses any more can end."""

    def __init__(
        self,
        store: Callable[[], Store | None],
        directory: DataDirectory,
        copy: Callable[[Adoption], None],
    ) -> None:
        self._store, self._directory, self._copy = store, directory, copy

    def adopt(self, manifest: Manifest) -> Adoption:
        """See `Adoptions.adopt`. Raises ReplicaOfflineError where the directory is offline."""
        directory, store = self._directory, self._store()
        if directory.error is not None:
            raise ReplicaOfflineError(f"{directory!r} is offline: {directory.error}")
        if store is None:
            raise StoreClosedError(f"{directory.path} is being closed")
        adoption = shared(store, Adoptions).adopt(directory.writer.inbox.folder, manifest)
        self._copy(adoption)
        return adoption


def serve_inboxes(store: Store) -> None:
    """Serve the inboxes of a store that was opened. Where the adopted ids can't be read yet, since too few
    replicas are in sync, the store is open all the same, and sealers wait until they can.
    """
    try:
        shared(store, Inboxes).serve(store)
    except StoreClosedError:
        return
    except (SegstoreError, OSError) as error:
        log.warning("%r: staged appends are not adopted yet: %s", store, error)
        store.context.scheduler.after(RETRY, partial(_begin_again, weakref.ref(store)))


def _begin_again(ref: Callable[[], Store | None]) -> None:
    """Serve the inboxes in a thread of their own: an adoption needs what the scheduler does meanwhile."""
    with suppress(IllegalStateError):  # the interpreter ends
        Background(partial(_again, ref), "segstore-inboxes").start()


def _again(ref: Callable[[], Store | None]) -> None:
    store = ref()
    if store is not None and not store.context.closed:
        serve_inboxes(store)
