"""`RepeatedFetch`: the requests of a fetch session that name one partition, the one whose records came last,
such as those of a standby in sync mode, and the answers that bring more records of the partition. Both are
templates: the requests are not encoded field by field, and the answers are not decoded.

Nothing is on disk but through the log. Threads: the fetcher's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from segstore import names
from segstore.protocol.codec import encode
from segstore.protocol.fetch_bytes import Brought, partition_answer
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.template import SIZE, MatchedStart, MessageField, MessageTemplate, template_after
from segstore.replica_fetcher.fetch_session import FetchSession
from segstore.replica_fetcher.followed_log import FetchPosition, FollowedLog, Key

_position: Callable[[tuple[Any, ...]], FetchPosition] = partial(tuple.__new__, FetchPosition)  # a call of C


class Sent(NamedTuple):
    """A request that was sent: its bytes, with its size; its body, in a version; the broker epoch in it."""

    frame: bytearray
    body: Any
    version: int
    broker_epoch: int


class RepeatedFetch:
    """`followed` is the partition's log, and `logs` are all that the session has, which are replaced whole
    where they change. `has_moved`: that partition's position has changed since the last request, and no
    other's.
    """

    def __init__(
        self,
        template: MessageTemplate,
        sent: Sent,
        position: FetchPosition,
        followed: FollowedLog,
        logs: Sequence[FollowedLog],
        session_id: int,
    ) -> None:
        """`template` is that of the request that was `sent` for this position."""
        self.followed, self.key, self.logs = followed, followed.key, logs
        self.version, self.has_moved = sent.version, False
        self._leds = [each.led for each in logs]
        self._led, self._position = followed.led, position
        self._session_id, self._broker_epoch, self._asked = session_id, sent.broker_epoch, template
        topic_id = names.topic_id_bytes(followed.topic_id) if followed.topic_id else bytes(16)
        self._answer = partition_answer(
            sent.version, followed.topic, topic_id, followed.partition, committed=False, session_id=session_id
        )

    def is_of(self, followed: FollowedLog, logs: Sequence[FollowedLog], session_id: int) -> bool:
        """Return whether this knows the requests for a log, among these logs and in this session."""
        same = followed is self.followed and logs is self.logs and session_id == self._session_id
        return same and self._is_as_asked()

    def _is_as_asked(self) -> bool:
        """Return whether the next request has the leader, leader epochs and log start offset of the first."""
        replica, (_, _, fetched_epoch, start) = self.followed.replica, self._position
        same = self.followed.led is self._led and replica.epoch_cache.current == fetched_epoch
        return same and start in (-1, replica.start_offset)

    def request(
        self, logs: Sequence[FollowedLog], session: FetchSession[Key, FetchPosition], broker_epoch: int
    ) -> bytearray | None:
        """Return the session's next request, but for its correlation id; None where it is to be written field
        by field. Raises StoreClosedError where the topic was removed.
        """
        if not self.has_moved or logs is not self.logs or session.id != self._session_id:
            return None
        if broker_epoch != self._broker_epoch or not self._is_as_asked():
            return None
        end, self.has_moved = self.followed.replica.log_end_offset, False
        session.named(self.key, _position((end, *self._position[1:])))
        return self._asked.fill((0, session.epoch, end))[0]

    def brought(self, answer: memoryview) -> Brought | None:
        """Return what an answer to a request of the session brings of this partition, where it brings records
        of it, and tells of nothing else.
        """
        found = self._answer.match(answer)
        return Brought(*found[1:]) if found is not None and found[-1] else None

    def begun(self, here: memoryview, size: int) -> MatchedStart | None:
        """Return what such an answer of `size` bytes tells before its records, of which the beginning is
        `here`.
        """
        return self._answer.begin(here, size)

    def is_end(self, after: memoryview) -> bool:
        """Return whether these bytes come after the records of such an answer."""
        records = self._answer.records
        return records is not None and after == records.end

    def take(self, brought: Brought) -> bool:
        """Append what an answer brings; False, and nothing is done, where that is not the usual. Raises as
        `FollowedLog.take`.
        """
        self.has_moved = self.followed.take_next(self._led, brought)
        return self.has_moved

    def take_piece(self, brought: Brought) -> bool:
        """Append a piece of what an answer brings, usual or not; False where it is outdated. Raises as
        `FollowedLog.take`.
        """
        return self.followed.take_piece(self._led, brought)

    @property
    def is_outdated(self) -> bool:
        """Return whether another leader, or leader epoch, was heard of since the requests were learned."""
        return any(each.led is not led for each, led in zip(self.logs, self._leds, strict=True))


def learned(
    sent: Sent,
    positions: Mapping[Key, FetchPosition],
    followed: FollowedLog,
    logs: Sequence[FollowedLog],
    session_id: int,
    most: int,
) -> RepeatedFetch | None:
    """Return what knows the next requests like the one that was `sent` for these positions; they ask for
    `most` bytes, as their answers are taken while they come. None where it has named other partitions than
    that of `followed`, or has begun the session.
    """
    position, body = positions.get(followed.key), sent.body
    if position is None or len(positions) > 1 or body.forgotten_topics_data:
        return None
    if session_id == NO_SESSION or body.session_id != session_id:
        return None
    if not 0 <= position.last_fetched_epoch <= position.current_leader_epoch:
        return None
    part, encoded = body.topics[0].partitions[0], bytearray()
    encode(body, sent.version, encoded)
    part.partition_max_bytes = most
    fields = [MessageField(body, "session_epoch"), MessageField(part, "fetch_offset")]
    template = template_after(bytes(sent.frame[SIZE : -len(encoded)]), sent.version, body, fields)
    return RepeatedFetch(template, sent, position, followed, logs, session_id)
