"""`ScramCredentials`: the users of a store and what it keeps of their passwords (KIP-554; Kafka: ScramImage).

On disk: what the store keeps (`storage.store.kept_files`). Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.coordinator.shared import shared
from segstore.errors import InvalidArgumentError
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.meta.scram_credentials import (
    MECHANISMS,
    Credentials,
    ScramCredential,
    read_credentials,
)
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store

Changes = Mapping[tuple[str, str], ScramCredential | None]
"""By user and mechanism; None removes a credential."""


class ScramCredentials:
    """Raises CorruptCheckpointError, StorageError where the credentials can't be read."""

    def __init__(self, store: Store) -> None:
        side = store.engine
        self._context, self._lock = store.context, Mutex()
        self._writer = None if isinstance(side, StoreReader) or not store.keeps else side
        with os_errors():
            self._held: Credentials = (
                read_credentials(self._context.files, self._context.root)
                if self._writer is None
                else self._writer.kept.credentials()
            )

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def find(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return a user's credential; None where there is none."""
        return self._held.get(user, {}).get(mechanism)

    def all(self) -> Credentials:
        """Return all credentials, by user and mechanism."""
        return self._held

    def alter(self, changes: Changes) -> None:
        """Make and remove credentials, all of them together, durable on return. A user without any is none.
        Raises InvalidArgumentError, ReadOnlyError, StorageError, StoreClosedError.
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
            merged = {user: dict(held) for user, held in self._held.items()}
            for (user, mechanism), credential in changes.items():
                held = merged.setdefault(user, {})
                if credential is None:
                    held.pop(mechanism, None)
                else:
                    held[mechanism] = credential
            kept = {user: held for user, held in merged.items() if held}
            with os_errors():
                self._writer.kept.set_credentials(kept)
            self._held = kept


def scram_credentials(store: Store) -> ScramCredentials:
    """Return the credentials of an open store; those of one that is open for reading are as they are now.
    Raises CorruptCheckpointError, StorageError, StoreClosedError, ForkedError.
    """
    if store.keeps:
        return shared(store, ScramCredentials)
    store.context.check_open()
    return ScramCredentials(store)
