"""`FetchSession`: the client's side of a fetch session. A request names only partitions whose fetch position
has changed since the last request, and an answer has only partitions with new data (KIP-227; Kafka:
FetchSessionHandler).

Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from segstore.protocol.error_codes import Code
from segstore.protocol.fetch_epochs import INITIAL_EPOCH, NO_SESSION, next_epoch

K = TypeVar("K", bound=Hashable)
P = TypeVar("P", bound=Hashable)

SESSION_ERRORS = frozenset(
    {
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.FETCH_SESSION_TOPIC_ID_ERROR,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)
"""Error codes of a whole answer after which a new session is begun."""


class SessionRequest(NamedTuple, Generic[K, P]):
    """The session fields of a request. `positions` has the fetch position of each partition that the request
    names, in the order of the request. `forgotten` has the partitions to remove from the session.
    """

    positions: Mapping[K, P]
    forgotten: tuple[K, ...]
    session_id: int
    session_epoch: int


class FetchSession(Generic[K, P]):
    """One session with one broker. `epoch` is the session epoch of the next request. If the broker answers
    with the session id 0, it keeps no session, and each request names all partitions.
    """

    def __init__(self) -> None:
        self.id, self.epoch = NO_SESSION, INITIAL_EPOCH
        self._known: dict[K, P] = {}

    def ask(self, wanted: Mapping[K, P]) -> SessionRequest[K, P]:
        """Return the session fields of the next request, which fetches the partitions in `wanted` and no
        others.
        """
        if self.epoch == INITIAL_EPOCH:
            self._known = dict(wanted)
            return SessionRequest(wanted, (), self.id, self.epoch)
        changed = {key: at for key, at in wanted.items() if self._known.get(key) != at}
        forgotten = tuple(key for key in self._known if key not in wanted)
        self._known = dict(wanted)
        return SessionRequest(changed, forgotten, self.id, self.epoch)

    def named(self, key: K, position: P) -> None:
        """Record that the next request names only the partition `key`, with `position`. Called if the request
        is made from a template and not by `ask`.
        """
        self._known[key] = position

    def answered(self, session_id: int) -> None:
        """Store the session id of an answer without an error code, and go on to the next session epoch. If
        the id is 0, begin a new session.
        """
        if session_id == NO_SESSION:
            self.begin_anew()
            return
        self.id = session_id
        self.epoch = next_epoch(self.epoch)

    def begin_anew(self) -> None:
        """Begin a new session, because the connection was lost, the broker has dropped the session, or
        answers must have all partitions again. The next request names all partitions.
        """
        self.id, self.epoch, self._known = NO_SESSION, INITIAL_EPOCH, {}
