"""`WireSessions`: the share sessions of a server. If a connection is closed, its sessions are closed too
(KIP-932; Kafka: ShareSessionCache, SharePartitionManager.newContext).

Owns nothing on disk. Threads: the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from segstore.coordinator.share.core.sessions import FINAL, INITIAL, ShareSession, ShareSessions
from segstore.server.request import Channel

WirePartition = tuple[bytes, int]
"""(topic id as 16 bytes, partition)."""
WireSession = ShareSession[WirePartition]


class WireSessions:
    """The share sessions of a server, at most `limit` (group.share.max.share.sessions).

    If a member begins a new session, `ended(session, False)` is called with the member's earlier session. If
    the connection of a session is closed, `ended(session, True)` is called.
    """

    def __init__(self, limit: int, ended: Callable[[WireSession, bool], object]) -> None:
        self._sessions = ShareSessions[WirePartition](limit)
        self._ended = ended
        self._connections: set[int] = set()
        self._by_group: dict[str, set[WireSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """The total number of partitions in all sessions (Kafka: SharePartitionsCount). Any thread may read
        this property.
        """
        # The sets are copied, because the loop's thread may change them.
        groups = list(self._by_group.values())
        return sum(len(session) for of_group in groups for session in list(of_group))

    def is_current(self, session: WireSession) -> bool:
        """Return whether a session is open: neither closed nor replaced by a newer session of the member."""
        return self._sessions.is_current(session)

    def has_group(self, group: str) -> bool:
        """Return whether a group has a session."""
        return group in self._by_group

    def fetch(self, group: str, member: str, epoch: int, channel: Channel, acknowledges: bool) -> WireSession:
        """Return the session of a ShareFetch request. Raises the errors of `ShareSessions.fetch`."""
        before = self._sessions.get(group, member)
        session = self._sessions.fetch(group, member, epoch, id(channel), acknowledges)
        if epoch == INITIAL:
            self._attend(channel)
            self._by_group.setdefault(group, set()).add(session)
            if before is not None:
                self._forget(before)
                self._ended(before, False)
        elif epoch == FINAL:
            self._forget(session)
        return session

    def acknowledge(self, group: str, member: str, epoch: int) -> WireSession:
        """Return the session of a ShareAcknowledge request. Raises the errors of
        `ShareSessions.acknowledge`.
        """
        session = self._sessions.acknowledge(group, member, epoch)
        if epoch == FINAL:
            self._forget(session)
        return session

    def _forget(self, session: WireSession) -> None:
        of_group = self._by_group[session.group]
        of_group.discard(session)
        if not of_group:
            del self._by_group[session.group]

    def _attend(self, channel: Channel) -> None:
        if id(channel) not in self._connections:
            self._connections.add(id(channel))
            channel.when_closed(partial(self._closed, id(channel)))

    def _closed(self, connection: int) -> None:
        """Close the sessions that used a connection which was closed."""
        self._connections.discard(connection)
        for session in self._sessions.disconnected(connection):
            self._forget(session)
            self._ended(session, True)

    def close(self) -> None:
        """Close all sessions, because the server is being closed."""
        for connection in list(self._connections):
            self._closed(connection)
