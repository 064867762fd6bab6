"""Share sessions: a session remembers the partitions that a member fetches over one connection, so that not
every request has to name them (KIP-932; Kafka: ShareSessionCache, ShareSession, ShareSessionContext,
PartitionRotateStrategy).

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
"""The epoch that opens a session, the epoch that closes it, and the largest epoch, which is followed by 1."""


class SharedResult(NamedTuple):
    """The result of a request in one partition, which decides whether the answer includes the partition."""

    has_records: bool = False
    has_error: bool = False
    acknowledged: bool = False


class ShareSession(Generic[P]):
    """The partitions that a member of a group fetches, in the order in which they were added.

    `next_epoch` is the epoch that the member's next request must have.
    """

    __slots__ = ("_partitions", "connection", "group", "member", "next_epoch")

    def __init__(self, group: str, member: str, connection: Hashable) -> None:
        self.group, self.member, self.connection = group, member, connection
        self.next_epoch = 1
        # A value is True if the next answer must include the partition.
        self._partitions: dict[P, bool] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, partition: object) -> bool:
        return partition in self._partitions

    def change(self, named: Iterable[P], forgotten: Iterable[P]) -> None:
        """Add the partitions that a request fetches or acknowledges, then remove the partitions that the
        request forgets (rule Q90).
        """
        for partition in named:
            self._partitions.setdefault(partition, True)
        for partition in forgotten:
            self._partitions.pop(partition, None)

    def in_turn(self, epoch: int) -> list[P]:
        """Return the partitions in the order in which the request with this epoch reads them. With each epoch
        another partition comes first (rule Q27).
        """
        partitions = list(self._partitions)
        at = epoch % len(partitions) if partitions and epoch > 0 else 0
        return partitions[at:] + partitions[:at]

    def answered(self, results: Mapping[P, SharedResult]) -> list[P]:
        """Return the partitions that the answer includes, in the order of `results` (rule Q91). These are the
        partitions with records, with acknowledgements, with an error, or with an error in the last answer,
        and the partitions that are new in the session.
        """
        included = []
        for partition, result in results.items():
            must = self._partitions.get(partition, False)
            if must or any(result):
                included.append(partition)
            if partition in self._partitions:
                self._partitions[partition] = result.has_error
        return included

    def _advance(self) -> None:
        self.next_epoch = 1 if self.next_epoch == LAST else self.next_epoch + 1


class ShareSessions(Generic[P]):
    """The share sessions of a server, at most `limit`. A new session never evicts another one (rule Q88)."""

    __slots__ = ("_by_connection", "_sessions", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sessions: dict[tuple[str, str], ShareSession[P]] = {}
        self._by_connection: dict[Hashable, dict[tuple[str, str], ShareSession[P]]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self) -> int:
        """Return the sum of the numbers of partitions of all sessions (Kafka: SharePartitionsCount)."""
        return sum(map(len, self._sessions.values()))

    def get(self, group: str, member: str) -> ShareSession[P] | None:
        """Return the session of a member, or None."""
        return self._sessions.get((group, member))

    def is_current(self, session: ShareSession[P]) -> bool:
        """Return whether a session was neither closed nor replaced. A fetch that has waited for records must
        check this before it acquires them (rule Q93).
        """
        return self._sessions.get((session.group, session.member)) is session

    def fetch(
        self, group: str, member: str, epoch: int, connection: Hashable, acknowledges: bool
    ) -> ShareSession[P]:
        """Handle the session epoch of a ShareFetch request, and return its session. Epoch 0 opens a session,
        or replaces the member's session; the member's locks stay. The next epoch continues the session. Epoch
        -1 closes it: the caller must then fetch nothing, and release the member's locks.

        Raises ShareSessionLimitReachedError, ShareSessionNotFoundError, InvalidShareSessionEpochError, and
        InvalidRequestError if a request with epoch 0 has acknowledgements. A request that raises an error
        changes no session (rule Q89).
        """
        if epoch != INITIAL:
            return self._go_on(group, member, epoch)
        if acknowledges:
            raise InvalidRequestError("a share session can't begin with acknowledgements")
        if (group, member) not in self._sessions and len(self._sessions) >= self.limit:
            raise ShareSessionLimitReachedError(f"there are {self.limit} share sessions, which is the limit")
        return self._open(ShareSession(group, member, connection))

    def acknowledge(self, group: str, member: str, epoch: int) -> ShareSession[P]:
        """Handle the session epoch of a ShareAcknowledge request, and return its session. The request can't
        open a session: epoch 0 raises InvalidShareSessionEpochError. Raises the errors of `fetch`.
        """
        if epoch == INITIAL:
            raise InvalidShareSessionEpochError("a share session begins with a fetch, not with epoch 0 here")
        return self._go_on(group, member, epoch)

    def disconnected(self, connection: Hashable) -> Sequence[ShareSession[P]]:
        """Close all sessions of a closed connection, and return them. The caller must release the locks of
        the sessions' members (rule Q93).
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
