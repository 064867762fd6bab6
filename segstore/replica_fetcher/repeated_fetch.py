"""`RepeatedFetch`: templates for requests and answers, if each request of a fetch session names the same
single partition, as is usual for a standby in sync mode. With a template a request is not encoded field
by field, and an answer is not decoded.

On disk only the log is changed. Threads: the fetcher's thread.
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

# Each repeated fetch makes a position; this constructor runs no Python code.
_position: Callable[[tuple[Any, ...]], FetchPosition] = partial(tuple.__new__, FetchPosition)


class Sent(NamedTuple):
    """A sent request. `frame` is the encoded request with its size prefix."""

    frame: bytearray
    body: Any
    version: int
    broker_epoch: int


class RepeatedFetch:
    """The templates for one partition. `followed` is the partition's log. `logs` are all logs of the session;
    if they change, a new sequence object replaces `logs`. `has_moved` is True if the position of this
    partition has changed since the last request, and no other position.
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
        """Make the templates. `sent` is a request for the partition, `template` the template of `sent`."""
        self.followed, self.key, self.logs = followed, followed.key, logs
        self.version, self.has_moved = sent.version, False
        self._leds = [each.led for each in logs]
        self._led, self._position = followed.led, position
        self._session_id, self._broker_epoch, self._request = session_id, sent.broker_epoch, template
        topic_id = names.topic_id_bytes(followed.topic_id) if followed.topic_id else bytes(16)
        self._answer = partition_answer(
            sent.version, followed.topic, topic_id, followed.partition, committed=False, session_id=session_id
        )

    def is_of(self, followed: FollowedLog, logs: Sequence[FollowedLog], session_id: int) -> bool:
        """Return whether the templates fit these arguments, and the log's leader and epochs are the same."""
        same = followed is self.followed and logs is self.logs and session_id == self._session_id
        return same and self._is_unchanged()

    def _is_unchanged(self) -> bool:
        """Return whether the leader, leader epochs and log start offset are those of the template."""
        replica, (_, _, fetched_epoch, start) = self.followed.replica, self._position
        same = self.followed.led is self._led and replica.epoch_cache.current == fetched_epoch
        return same and start in (-1, replica.start_offset)

    def request(
        self, logs: Sequence[FollowedLog], session: FetchSession[Key, FetchPosition], broker_epoch: int
    ) -> bytearray | None:
        """Return the session's next request, with correlation id 0; None if the template does not fit. Raises
        StoreClosedError if the topic was removed.
        """
        if not self.has_moved or logs is not self.logs or session.id != self._session_id:
            return None
        if broker_epoch != self._broker_epoch or not self._is_unchanged():
            return None
        end, self.has_moved = self.followed.replica.log_end_offset, False
        session.named(self.key, _position((end, *self._position[1:])))
        return self._request.fill((0, session.epoch, end))[0]

    def brought(self, answer: memoryview) -> Brought | None:
        """Return the fields and records of an answer. Return None if it has no records of this partition, or
        has other partitions.
        """
        found = self._answer.match(answer)
        return Brought(*found[1:]) if found is not None and found[-1] else None

    def begun(self, received: memoryview, size: int) -> MatchedStart | None:
        """Return the fields before the records of an answer, None if the template does not fit. `received`
        are the answer's first bytes, `size` is its length.
        """
        return self._answer.begin(received, size)

    def is_end(self, after: memoryview) -> bool:
        """Return whether `after` are the bytes that follow the records in an answer of the template."""
        records = self._answer.records
        return records is not None and after == records.end

    def take(self, brought: Brought) -> bool:
        """Append the records of an answer by `FollowedLog.take_next`; return whether they were appended."""
        self.has_moved = self.followed.take_next(self._led, brought)
        return self.has_moved

    def take_piece(self, brought: Brought) -> bool:
        """Append a piece of an answer's records by `FollowedLog.take_piece`; return its result."""
        return self.followed.take_piece(self._led, brought)

    @property
    def is_outdated(self) -> bool:
        """Return whether a leader or leader epoch of the session's logs has changed since the template was
        made.
        """
        return any(each.led is not led for each, led in zip(self.logs, self._leds, strict=True))


def learned(
    sent: Sent,
    positions: Mapping[Key, FetchPosition],
    followed: FollowedLog,
    logs: Sequence[FollowedLog],
    session_id: int,
    most: int,
) -> RepeatedFetch | None:
    """Return the templates for further requests like `sent`, a request for `positions`. These requests ask
    for at most `most` bytes. Return None if `sent` has named a partition other than that of `followed`, has
    begun the session, or has unknown epochs.
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
