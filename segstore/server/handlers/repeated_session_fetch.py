"""`RepeatedSessionFetch`: the next requests of a fetch session of few partitions (KIP-227), as Java's
consumers, kafka-python's and standbys send them: they name no partition, or the one whose records they have
had. They differ in their correlation ids, epochs and fetch offsets alone, and what most of them are answered
is that nothing has changed, or one partition: so neither is read or written field by field.

Threads: the loop's.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.protocol.fetch_bytes import INT32, INT64, EmptyAnswer, PartitionAnswer, place_of
from segstore.protocol.primitives import CORRELATION_ID
from segstore.server.fetching.purgatory import Awaited, Parked
from segstore.server.fetching.reading import Terms
from segstore.server.fetching.sessions import IDS_SINCE, ServedSession, Wanted
from segstore.server.logs import Logs
from segstore.server.request import LATER, Later, Receive, Request, Response
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.transfer.stretch import Stretch

from .session_target import Named, SessionTarget
from .standing_fetch import Place, Spot, StandingFetch

log = Logger("segstore")
_NEVER = -2
"""No number of publications, nor what a closed store has."""
FEW, FEW_OF_REPLICA = 16, 256
"""The most partitions of a session whose requests are answered here; each request looks at them all. A
replica follows all that there are.
"""


class _Found(NamedTuple):
    """What the partitions have: at most one has records, of `size` bytes."""

    parts: list[tuple[Wanted, Stretch]]
    size: int

    def release(self) -> None:
        """Let the stretches go."""
        for _, stretch in self.parts:
            stretch.release()


class RepeatedSessionFetch:
    """Implements `segstore.server.request.Repeat`: it answers requests like those that it has learned from
    the handler, which has answered them. `is_like`: the request that was seen last was like one of them,
    whether it was answered here or not.
    """

    def __init__(self, request: Request, session: ServedSession, target: SessionTarget) -> None:
        self._request, self._session, self._target = request, session, target
        self.row = request.channel.row(request.api)
        self._before = b""  # the bytes between correlation id and epoch
        self._epoch_at = 0
        self._unnamed: bytes | None = None  # what stands behind the epoch where no partition is named
        self._named: dict[bytes, Named] = {}  # by what stands behind the epoch, without the fetch offset
        self._offset_at: dict[int, int] = {}  # where that was, by the length of what stands behind the epoch
        self._logs: dict[Wanted, PartitionLog] = {}
        self._answers: dict[Wanted, PartitionAnswer] = {}
        self._empty = EmptyAnswer(request.version, session.id)
        self._kind = b""
        self._standing: StandingFetch | None = None
        self.is_like = False

    @property
    def receive(self) -> Receive | None:
        """See `Repeat`."""
        return None if self._standing is None else self._standing.receive

    # --- what is like earlier requests ----------------------------------------------------

    def goes_on(self, request: Request, session: ServedSession, terms: Terms) -> bool:
        """Return whether a request, which has come to its handler, is of the same kind and session."""
        assert request.frame is not None
        before = request.frame[CORRELATION_ID.stop : self._epoch_at]
        is_like = before == self._before and request.frame[: CORRELATION_ID.start] == self._kind
        return is_like and session is self._session and terms == self._target.terms

    def learn(self, request: Request) -> bool:
        """Answer requests like this one from now on, which has come to its handler; returns whether they may
        be.
        """
        body, self._standing = request.body, None
        parts = [part for topic in body.topics for part in topic.partitions]
        if len(parts) > 1 or body.forgotten_topics_data:
            return False
        self._logs = self._found(request.version)
        if not self._logs:
            return False
        assert request.frame is not None
        frame = bytes(request.frame)
        at = place_of(body, request.version, frame, body, "session_epoch")
        if at is None:
            return False
        self._kind, self._epoch_at = frame[: CORRELATION_ID.start], at
        self._before, behind = frame[CORRELATION_ID.stop : at], frame[at + INT32.size :]
        if not body.topics:
            self._unnamed = behind
            return True
        return bool(parts) and self._learn_named(request, frame, behind)

    def _learn_named(self, request: Request, frame: bytes, behind: bytes) -> bool:
        (topic,) = request.body.topics
        (part,) = topic.partitions
        at = place_of(request.body, request.version, frame, part, "fetch_offset")
        assert at is not None  # the epoch had a place
        key = (topic.topic_id if request.version >= IDS_SINCE else topic.topic), part.partition
        wanted = self._session.wanted.get(key)
        if wanted is None:
            return False
        if len(self._named) >= 2 * FEW:  # such as those of earlier leader epochs
            self._named.clear()
            self._offset_at.clear()
        cut = at - self._epoch_at - INT32.size
        self._offset_at[len(behind)] = cut
        asked = Wanted(wanted.topic, wanted.topic_id, part)
        self._named[behind[:cut] + behind[cut + INT64.size :]] = Named(key, wanted, asked)
        return True

    def _found(self, version: int) -> dict[Wanted, PartitionLog]:
        """Return the logs of the session's partitions; none where one of them can't be answered here."""
        found: dict[Wanted, PartitionLog] = {}
        few = FEW if self._target.terms.replica_id < 0 else FEW_OF_REPLICA
        if len(self._session.wanted) > few:
            return found
        for wanted in self._session.wanted.values():
            held = _log(self._target.logs, wanted, version)
            if held is None:
                return {}
            found[wanted] = held
        return found

    # --- a request ------------------------------------------------------------------------

    def __call__(self, frame: memoryview) -> Response | Later | None:
        """See `Repeat`."""
        self.is_like = False
        at, session = self._epoch_at, self._session
        if len(frame) < at + INT32.size or frame[CORRELATION_ID.stop : at] != self._before:
            return None
        if frame[: CORRELATION_ID.start] != self._kind or INT32.unpack_from(frame, at) != (session.epoch,):
            return None
        behind, named = bytes(frame[at + INT32.size :]), None
        if behind != self._unnamed:
            named = self._name(behind)
            if named is None:
                return None
        if not self._target.sessions.has(session):
            return None
        self.is_like = True
        return self._answered(named, frame)

    def _name(self, behind: bytes) -> Named | None:
        """Return the partition that a request names; None where that is not known."""
        cut = self._offset_at.get(len(behind))
        if cut is None:
            return None
        named = self._named.get(behind[:cut] + behind[cut + INT64.size :])
        if named is None or self._session.wanted.get(named.key) is not named.wanted:
            return None
        (named.asked.offset,) = INT64.unpack_from(behind, cut)
        return named

    def _answered(self, named: Named | None, frame: memoryview) -> Response | Later | None:
        terms, correlation_id = self._target.terms, bytes(frame[CORRELATION_ID])
        if terms.replica_id >= 0 and not (self._is_replica() and self._note(named)):
            return None
        may_wait = terms.max_wait_ms > 0
        seen = self._target.purgatory.publications if may_wait else 0  # what is published later ends the wait
        found = self._look(named)
        if found is None:
            return None
        if found.size >= terms.min_bytes or not may_wait:
            changed = _changed(found)
            if changed is None:
                return None
            self._advance(named)
            return self._written(changed, found.size, correlation_id)
        if found.size:
            found.release()
            return None
        epoch = self._advance(named)
        if named is not None and self._stands_with(named, frame, epoch, seen):
            return LATER
        return self._park(epoch, found, seen, correlation_id)

    def _stands_with(self, named: Named, frame: memoryview, epoch: int, seen: int) -> bool:
        """Have a standby that has all there is wait with a request, and with the next ones like this; return
        whether it does.
        """
        standing, terms = self._standing, self._target.terms
        if terms.replica_id < 0 or terms.min_bytes > 1:
            return False
        if standing is None or not standing.is_of(named):
            spots = [Spot(wanted, held.partition_for_write()) for wanted, held in self._logs.items()]
            offset_at = (
                self._epoch_at + INT32.size + self._offset_at[len(frame) - self._epoch_at - INT32.size]
            )
            place, request = Place(bytes(frame), self._epoch_at, offset_at), self._request
            standing = self._standing = StandingFetch(
                request.channel, self._session, named, place, spots, self._target, self._finish_anew
            )
        return standing.begin(epoch, bytes(frame[CORRELATION_ID]), seen)

    def _advance(self, named: Named | None) -> int:
        """Have the session go on; nothing has been done to it before."""
        if named is not None:
            named.wanted.update(named.asked)
        return self._target.sessions.advance(self._session)

    def _look(self, named: Named | None) -> _Found | None:
        """Return what the partitions have; None where the handler has to say it: that is also where several
        have records, which share the bytes of an answer.
        """
        terms, logs = self._target.terms, self._logs
        parts: list[tuple[Wanted, Stretch]] = []
        size = 0
        if self._target.throttle.bound is not None:
            return None
        for wanted in self._session.wanted.values():
            held = logs.get(wanted)
            self.is_like = held is not None and not held.is_gone  # else the session has other partitions now
            asked = named.asked if named is not None and named.wanted is wanted else wanted
            stretch = _stretch(held, asked, terms) if held is not None and self.is_like else None
            own = 0 if stretch is None else len(stretch)
            if stretch is None or (own and size):
                _Found(parts, size).release()
                return None
            parts.append((wanted, stretch))
            size += own
        return _Found(parts, size)

    # --- a replica's ----------------------------------------------------------------------

    def _is_replica(self) -> bool:
        """Return whether the client is the standby still; else the handler says what it is."""
        terms = self._target.terms
        try:
            primary = terms.primary
            return primary is not None and primary.check_replica(terms.replica_id, terms.broker_epoch)
        except SegstoreError:
            return False

    def _note(self, named: Named | None) -> bool:
        """Note how far the standby has all partitions: first, so that the answer tells of it. False where its
        log is not known to be a part of this one: then the handler looks at that.
        """
        primary, logs = self._target.terms.primary, self._logs
        assert primary is not None
        for wanted in self._session.wanted.values():
            held = logs.get(wanted)
            self.is_like = held is not None and not held.is_gone  # else the session has other partitions now
            asked = named.asked if named is not None and named.wanted is wanted else wanted
            if held is None or not self.is_like or not _agrees(held, asked):
                return False
            try:
                partition = held.partition_for_write()
                primary.fetched((held.topic, held.partition), partition, asked.offset)
            except SegstoreError:
                return False
        return True

    # --- answers --------------------------------------------------------------------------

    def _written(self, changed: list[tuple[Wanted, Stretch]], size: int, correlation_id: bytes) -> Response:
        """Return the answer with what has changed, one partition at most, and its records of `size` bytes."""
        if not changed:
            return self._empty.of(correlation_id)
        ((wanted, stretch),) = changed
        wanted.high_watermark, wanted.start_offset = stretch.high_watermark, stretch.log_start_offset
        if size:
            self._session.give_way(wanted)
        answer = self._answers.get(wanted)
        if answer is None:
            if len(self._answers) >= 2 * FEW:  # those of partitions that the session has forgotten too
                self._answers.clear()
            committed = self._target.terms.committed
            answer = PartitionAnswer(
                self._request.version,
                wanted.topic or "",
                wanted.topic_id,
                wanted.partition,
                committed,
                self._session.id,
            )
            self._answers[wanted] = answer
        return answer.of(stretch, correlation_id)

    # --- waiting --------------------------------------------------------------------------

    def _park(self, epoch: int, found: _Found, seen: int, correlation_id: bytes) -> Later:
        """Have a fetch wait at the ends of all logs."""
        waits = [
            Awaited(wanted, stretch.high_watermark, stretch.last_stable_offset)
            for wanted, stretch in found.parts
        ]

        def complete() -> None:
            self._finish(epoch, correlation_id, found, seen)

        parked = Parked(self._request, self._target.terms, {}, complete)
        self._target.purgatory.park(parked, waits, seen)
        return LATER

    def _goes_on(self, epoch: int) -> bool:
        """Return whether a fetch that has waited is the session's last one, of the client that it was."""
        is_last = self._session.epoch == epoch  # else the session went on without this fetch
        return is_last and (self._target.terms.replica_id < 0 or self._is_replica())

    def _finish_anew(self, epoch: int, correlation_id: bytes) -> None:
        self._finish(epoch, correlation_id, _Found([], 0), _NEVER)

    def _finish(self, epoch: int, correlation_id: bytes, found: _Found, seen: int) -> None:
        """Answer a fetch that has waited, with what there is: what it `found` where nothing was published
        since. What fails unexpectedly ends its connection.
        """
        channel, target = self._request.channel, self._target
        try:
            now: _Found | None = found
            if not self._goes_on(epoch):
                now = None
            elif target.throttle.bound is not None or seen != target.purgatory.publications:
                now = self._look(None)
            changed = None if now is None else _changed(now)
            if now is None or changed is None:
                target.serve(epoch, *INT32.unpack(correlation_id))
            else:
                channel.give(*self._written(changed, now.size, correlation_id))
        except Exception:
            log.exception("a fetch of %s failed", channel.peer)
            channel.close()


def _log(logs: Logs, wanted: Wanted, version: int) -> PartitionLog | None:
    """Return a partition's log; None where its fetches are the handler's."""
    try:
        if wanted.topic is None or (version >= IDS_SINCE and logs.id_of(wanted.topic) != wanted.topic_id):
            return None
        found = logs.find(wanted.topic, wanted.partition)
    except SegstoreError:
        return None
    return None if found.has_replicas else found


def _stretch(log: PartitionLog, asked: Wanted, terms: Terms) -> Stretch | None:
    """Return what a log has; None where the handler has to say it."""
    is_replica = terms.replica_id >= 0
    if asked.fetched_epoch >= 0 and not is_replica:
        return None
    if asked.current_epoch >= 0 and log.leader_epoch != asked.current_epoch:
        return None
    most = max(min(asked.max_bytes, terms.max_bytes), 0)
    return log.stretch_at_once(asked.offset, most, terms.committed, whole=is_replica)


def _agrees(log: PartitionLog, asked: Wanted) -> bool:
    """Return whether a replica knows this log's leader epoch, and its own log is the beginning of this one as
    far as leader epochs tell (KIP-595); where the log ends is not compared.
    """
    epoch = log.leader_epoch
    if asked.current_epoch >= 0 and asked.current_epoch != epoch:
        return False
    if asked.fetched_epoch in (-1, epoch) or epoch < 0:
        return True
    known, end = log.epoch_end(asked.fetched_epoch)
    return bool(known == asked.fetched_epoch and end >= asked.offset)


def _changed(found: _Found) -> list[tuple[Wanted, Stretch]] | None:
    """Return the partition that the client has to be told of, if any (see `Wanted.tell`); None where there
    are several, and then no stretch is held.
    """
    changed = []
    for wanted, stretch in found.parts:
        has_moved = stretch.high_watermark != wanted.high_watermark
        has_moved = has_moved or stretch.log_start_offset != wanted.start_offset
        if has_moved or (found.size and len(stretch)):
            changed.append((wanted, stretch))
    if len(changed) > 1:
        found.release()
        return None
    return changed


def repeated_in(
    request: Request, session: ServedSession, target: SessionTarget
) -> RepeatedSessionFetch | None:
    """Return what answers the next requests of a session; None where they are the handler's."""
    repeat = RepeatedSessionFetch(request, session, target)
    return repeat if repeat.learn(request) else None
