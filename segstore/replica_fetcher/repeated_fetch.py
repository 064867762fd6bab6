"""`RepeatedFetch`: templates for requests and answers of a fetch session in which each request names the same
single partition. (This is usual for a standby in sync mode.) With templates, requests are not encoded field
by field, and answers are not decoded.

On disk only the log is changed. Threads: only the fetcher's thread.
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

# Each repeated fetch makes a `FetchPosition`. This constructor runs no Python code, so it is faster.
_position: Callable[[tuple[Any, ...]], FetchPosition] = partial(tuple.__new__, FetchPosition)


class Sent(NamedTuple):
    """A request that was sent. `frame` has the bytes of the encoded request, with the size in front of
    them.
    """

    frame: bytearray
    body: Any
    version: int
    broker_epoch: int


class RepeatedFetch:
    """The templates for one partition. `followed` is the partition's log. `logs` are all logs of the session.
    If these logs change, the owner makes a new sequence object, so `logs` is compared by identity.
    `has_moved` is True if the fetch position of this partition, and of no other partition, has changed after
    the last request.
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
        """Make the templates. `sent` is a request that names only the partition of `followed`, with the fetch
        position `position`. `template` is a template of this request.
        """
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
        """Return whether the templates were made for these arguments, and the log's leader, leader epochs and
        log start offset have not changed.
        """
        same = followed is self.followed and logs is self.logs and session_id == self._session_id
        return same and self._is_unchanged()

    def _is_unchanged(self) -> bool:
        """Return whether the log's leader, leader epochs and log start offset are those for which the
        templates were made.
        """
        replica, (_, _, fetched_epoch, start) = self.followed.replica, self._position
        same = self.followed.led is self._led and replica.epoch_cache.current == fetched_epoch
        return same and start in (-1, replica.start_offset)

    def request(
        self, logs: Sequence[FollowedLog], session: FetchSession[Key, FetchPosition], broker_epoch: int
    ) -> bytearray | None:
        """Return the session's next request, with correlation id 0. Return None if the template does not fit.
        Raises StoreClosedError if the topic was removed.
        """
        if not self.has_moved or logs is not self.logs or session.id != self._session_id:
            return None
        if broker_epoch != self._broker_epoch or not self._is_unchanged():
            return None
        end, self.has_moved = self.followed.replica.log_end_offset, False
        session.named(self.key, _position((end, *self._position[1:])))
        return self._request.fill((0, session.epoch, end))[0]

    def brought(self, answer: memoryview) -> Brought | None:
        """Return the fields and records of an answer. Return None if the answer has no records of this
        partition, or has another partition.
        """
        found = self._answer.match(answer)
        return Brought(*found[1:]) if found is not None and found[-1] else None

    def begun(self, received: memoryview, size: int) -> MatchedStart | None:
        """Return the fields before the records of an answer, None if the template does not fit. `received`
        are the first bytes of the answer. `size` is the number of all bytes of the answer.
        """
        return self._answer.begin(received, size)

    def is_end(self, after: memoryview) -> bool:
        """Return whether `after` equals the bytes that the template has after the records of an answer."""
        records = self._answer.records
        return records is not None and after == records.end

    def take(self, brought: Brought) -> bool:
        """Append the records of an answer with `FollowedLog.take_next`. Return whether they were appended."""
        self.has_moved = self.followed.take_next(self._led, brought)
        return self.has_moved

    def take_piece(self, brought: Brought) -> bool:
        """Append a piece of an answer's records with `FollowedLog.take_piece`. Return whether it was
        appended. Raises the errors of `FollowedLog.take`.
        """
        return self.followed.take_piece(self._led, brought)

    @property
    def is_outdated(self) -> bool:
        """Return whether the leader or leader epoch of one of `logs` has changed after the templates were
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
    """Return templates for further requests like `sent`, which is a request with the fetch positions
    `positions`. The further requests ask for at most `most` bytes. Return None if `sent` names another
    partition than that of `followed`, has begun the session, or has unknown epochs.
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
