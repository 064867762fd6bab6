"""Share sessions (KIP-932; Kafka: ShareSessionCache, ShareSession, SharePartitionManager.newContext): which
partitions a member of a share group fetches, kept between its requests.

Nothing is on disk. Threads: the loop's. A session ends by its member's final epoch, or with the connection
that its last request came by; no session gives way to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from segstore.protocol.error_codes import Code
from segstore.protocol.fetch_epochs import FINAL_EPOCH, INITIAL_EPOCH, next_epoch
from segstore.server.request import Channel

ShareSessionKey = tuple[str, str]
"""A group and a member."""
WirePartition = tuple[bytes, int]
"""A topic id as the wire has it, and a partition."""


class ShareSession:
    """The partitions that a member fetches. `epoch` is that of the member's next request."""

    __slots__ = ("_untold", "channel", "epoch", "group", "member", "partitions")

    def __init__(self, group: str, member: str, channel: Channel) -> None:
        self.group, self.member, self.channel = group, member, channel
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.partitions: dict[WirePartition, None] = {}
        self._untold: set[WirePartition] = set()

    @property
    def key(self) -> ShareSessionKey:
        return self.group, self.member

    def update(self, added: Iterable[WirePartition], forgotten: Iterable[WirePartition]) -> None:
        """Fetch more partitions, then some no longer."""
        for key in added:
            if key not in self.partitions:
                self.partitions[key] = None
                self._untold.add(key)
        for key in forgotten:
            self.partitions.pop(key, None)
            self._untold.discard(key)

    def in_turn(self, epoch: int) -> list[WirePartition]:
        """Return the partitions in the order in which the request of an epoch fetches (Kafka:
        PartitionRotateStrategy).
        """
        found = list(self.partitions)
        at = epoch % len(found) if found else 0
        return found[at:] + found[:at]

    def must_tell(self, key: WirePartition, code: int) -> bool:
        """Return whether an answer has to name a partition without records: it is new to the session, or it
        has an error now, or had one in the answer before (Kafka: CachedSharePartition).
        """
        if key not in self.partitions:
            return code != Code.NONE
        untold = key in self._untold
        self._untold.discard(key)
        if code != Code.NONE:
            self._untold.add(key)
        return untold or code != Code.NONE


class ShareSessions:
    """All sessions of a server, at most `most` (group.share.max.share.sessions). `ended` is called with each
    session that ends with its connection.
    """

    def __init__(self, most: int, ended: Callable[[ShareSession], object]) -> None:
        self._most, self._ended = most, ended
        self._sessions: dict[ShareSessionKey, ShareSession] = {}
        self._of_channels: dict[int, dict[ShareSessionKey, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Return the number of partitions in all sessions (Kafka: SharePartitionsCount)."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def has(self, session: ShareSession) -> bool:
        """Return whether a session has not ended."""
        return self._sessions.get(session.key) is session

    def of_group(self, group: str) -> Collection[ShareSession]:
        """Return the sessions of a group."""
        return [session for session in self._sessions.values() if session.group == group]

    def open(
        self, key: ShareSessionKey, epoch: int, has_acknowledgements: bool, channel: Channel
    ) -> ShareSession | Code:
        """Return the session of a fetch, or why the fetch is refused as a whole.

        Epoch 0 begins a session in place of the one that is there, whose locks stay. The final epoch leaves
        the session as it is: see `end`.
        """
        if epoch != INITIAL_EPOCH:
            return self.go_on(key, epoch, channel)
        if has_acknowledgements:
            return Code.INVALID_REQUEST
        if key not in self._sessions and len(self._sessions) >= self._most:
            return Code.SHARE_SESSION_LIMIT_REACHED
        before = self._sessions.get(key)
        if before is not None:
            self.end(before)
        session = self._sessions[key] = ShareSession(*key, channel)
        self._bind(session, channel)
        return session

    def go_on(self, key: ShareSessionKey, epoch: int, channel: Channel) -> ShareSession | Code:
        """Return the session of a request that begins none, which takes the session to its next epoch."""
        session = self._sessions.get(key)
        if session is None:
            return Code.INVALID_SHARE_SESSION_EPOCH if epoch == INITIAL_EPOCH else Code.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            return Code.INVALID_SHARE_SESSION_EPOCH
        session.epoch = next_epoch(epoch)
        if session.channel is not channel:
            self._unbind(session)
            self._bind(session, channel)
        return session

    def end(self, session: ShareSession) -> None:
        """End a session. What its member has acquired is the caller's to release."""
        if self.has(session):
            del self._sessions[session.key]
            self._unbind(session)

    def _bind(self, session: ShareSession, channel: Channel) -> None:
        """Have a session end with a connection."""
        session.channel = channel
        if id(channel) not in self._of_channels:
            self._of_channels[id(channel)] = {}
            channel.when_closed(partial(self._closed, id(channel)))
        self._of_channels[id(channel)][session.key] = None

    def _unbind(self, session: ShareSession) -> None:
        self._of_channels.get(id(session.channel), {}).pop(session.key, None)

    def _closed(self, channel: int) -> None:
        """End all sessions of a connection, several if its members share it (Q93)."""
        for key in self._of_channels.pop(channel):
            session = self._sessions.pop(key)
            self._ended(session)

    def clear(self) -> list[ShareSession]:
        """End all sessions, and return them."""
        ended = list(self._sessions.values())
        for session in ended:
            self.end(session)
        return ended
