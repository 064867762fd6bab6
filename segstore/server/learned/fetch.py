"""`LearnedFetch` answers Fetch requests that a connection repeats: requests for one partition without a fetch
session (librdkafka), and requests of a fetch session with few partitions (KIP-227: Java consumers,
kafka-python, standbys). A request without a session names exactly one partition. A request of a session names
no partition, or only the partition whose records were answered last. The repeated requests of a connection
differ only in correlation id, session epoch and fetch offset.

On disk: reads log files. Threads: the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from segstore.coordinator.throttle import QuotaThrottle
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.protocol.fetch_bytes import empty_answer, partition_answer
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.template import MessageField, MessageTemplate, request_template
from segstore.server.fetching.purgatory import Awaited, Parked, Purgatory
from segstore.server.fetching.reading import LEVELS, Terms
from segstore.server.fetching.sessions import (
    IDS_SINCE,
    FetchContext,
    FetchSessions,
    Incremental,
    Key,
    ServedSession,
    Sessionless,
    Wanted,
    key_of,
)
from segstore.server.logs import Logs
from segstore.server.request import LATER, SHORT, Later, Received, Request, Response
from segstore.storage.log.exchange import CopyLimits, NativeExchange
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.transfer.stretch import Stretch

from .request import LearnedRequest
from .standing_fetch import StandingFetch, is_standby, noted

log = Logger("segstore")
Looked = list[tuple[Wanted, Stretch]]
"""The result of a read: (partition, stretch of the partition's log) pairs. At most one of the stretches has
records.
"""
FEW, FEW_OF_REPLICA = 16, 256
"""The maximum number of partitions in a learned session of a consumer, and of a standby. (A standby fetches
all partitions of the store.) The number is limited because each request reads all partitions of its session.
"""
_NEVER = -2
"""A value that `Purgatory.publications` never returns."""


class FetchTarget(NamedTuple):
    """The server's objects that a learned fetch uses, and the client's terms and throttle.

    If `LearnedFetch` can't answer a fetch after the fetch's wait, it calls `serve(context, correlation id)`,
    which lets the handler answer.
    """

    logs: Logs
    purgatory: Purgatory
    sessions: FetchSessions
    terms: Terms
    throttle: QuotaThrottle
    serve: Callable[[FetchContext, int], None]


class Named(NamedTuple):
    """The partition that a request has. `wanted` is the partition's entry in the session. `asked` has the
    offset, size and epochs of the request; these values are copied to `wanted` only if `LearnedFetch` answers
    the request. `template` is the template of such requests.
    """

    key: Key
    wanted: Wanted
    asked: Wanted
    template: MessageTemplate


class LearnedFetch(LearnedRequest):
    """Answers repeated fetches of one connection. `session` is None if the fetches have no fetch session. C
    code receives and answers the fetches if there is no session and the answers are short, or if they come
    from a standby that has fetched all records.
    """

    def __init__(
        self, request: Request, wanted: dict[Key, Wanted], session: ServedSession | None, target: FetchTarget
    ) -> None:
        """`wanted` has the partitions in the order of the answer. If there is a session, `wanted` is the
        session's own dictionary.
        """
        super().__init__(request)
        self.wanted, self.session, self.target = wanted, session, target
        self.logs: dict[Wanted, PartitionLog] = {}
        # constant bytes of a request -> the request's partition
        self._forms: dict[tuple[bytes, ...], Named | None] = {}
        # length of a request -> the request's template
        self._shapes: dict[int, MessageTemplate] = {}
        self._answers: dict[Wanted, MessageTemplate] = {}
        self._session_id = NO_SESSION if session is None else session.id
        self._empty = empty_answer(request.version, self._session_id)
        self._standing: StandingFetch | None = None
        self._is_short = False
        """Whether the last fetch that was answered at once got records, and at most SHORT bytes of them."""

    # --- learning -----------------------------------------------------------------------------

    def goes_on(self, session: ServedSession, target: FetchTarget) -> bool:
        """Return whether this object has the same session, terms and throttle as `session` and `target`,
        which are those of a request that the handler has answered.
        """
        mine = self.target
        return session is self.session and target.terms == mine.terms and target.throttle is mine.throttle

    def learn(self, request: Request) -> bool:
        """Store the template of a request that the handler has answered, and return True: this object answers
        similar requests from now on. Store nothing and return False if the request names several partitions,
        removes partitions from the session, or has unknown tagged fields. Return False also if the session
        has too many partitions, or has a partition for which only the handler can answer.
        """
        body, self._standing = request.body, None
        parts = [part for topic in body.topics for part in topic.partitions]
        if len(parts) > 1 or body.forgotten_topics_data or len(parts) != len(body.topics):
            return False
        self.logs = self._found(request.version)
        assert request.frame is not None
        fields = [MessageField(body, "session_epoch")] if self.session is not None else []
        fields += [MessageField(part, "fetch_offset") for part in parts]
        template = request_template(request.frame, request.body_at, request.version, body, fields)
        if template is None or not self.logs:
            return False
        named = self._name(template, body.topics[0], parts[0]) if parts else None
        if parts and named is None:
            return False
        # Single entries are never removed, so all are removed before the dict grows further.
        if len(self._forms) > 2 * FEW:
            self._forms.clear()
        self._shapes[len(template.front)], self._forms[template.constants] = template, named
        return True

    def _name(self, template: MessageTemplate, topic: Any, part: Any) -> Named | None:
        key = (topic.topic_id if self.request.version >= IDS_SINCE else topic.topic), part.partition
        wanted = self.wanted.get(key)
        if wanted is None:
            return None
        return Named(key, wanted, Wanted(wanted.topic, wanted.topic_id, part), template)

    def _found(self, version: int) -> dict[Wanted, PartitionLog]:
        """Return partition -> log. Return an empty dict if there are too many partitions, or if there is a
        partition for which only the handler can answer.
        """
        found: dict[Wanted, PartitionLog] = {}
        few = FEW if self.target.terms.replica_id < 0 else FEW_OF_REPLICA
        for wanted in self.wanted.values():
            held = _learnable(self.target.logs, wanted, version)
            if held is None or len(self.wanted) > few:
                return {}
            found[wanted] = held
        return found

    def template_of(self, wanted: Wanted) -> MessageTemplate:
        """Return the template of answers that have only this partition."""
        answer = self._answers.get(wanted)
        if answer is None:
            # Many templates mean that some are for partitions that the session does not fetch any more.
            if len(self._answers) >= 2 * len(self.logs):
                self._answers.clear()
            topic, committed = wanted.topic or "", self.target.terms.committed
            answer = self._answers[wanted] = partition_answer(
                self.request.version,
                topic,
                wanted.topic_id,
                wanted.partition,
                committed=committed,
                session_id=self._session_id,
            )
        return answer

    # --- a request ----------------------------------------------------------------------------

    def match(self, frame: memoryview) -> tuple[Any, ...] | None:
        """Return (named partition, (correlation id, session epoch, fetch offset)). Return None if the request
        is similar to no learned request, or if it does not continue the session. The named partition is
        None if the request names no partition. The inner tuple lacks the session epoch if there is no
        session, and lacks the fetch offset if the request names no partition.
        """
        shape, session = self._shapes.get(len(frame)), self.session
        if shape is None:
            return None
        values, constants = shape.split(frame)
        if constants not in self._forms:
            return None
        named = self._forms[constants]
        if session is None:
            return named, values
        if values[1] != session.epoch or not self.target.sessions.has(session):
            return None
        return (named, values) if named is None or self.wanted.get(named.key) is named.wanted else None

    def answer(self, holes: tuple[Any, ...]) -> Response | Later | None:
        """Answer a request; return what `__call__` returns. The answer has records of at most one partition.
        If there are no new records and the request may wait, park the fetch.
        """
        named, values = holes
        terms, correlation_id = self.target.terms, values[0]
        if named is not None:
            named.asked.offset = values[-1]
        if terms.replica_id >= 0 and not (is_standby(terms) and noted(self, named)):
            return None
        may_wait = terms.max_wait_ms > 0
        # The number is read before the partitions, so that a publication during their read ends the wait.
        seen = self.target.purgatory.publications if may_wait else _NEVER
        looked = self._look(named)
        if looked is None:
            return None
        size = max((stretch.size for _, stretch in looked), default=0)
        self._is_short = 0 < size <= SHORT
        if size >= terms.min_bytes or not may_wait:
            changed = self._changed(looked)
            if changed is None:
                return None
            self._advance(named)
            return self._written(changed, correlation_id)
        if size:
            return None
        return self._wait(self._advance(named), named, looked, seen, correlation_id)

    def _look(self, named: Named | None) -> Looked | None:
        """Read all partitions, and return (partition, stretch) pairs, or None if the handler must answer. The
        handler must answer also if several partitions have records, because `max_bytes` limits their total.
        """
        looked: Looked = []
        size = 0
        if self.target.throttle.bound is not None:
            return None
        for wanted in self.wanted.values():
            held = self.logs.get(wanted)
            # If the value is False, the handler will replace this object or call `learn`.
            self.is_like = held is not None and not held.is_gone
            if held is None or not self.is_like:
                return None
            asked = named.asked if named is not None and named.wanted is wanted else wanted
            stretch = _stretch(held, asked, self.target.terms)
            if stretch is None or (stretch.size and size):
                return None
            looked.append((wanted, stretch))
            size += stretch.size
        return looked

    def _advance(self, named: Named | None) -> FetchContext:
        """Copy the values of the request to the session, and advance the session to its next epoch. Return
        the context of the request.
        """
        if named is not None:
            named.wanted.update(named.asked)
        if self.session is None:
            return Sessionless(self.wanted)
        return Incremental(self.session, self.target.sessions.advance(self.session))

    def _changed(self, looked: Looked) -> Looked | None:
        """Return the items of `looked` that the answer must include. Return None if there are two or more of
        them. If there is no session, the answer includes the only partition. If there is a session, the
        answer includes the partitions for which `Wanted.note_answer` would return True.
        """
        if self.session is None:
            return looked
        changed = []
        for wanted, stretch in looked:
            before = wanted.high_watermark, wanted.start_offset
            if stretch.size or (stretch.high_watermark, stretch.log_start_offset) != before:
                changed.append((wanted, stretch))
        return changed if len(changed) <= 1 else None

    def _written(self, changed: Looked, correlation_id: int) -> Response:
        """Return the encoded answer; whoever gets it must release the stretch in it. Store the answered
        offsets in the session.
        """
        if not changed:
            return self._empty.fill((correlation_id,))[0], []
        ((wanted, stretch),) = changed
        answer, session = self.template_of(wanted), self.session
        ends = stretch.high_watermark, stretch.last_stable_offset, stretch.log_start_offset
        if session is not None:
            wanted.high_watermark, wanted.start_offset = ends[0], ends[2]
            if stretch.size:
                session.give_way(wanted)
        elif self.exchange is None:
            (asked,) = self._shapes.values()
            self.exchange = NativeExchange(asked, answer, self._limits(wanted), self.row.counts)
        out, at = answer.fill((correlation_id, *ends[: len(answer.holes) - 1]), stretch.size)
        return out, [(at, stretch)] if stretch.size else []

    # --- requests that the C code handles -------------------------------------------------------

    def _limits(self, wanted: Wanted) -> CopyLimits:
        terms = self.target.terms
        most = max(min(wanted.max_bytes, terms.max_bytes), 0)
        return CopyLimits(most, terms.min_bytes if terms.max_wait_ms > 0 else 0, SHORT, terms.committed)

    def receive(self, sock: int, memory: Any) -> Received | None:
        """Let the C code receive a fetch, if the last answer was short, or if the client is a standby that
        has fetched all records. Return what `LearnedRequest.receive` returns.
        """
        if self._standing is not None:
            return self._standing.receive(sock, memory)
        return super().receive(sock, memory) if self._is_short else None

    def exchanged(self, sock: int, exchange: NativeExchange) -> bool | None:
        """Implement `LearnedRequest.exchanged`. Return None if the client has a quota, or gives a leader
        epoch that is not the log's.
        """
        ((wanted, held),) = self.logs.items()
        if self.target.throttle.bound is not None or wanted.current_epoch not in (-1, held.leader_epoch):
            return None
        return held.exchange_fetch(sock, exchange)

    # --- waiting ------------------------------------------------------------------------------

    def _wait(
        self, context: FetchContext, named: Named | None, looked: Looked, seen: int, correlation_id: int
    ) -> Later:
        """Park a fetch. If the client is a standby that has fetched all records, a `StandingFetch` is parked,
        and handles the next fetches too.
        """
        terms = self.target.terms
        if self.session is not None and named is not None and terms.replica_id >= 0 and terms.min_bytes <= 1:
            if self._standing is None or self._standing.named is not named:
                self._standing = StandingFetch(self, self.session, named, self.target)
            if self._standing.begin(self.session.epoch, correlation_id, seen):
                return LATER
        waits = [Awaited(wanted, at.high_watermark, at.last_stable_offset) for wanted, at in looked]

        def complete() -> None:
            self.finish(context, correlation_id, looked, seen)

        self.target.purgatory.park(Parked(self.request, terms, {}, complete), waits, seen)
        return LATER

    def finish(self, context: FetchContext, correlation_id: int, looked: Looked, seen: int = _NEVER) -> None:
        """Answer a fetch after its wait. If nothing was published since publication number `seen`, answer
        from `looked`; else read the partitions again. If only the handler can answer, call `target.serve`. If
        an unexpected error is raised, close the connection.
        """
        channel, target = self.request.channel, self.target
        try:
            now: Looked | None = looked
            if not self._is_current(context):
                now = None
            elif target.throttle.bound is not None or seen != target.purgatory.publications:
                now = self._look(None)
            changed = None if now is None else self._changed(now)
            if changed is None:
                target.serve(context, correlation_id)
            else:
                channel.give(*self._written(changed, correlation_id))
        except Exception:
            log.exception("a fetch of %s failed", channel.peer)
            channel.close()

    def _is_current(self, context: FetchContext) -> bool:
        """Return whether `context` is that of the session's last request. If the client is a replica, it must
        also be the registered standby.
        """
        if isinstance(context, Incremental) and context.epoch != context.session.epoch:
            return False
        return self.target.terms.replica_id < 0 or is_standby(self.target.terms)


def _learnable(logs: Logs, wanted: Wanted, version: int) -> PartitionLog | None:
    """Return a partition's log, None if only the handler can answer fetches of this partition."""
    try:
        if wanted.topic is None or (version >= IDS_SINCE and logs.id_of(wanted.topic) != wanted.topic_id):
            return None
        found = logs.find(wanted.topic, wanted.partition)
    except SegstoreError:
        return None
    return None if found.has_replicas else found


def _stretch(held: PartitionLog, asked: Wanted, terms: Terms) -> Stretch | None:
    """Return a stretch of a log. Return None if only the handler can answer, because there is an error, the
    client's leader epoch is not the log's, or the answer must list aborted transactions.
    """
    is_replica = terms.replica_id >= 0
    if asked.fetched_epoch >= 0 and not is_replica:
        return None
    if asked.current_epoch >= 0 and held.leader_epoch != asked.current_epoch:
        return None
    most, level = max(min(asked.max_bytes, terms.max_bytes), 0), LEVELS[terms.committed]
    try:
        found = held.stretch(
            asked.offset, most, isolation_level=level, max_searched=terms.max_searched, whole=is_replica
        )
    except SegstoreError:
        return None
    return None if terms.committed and found.aborted != [] else found


def learned_fetch(
    request: Request, context: Sessionless | Incremental, target: FetchTarget
) -> LearnedFetch | None:
    """Return a `LearnedFetch` for requests that are similar to `request`, which the handler has answered.
    Return None if `LearnedFetch.learn` returns False. If the request has no session, return None also if a
    standby has sent the request, if it does not have exactly one partition, or if it closes a session.
    """
    session = context.session if isinstance(context, Incremental) else None
    if session is not None:
        wanted = session.wanted
    else:
        wanted = {key_of(each, request.version >= IDS_SINCE): each for each in context.wanted}
        if target.terms.replica_id >= 0 or len(wanted) != 1 or request.body.session_id != NO_SESSION:
            return None
    learned = LearnedFetch(request, wanted, session, target)
    return learned if learned.learn(request) else None
