"""Fetch sessions (KIP-227; Kafka: FetchSession.scala): the server remembers the partitions of a consumer's
fetch, so that the next requests and answers have only changed partitions.

Owns nothing on disk. Threads: the loop's thread. A session does not belong to a connection. The session is
open until its client closes it, or it is evicted for a new session.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from segstore.integers import INT32_MAX
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.protocol.fetch_epochs import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from segstore.server.logs import Logs

IDS_SINCE = 13
"""The first version of Fetch that has topic ids in place of topic names (KIP-516)."""
EVICTION_MS = 120_000
"""A session that was idle for longer than this may be evicted for a new session (Kafka:
MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS).
"""
_Response = structs("FetchResponse")
_Topic = _Response.FetchableTopicResponse
Key = tuple[Any, int]


class Wanted:
    """A fetched partition (Kafka: CachedPartition). `topic` is None if no topic has the id `topic_id`.
    `high_watermark` and `start_offset` are the values of the session's last answer, -1 before the first
    answer.
    """

    __slots__ = (
        *("topic", "topic_id", "partition", "offset", "max_bytes", "current_epoch", "fetched_epoch"),
        *("high_watermark", "start_offset"),
    )  # fmt: skip

    def __init__(self, topic: str | None, topic_id: bytes, asked: Any) -> None:
        self.topic, self.topic_id, self.partition = topic, topic_id, asked.partition
        self.high_watermark = self.start_offset = -1
        self.offset, self.max_bytes = asked.fetch_offset, asked.partition_max_bytes
        self.current_epoch, self.fetched_epoch = asked.current_leader_epoch, asked.last_fetched_epoch

    def update(self, other: Wanted) -> None:
        """Set the offset, maximum size and epochs to the values of a newer request."""
        self.offset, self.max_bytes = other.offset, other.max_bytes
        self.current_epoch, self.fetched_epoch = other.current_epoch, other.fetched_epoch

    def note_answer(self, data: Any) -> bool:
        """Store the high watermark and log start offset of `data`, the partition's struct in the answer.
        Return whether an incremental answer must include this struct.
        """
        must: bool = data.high_watermark != self.high_watermark or data.log_start_offset != self.start_offset
        must = must or bool(data.records) or data.error_code != Code.NONE or data.diverging_epoch.epoch >= 0
        # -1 differs from every high watermark, so that the answer after an error includes the partition.
        self.high_watermark = -1 if data.error_code != Code.NONE else data.high_watermark
        self.start_offset = data.log_start_offset
        return must


class FetchedPartition(NamedTuple):
    """A partition, and `data`, its `PartitionData` struct for the answer."""

    wanted: Wanted
    data: Any


def grouped(fetched: Iterable[FetchedPartition]) -> list[Any]:
    """Return the answer's topic structs, in the order of `fetched`. Adjacent partitions of the same topic are
    in one struct.
    """
    topics: list[Any] = []
    last = None
    for wanted, data in fetched:
        if last is None or last.topic != wanted.topic or last.topic_id != wanted.topic_id:
            topics.append(_Topic(topic=wanted.topic or "", topic_id=wanted.topic_id))
        topics[-1].partitions.append(data)
        last = wanted
    return topics


class ServedSession:
    """A fetch session: the partitions that one client fetches, in the order of the next answer."""

    def __init__(self, session_id: int, uses_ids: bool, wanted: dict[Key, Wanted], now_ms: int) -> None:
        self.id, self.uses_ids, self.wanted = session_id, uses_ids, wanted
        self.created_ms = self.used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)

    def update(self, asked: dict[Key, Wanted], forgotten: Iterable[Key]) -> None:
        """Add or change the partitions in `asked`, then remove the partitions in `forgotten`."""
        for key, wanted in asked.items():
            known = self.wanted.get(key)
            if known is None:
                self.wanted[key] = wanted
            else:
                known.update(wanted)
        for key in forgotten:
            self.wanted.pop(key, None)

    def changed(self, fetched: Iterable[FetchedPartition]) -> Iterator[FetchedPartition]:
        """Yield the partitions that an incremental answer must include. Partitions with records move to the
        end of the order, so that the other partitions come first in the next answer.
        """
        for each in fetched:
            if each.wanted.note_answer(each.data):
                if each.data.records:
                    self.give_way(each.wanted)
                yield each

    def give_way(self, wanted: Wanted) -> None:
        """Move a partition to the end of the session's order."""
        key = key_of(wanted, self.uses_ids)
        if self.wanted.get(key) is wanted:
            self.wanted[key] = self.wanted.pop(key)


def key_of(wanted: Wanted, uses_ids: bool) -> Key:
    """Return the key of a partition in a session's `wanted`: (topic id or name, partition)."""
    return (wanted.topic_id if uses_ids else wanted.topic), wanted.partition


# --- contexts of single requests ---------------------------------------------------------------


class FetchContext(Protocol):
    """The partitions of one request, and the methods that make the request's answer."""

    @property
    def wanted(self) -> Iterable[Wanted]:
        """The partitions to read; the most urgent partition comes first."""

    def answer(self, fetched: list[FetchedPartition]) -> Any:
        """Return the response's body. Store in the session the offsets that the body has."""

    def throttled(self) -> Any:
        """Return a response without partitions; the session does not change."""


class Sessionless:
    """A request without a session."""

    def __init__(self, wanted: dict[Key, Wanted]) -> None:
        self.wanted: Iterable[Wanted] = wanted.values()

    def answer(self, fetched: list[FetchedPartition]) -> Any:
        """Return an answer with all partitions."""
        return _Response(responses=grouped(fetched))

    def throttled(self) -> Any:
        """Return an answer without partitions."""
        return _Response()


class Full(Sessionless):
    """A request that begins a session."""

    def __init__(self, wanted: dict[Key, Wanted], uses_ids: bool, sessions: FetchSessions) -> None:
        super().__init__(wanted)
        self._asked, self._uses_ids, self._sessions = wanted, uses_ids, sessions

    def answer(self, fetched: list[FetchedPartition]) -> Any:
        """Answer with all partitions; begin a session if a slot is free."""
        session_id = self._sessions.begin(self._asked, self._uses_ids)
        if session_id != NO_SESSION:
            for wanted, data in fetched:
                wanted.note_answer(data)
        return _Response(session_id=session_id, responses=grouped(fetched))


class Incremental:
    """A request of an open session. `epoch` is the session's epoch after this request."""

    def __init__(self, session: ServedSession, epoch: int) -> None:
        self.session, self.epoch = session, epoch

    @property
    def wanted(self) -> Iterable[Wanted]:
        return list(self.session.wanted.values())

    def answer(self, fetched: list[FetchedPartition]) -> Any:
        """Answer with the changed partitions, or an error if a newer request has advanced the session."""
        if self.session.epoch != self.epoch:
            return self._outdated()
        changed = list(self.session.changed(fetched))
        return _Response(session_id=self.session.id, responses=grouped(changed))

    def throttled(self) -> Any:
        """Return an answer without partitions."""
        if self.session.epoch != self.epoch:
            return self._outdated()
        return _Response(session_id=self.session.id)

    def _outdated(self) -> Any:
        return _Response(error_code=Code.INVALID_FETCH_SESSION_EPOCH, session_id=self.session.id)


# --- sessions ----------------------------------------------------------------------------------


class FetchSessions:
    """The sessions of a server, at most `slots` (max.incremental.fetch.session.cache.slots; Kafka:
    FetchSessionCache). `clock` returns ms.
    """

    def __init__(self, slots: int, clock: Callable[[], int], rng: random.Random) -> None:
        self._slots, self._clock, self._rng = slots, clock, rng
        self._sessions: dict[int, ServedSession] = {}  # the least recently used session is first

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, version: int, body: Any, logs: Logs) -> FetchContext | Code:
        """Return the context of a request, or its top-level error code (Kafka: FetchManager.newContext).

        A request with epoch 0 begins a session, and a request with epoch -1 has no session. Both kinds of
        request close the session whose id they have.
        """
        uses_ids, epoch = version >= IDS_SINCE, body.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(body.session_id, None)
            asked = _asked(body, uses_ids, logs)
            return Sessionless(asked) if epoch == FINAL_EPOCH else Full(asked, uses_ids, self)
        session = self._sessions.get(body.session_id)
        if session is None:
            return Code.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return Code.INVALID_FETCH_SESSION_EPOCH
        if session.uses_ids != uses_ids:
            return Code.FETCH_SESSION_TOPIC_ID_ERROR
        return self._go_on(session, _asked(body, uses_ids, logs), body, logs)

    def _go_on(self, session: ServedSession, asked: dict[Key, Wanted], body: Any, logs: Logs) -> FetchContext:
        session.update(asked, _forgotten(body, session.uses_ids))
        if not session.wanted:  # a session without partitions is closed
            del self._sessions[session.id]
            return Sessionless({})
        for wanted in session.wanted.values():
            # A topic with this id may have been created after the last request.
            if wanted.topic is None:
                wanted.topic = logs.name_of(wanted.topic_id)
        return Incremental(session, self.advance(session))

    def has(self, session: ServedSession) -> bool:
        """Return whether a session is still open."""
        return self._sessions.get(session.id) is session

    def advance(self, session: ServedSession) -> int:
        """Advance an open session to its next epoch, and return this epoch."""
        del self._sessions[session.id]
        # The session moves to the end, because the dict is ordered by last use.
        self._sessions[session.id] = session
        session.used_ms = self._clock()
        session.epoch = next_epoch(session.epoch)
        return session.epoch

    def begin(self, wanted: dict[Key, Wanted], uses_ids: bool) -> int:
        """Begin a session; return its id, or NO_SESSION if all slots are in use."""
        now = self._clock()
        if len(self._sessions) >= self._slots and not self._evict(len(wanted), now):
            return NO_SESSION
        session_id = self._new_id()
        self._sessions[session_id] = ServedSession(session_id, uses_ids, wanted, now)
        return session_id

    def _new_id(self) -> int:
        while (session_id := self._rng.randint(1, INT32_MAX)) in self._sessions:
            pass
        return session_id

    def _evict(self, size: int, now: int) -> bool:
        """Close a session if that is needed for a new session with `size` partitions. Return whether the new
        session may begin (Kafka: FetchSessionCacheShard.tryEvict).

        The least recently used session is closed if it was idle for more than EVICTION_MS. If it was not idle
        for so long, the session with the fewest partitions is closed if it has fewer than `size` partitions.
        In this second case, only sessions are considered that were used later than EVICTION_MS after their
        beginning.
        """
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.used_ms > EVICTION_MS:
            del self._sessions[oldest.id]
            return True
        evictable = [each for each in self._sessions.values() if each.used_ms - each.created_ms > EVICTION_MS]
        least = min(evictable, key=lambda each: (len(each.wanted), each.id), default=None)
        if least is None or len(least.wanted) >= size:
            return False
        del self._sessions[least.id]
        return True


def _asked(body: Any, uses_ids: bool, logs: Logs) -> dict[Key, Wanted]:
    """Return the partitions of a request; if a partition is in the request twice, the last entry counts."""
    found: dict[Key, Wanted] = {}
    for topic in body.topics:
        name = logs.name_of(topic.topic_id) if uses_ids else topic.topic
        for each in topic.partitions:
            wanted = Wanted(name, topic.topic_id, each)
            found[key_of(wanted, uses_ids)] = wanted
    return found


def _forgotten(body: Any, uses_ids: bool) -> Iterator[Key]:
    for topic in body.forgotten_topics_data:
        yield from (((topic.topic_id if uses_ids else topic.topic), number) for number in topic.partitions)
