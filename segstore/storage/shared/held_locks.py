"""Finds the locks of a shared store's logs that are held now, for display.

`.segstore/shared` is only read. Threads: any, because the function has no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from segstore.storage.shared.shared_file import SharedFile

_WAITED, _WHO_BITS, _INCARNATION = 1 << 31, 2, 32


class HeldLock(NamedTuple):
    """A lock that a member holds. `key` identifies the partition whose log is locked (`slot_key`). `slot` and
    `incarnation` identify the member. `kind` is "append" or "sync".
    """

    key: int
    kind: str
    slot: int
    incarnation: int


def held_locks(shared: SharedFile) -> Iterator[HeldLock]:
    """Yield the locks that are held. A lock of a dead member is yielded too. Raises StorageError."""
    number = 0
    while (log := shared.log_if_there(number)) is not None:
        for kind, word in (("append", int(log.lock)), ("sync", int(log.sync_lock))):
            if low := word & (_WAITED - 1):
                yield HeldLock(int(log.key), kind, low - 1 >> _WHO_BITS, word >> _INCARNATION)
        number += 1
