"""`StoreMember`: a process that shares a store, for display. Nothing is on disk. Threads: any, because a
`StoreMember` never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from segstore.storage.shared.members import SharedMember

HOST, GUEST = "host", "guest"
"""The values of `StoreMember.role`."""


class StoreMember(NamedTuple):
    """A process that shares a store: its `slot`, its `pid` in its own pid namespace, its `role` ("host" or
    "guest"), its `version` of segstore, and the time `since_ms` when it joined (ms since the epoch). The
    fields are for display only.
    """

    slot: int
    pid: int
    role: str
    version: str
    since_ms: int


def store_members(members: Sequence[SharedMember]) -> list[StoreMember]:
    """Convert members for display."""
    return [
        StoreMember(each.slot, each.pid, HOST if each.is_host else GUEST, each.version, each.since_ms)
        for each in members
    ]
