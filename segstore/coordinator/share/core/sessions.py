"""Share sessions: what a member fetches over one connection, request by request (KIP-932; Kafka:
ShareSessionCache, ShareSession, ShareSessionContext, PartitionRotateStrategy).

Owns nothing on disk. Threads: one at a time; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from segstore.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

P = TypeVar("P", bound=Hashable)
INITIAL, FINAL, LAST = 0, -1, 2**31 - 1
"""The epochs of a request that opens a session and of one that ends it, and the largest one: 1 is next."""


class SharedResult(NamedTuple):
    """What a request did in one partition, as far as it decides whether the answer has the partition."""

    has_records: bool = False
    has_error: bool = False
    acknowledged: bool = False


class ShareSession(Generic[P]):
    """The partitions that a member of a group fetches, in the order in which they were added.

    `next_epoch` is the one that the member's next request must carry.
    """

    __slots__ = ("_partitions", "connection", "group", "member", "next_epoch")

    def __init__(self, group: str, member: str, connection: Hashable) -> None:
        self.group, self.member, self.connection = group, member, connection
        self.next_epoch = 1
        self._partitions: dict[P, bool] = {}  # whether the next answer must have it

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, partition: object) -> bool:
        return partition in self._partitions

    def change(self, named: Iterable[P], forgotten: Iterable[P]) -> None:
        """Add the partitions that a request names, also those that are named for their acknowledgements
        alone, then remove the forgotten ones (Q90).
        """
        for partition in named:
            self._partitions.setdefault(partition, True)
        for partition in forgotten:
            self._partitions.pop(partition, None)

    def in_turn(self, epoch: int) -> list[P]:
        """Return the partitions in the order in which the request of an epoch reads them: each is the first
        one in turn (Q27).
        """
        partitions = list(self._partitions)
        at = epoch % len(partitions) if partitions and epoch > 0 else 0
        return partitions[at:] + partitions[:at]

    def answered(self, results: Mapping[P, SharedResult]) -> list[P]:
        """Return which of `results` the answer of a request has, in their order (Q91): partitions with
        records or acknowledgements, with an error now or the last time, and new ones.
        """
        told = []
        for partition, result in results.items():
            must = self._partitions.get(partition, False)
            if must or any(result):
                told.append(partition)
            if partition in self._partitions:
                self._partitions[partition] = result.has_error
        return told

    def _advance(self) -> None:
        self.next_epoch = 1 if self.next_epoch == LAST else self.next_epoch + 1


class ShareSessions(Generic[P]):
    """The share sessions of a server, at most `limit`; none is evicted for another (Q88)."""

    __slots__ = ("_by_connection", "_sessions", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sessions: dict[tuple[str, str], ShareSession[P]] = {}
        self._by_connection: dict[Hashable, dict[tuple[str, str], ShareSession[P]]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self) -> int:
        """Return the number of partitions of all sessions (Kafka: SharePartitionsCount)."""
        return sum(map(len, self._sessions.values()))

    def get(self, group: str, member: str) -> ShareSession[P] | None:
        """Return the session of a member, None if it has none."""
        return self._sessions.get((group, member))

    def is_current(self, session: ShareSession[P]) -> bool:
        """Return whether a session has neither ended nor been replaced: a fetch that waited for records may
        acquire them only then (Q93).
        """
        return self._sessions.get((session.group, session.member)) is session

    def fetch(
        self, group: str, member: str, epoch: int, connection: Hashable, acknowledges: bool
    ) -> ShareSession[P]:
        """Take a ShareFetch request: open a session with epoch 0, go on with the next one, or end it with -1
        (`is_current` is false then), after which nothing is fetched and the member's locks are released.

        A session that is replaced keeps its locks. Raises InvalidRequestError for acknowledgements with epoch
        0, ShareSessionLimitReachedError, ShareSessionNotFoundError and InvalidShareSessionEpochError; no
        session has changed then (Q89).
        """
        if epoch != INITIAL:
            return self._go_on(group, member, epoch)
        if acknowledges:
            raise InvalidRequestError("a share session can't begin with acknowledgements")
        if (group, member) not in self._sessions and len(self._sessions) >= self.limit:
            raise ShareSessionLimitReachedError(f"there are {self.limit} share sessions, which is the limit")
        return self._open(ShareSession(group, member, connection))

    def acknowledge(self, group: str, member: str, epoch: int) -> ShareSession[P]:
        """Take a ShareAcknowledge request, which can't begin a session. Raises as `fetch` does."""
        if epoch == INITIAL:
            raise InvalidShareSessionEpochError("a share session begins with a fetch, not with epoch 0 here")
        return self._go_on(group, member, epoch)

    def disconnected(self, connection: Hashable) -> Sequence[ShareSession[P]]:
        """End all sessions of a connection that has ended, and return them: their locks are released
        (Q93).
        """
        ended = list(self._by_connection.pop(connection, {}).values())
        for session in ended:
            del self._sessions[session.group, session.member]
        return ended

    def _open(self, session: ShareSession[P]) -> ShareSession[P]:
        key = session.group, session.member
        self._end(key)
        self._sessions[key] = session
        self._by_connection.setdefault(session.connection, {})[key] = session
        return session

    def _end(self, key: tuple[str, str]) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            of_connection = self._by_connection[session.connection]
            del of_connection[key]
            if not of_connection:
                del self._by_connection[session.connection]

    def _go_on(self, group: str, member: str, epoch: int) -> ShareSession[P]:
        session = self.get(group, member)
        if session is None:
            raise ShareSessionNotFoundError(f"member {member} of group {group} has no share session")
        if epoch == FINAL:
            self._end((group, member))
        elif epoch != session.next_epoch:
            raise InvalidShareSessionEpochError(
                f"the share session of member {member} is at epoch {session.next_epoch}, not {epoch}"
            )
        else:
            session._advance()
        return session
