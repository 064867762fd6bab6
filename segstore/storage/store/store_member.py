"""`StoreMember`: a process that shares a store, as people are told of it. Nothing is on disk. Threads: any;
immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from segstore.storage.shared.members import SharedMember

HOST, GUEST = "host", "guest"
"""The roles of members."""


class StoreMember(NamedTuple):
    """A process that shares a store: its `slot`, its `pid` in its own pid namespace, its `role` ("host" or
    "guest"), its `version` of segstore, and since when it is a member, `since_ms` (ms since the epoch).
    Nothing is decided by these: whether a member lives is told by its lock.
    """

    slot: int
    pid: int
    role: str
    version: str
    since_ms: int


def told_of(members: Sequence[SharedMember]) -> list[StoreMember]:
    """Return members as people are told of them."""
    return [
        StoreMember(each.slot, each.pid, HOST if each.is_host else GUEST, each.version, each.since_ms)
        for each in members
    ]
