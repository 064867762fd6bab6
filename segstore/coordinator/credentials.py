"""`ScramCredentials`: the SCRAM credentials of a store's users (KIP-554; Kafka: ScramImage).

On disk: the store's file of credentials (`storage.store.kept_files`). Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.coordinator.shared import shared
from segstore.errors import InvalidArgumentError
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.meta.scram_credentials import MECHANISMS, SCRAM, Credentials, ScramCredential
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store

Changes = Mapping[tuple[str, str], ScramCredential | None]
"""Maps (user, mechanism) to the new credential; None removes the user's credential for the mechanism."""


class ScramCredentials:
    """The credentials of a store's users. The constructor raises CorruptCheckpointError or StorageError if
    the credentials can't be read.
    """

    def __init__(self, store: Store) -> None:
        side = store.engine
        self._context, self._lock = store.context, Mutex()
        self._writer = None if isinstance(side, StoreReader) or not store.keeps else side
        with os_errors():
            self._held: Credentials = (
                (SCRAM.read(self._context.files, self._context.root) or {})
                if self._writer is None
                else self._writer.kept.credentials()
            )

    def close(self) -> None:
        """Do nothing: the object holds no resource."""

    def find(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return a user's credential for a mechanism; None if there is none."""
        return self._held.get(user, {}).get(mechanism)

    def all(self) -> Credentials:
        """Return all credentials, first by user, then by mechanism. The caller must not change them."""
        return self._held

    def alter(self, changes: Changes) -> None:
        """Make all changes together; they are durable when this method returns. A user whose last credential
        is removed is removed too. Raises InvalidArgumentError, ReadOnlyError, StorageError, StoreClosedError.
        """
        self._context.check_writable()
        if self._writer is None:
            from segstore.storage.shared.refused_calls import refused_in_guest

            raise refused_in_guest("a change of credentials")
        for user, mechanism in changes:
            if not user or mechanism not in MECHANISMS:
                raise InvalidArgumentError(
                    f"user {user!r}, mechanism {mechanism!r}: a user has a name, and mechanisms are "
                    f"{', '.join(MECHANISMS)}"
                )
        with self._lock:
            merged = {user: dict(by_mechanism) for user, by_mechanism in self._held.items()}
            for (user, mechanism), credential in changes.items():
                by_mechanism = merged.setdefault(user, {})
                if credential is None:
                    by_mechanism.pop(mechanism, None)
                else:
                    by_mechanism[mechanism] = credential
            kept = {user: by_mechanism for user, by_mechanism in merged.items() if by_mechanism}
            with os_errors():
                self._writer.kept.set_credentials(kept)
            self._held = kept


def scram_credentials(store: Store) -> ScramCredentials:
    """Return the credentials of an open store. If the store is open only for reading, they are a snapshot.
    Raises CorruptCheckpointError, StorageError, StoreClosedError, ForkedError.
    """
    if store.keeps:
        return shared(store, ScramCredentials)
    store.context.check_open()
    return ScramCredentials(store)
