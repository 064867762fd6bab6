"""`StoreMember`: a process that shares a store, as people are told of it; and the calls that a guest refuses.
Nothing is on disk. Threads: any; immutable.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.errors import IllegalStateError

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


def refused_in_guest(call: str) -> IllegalStateError:
    """Return the error for a call that only the host of a shared store can make, such as "create_topic()"."""
    return IllegalStateError(
        f"{call}: this process is a guest of the store, and that is the host's work: call it in the host"
        " (Store.host_pid), or by a client of Kafka's that is connected to `segstore serve --shared`"
    )
