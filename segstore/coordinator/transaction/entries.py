"""What is known of each transactional id, each behind a lock of its own (Kafka: TransactionStateManager).

On disk: `__transaction_state`, through `state_log`; what is here is what is written there.
Threads: any. Who reads or changes an entry holds its lock; `locked` gives it with that. The lock of the table
is held for no longer than a look.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from segstore.coordinator.transaction.metadata import State, TransactionMetadata
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import ProducerFencedError, TransactionalIdNotFoundError
from segstore.mutex import Mutex

Identity = tuple[int, int]
"""Producer id and epoch."""


class Entry:
    """One transactional id; `metadata` is what its log says, None before the first record of it.

    `orphan`: what is ongoing is to be aborted. It was loaded, so that whoever began it is gone, or it is open
    for too long. `ending`: who asked for the last end, and may ask again, though its epoch is over.
    """

    __slots__ = ("ending", "lock", "metadata", "orphan", "transactional_id")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        self.transactional_id, self.metadata = transactional_id, metadata
        self.orphan = metadata is not None
        self.ending: Identity | None = None
        self.lock = Mutex()

    @property
    def known(self) -> TransactionMetadata:
        """`metadata` of an id of which there is a record."""
        assert self.metadata is not None
        return self.metadata

    def check(self, identity: Identity) -> TransactionMetadata:
        """ProducerFencedError unless `identity` is that of the id's last producer."""
        known = self.known
        if (known.producer_id, known.producer_epoch) != identity:
            raise ProducerFencedError(
                f"producer {identity[0]} of epoch {identity[1]} is fenced: {self.transactional_id!r} "
                f"has gone on to producer {known.producer_id} of epoch {known.producer_epoch}"
            )
        return known


class Entries:
    """All transactional ids of a store, first as they were loaded."""

    def __init__(self, log: TransactionStateLog, loaded: Mapping[str, TransactionMetadata]) -> None:
        self._log, self._lock = log, Mutex()
        self._entries = {name: Entry(name, metadata) for name, metadata in loaded.items()}

    @contextlib.contextmanager
    def locked(self, transactional_id: str, make: bool = False) -> Iterator[Entry]:
        """Within, nobody else reads or changes it. TransactionalIdNotFoundError: there is none to `make`."""
        while True:
            with self._lock:
                entry = self._entries.get(transactional_id)
                if entry is None:
                    if not make:
                        raise TransactionalIdNotFoundError(
                            f"there is no transactional_id {transactional_id!r}: it may have expired"
                        )
                    entry = self._entries[transactional_id] = Entry(transactional_id, None)
            with entry.lock:
                if self._entries.get(transactional_id) is entry:  # it may have expired while we waited
                    yield entry
                    return

    def all(self) -> list[Entry]:
        """Those that there are now; their locks are not held."""
        with self._lock:
            return list(self._entries.values())

    # --- with the entry's lock held -------------------------------------------------------

    def write(self, entry: Entry, metadata: TransactionMetadata, asked: Identity | None = None) -> None:
        """What is in the log is what is known: if it can't be written, nothing has changed. `asked`: who ends
        a transaction by it, and may ask again with the epoch that is over then.
        """
        self._log.append(entry.transactional_id, metadata)
        entry.metadata, entry.orphan = metadata, False
        if metadata.state not in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            entry.ending = asked  # who ended the one before has heard of it

    def sync(self, entry: Entry) -> None:
        """What was written is to survive power loss. StorageError."""
        self._log.sync(entry.transactional_id)

    def forget(self, entry: Entry, now: int) -> None:
        """The id has expired."""
        self._log.append(entry.transactional_id, None)
        entry.metadata = entry.known.expired(now)
        with self._lock:
            self._entries.pop(entry.transactional_id, None)
