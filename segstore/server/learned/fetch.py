"""`LearnedFetch`: repeated Fetch requests for one partition without a fetch session (librdkafka), or for a
fetch session of few partitions (KIP-227: Java consumers, kafka-python, standbys).

Without a session each request names the only partition. In a session each request names no partition, or only
the partition of the last answered records. Requests differ in correlation id, session epoch and fetch offset.

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
"""(partition, stretch that was read of its log) pairs; at most one of the stretches has records."""
FEW, FEW_OF_REPLICA = 16, 256
"""Most partitions of a learned session of a consumer, and of a standby, which fetches all partitions of the
store. The number is limited because each request reads all partitions of its session.
"""
_NEVER = -2
"""A value that `Purgatory.publications` never has."""


class FetchTarget(NamedTuple):
    """The server's objects that a learned fetch uses, and the client's terms and throttle.

    If `LearnedFetch` can't answer a fetch after its wait, it calls `serve(context, correlation id)`, by which
    the handler answers.
    """

    logs: Logs
    purgatory: Purgatory
    sessions: FetchSessions
    terms: Terms
    throttle: QuotaThrottle
    serve: Callable[[FetchContext, int], None]


class Named(NamedTuple):
    """The partition that a request names. `wanted` is the session's entry of the
    partition. `asked` has the offset, size and epochs of the request. These values are copied to `wanted`
    only if `LearnedFetch` answers the request.
    """

    key: Key
    wanted: Wanted
    asked: Wanted
    template: MessageTemplate


class LearnedFetch(LearnedRequest):
    """Answers repeated fetches of one connection; `session` is None without a fetch session.

    The C code receives and answers small fetches without a session, and fetches of a standby that has
    fetched all records.
    """

    def __init__(
        self, request: Request, wanted: dict[Key, Wanted], session: ServedSession | None, target: FetchTarget
    ) -> None:
        """`wanted` has the partitions in the order of the answer. For a session it is the session's
        dictionary.
        """
        super().__init__(request)
        self.wanted, self.session, self.target = wanted, session, target
        self.logs: dict[Wanted, PartitionLog] = {}
        self._forms: dict[tuple[bytes, ...], Named | None] = {}  # constant bytes of a request -> partition
        self._shapes: dict[int, MessageTemplate] = {}  # the length of a request -> its template
        self._answers: dict[Wanted, MessageTemplate] = {}
        self._session_id = NO_SESSION if session is None else session.id
        self._empty = empty_answer(request.version, self._session_id)
        self._standing: StandingFetch | None = None
        self._is_short = False
        """Whether the last answer without a wait had records, at most SHORT bytes."""

    # --- learning -----------------------------------------------------------------------------

    def goes_on(self, session: ServedSession, target: FetchTarget) -> bool:
        """Return whether this object has the session, terms and throttle of a request that the handler has
        answered.
        """
        mine = self.target
        return session is self.session and target.terms == mine.terms and target.throttle is mine.throttle

    def learn(self, request: Request) -> bool:
        """Learn a request that the handler has answered, and return True: similar requests are answered here
        from now on.

        Learn nothing and return False if the request names several partitions, removes partitions from the
        session, or has unknown tagged fields. Also return False if the session has too many partitions, or
        only the handler can answer for one of them.
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
        if len(self._forms) > 2 * FEW:  # forms are never removed one by one, so all are removed
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
        """Return partition -> log. Return no logs if there are too many partitions, or if only the handler
        can answer for one of them.
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
        """Return the template of answers with one partition."""
        answer = self._answers.get(wanted)
        if answer is None:
            if len(self._answers) >= 2 * len(self.logs):  # some templates are of forgotten partitions
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
        differs from each learned request in another byte, or if it does not continue the session.

        The named partition is None if the request names no partition. The inner tuple lacks the session epoch
        if the request has no session, and the fetch offset if it names no partition.
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
        """Answer a request; the result is that of `__call__`. The answer has records of at most one
        partition. If there are no new records, the fetch is parked.
        """
        named, values = holes
        terms, correlation_id = self.target.terms, values[0]
        if named is not None:
            named.asked.offset = values[-1]
        if terms.replica_id >= 0 and not (is_standby(terms) and noted(self, named)):
            return None
        may_wait = terms.max_wait_ms > 0
        # The number is read before the look, so that a publication during the look ends the wait.
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
        """Read all partitions, and return (partition, stretch) pairs; return None if the handler must answer.
        The handler must also answer if several partitions have records, because these share `max_bytes`.
        """
        looked: Looked = []
        size = 0
        if self.target.throttle.bound is not None:
            return None
        for wanted in self.wanted.values():
            held = self.logs.get(wanted)
            # If this is False, the handler learns again.
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
        """Take over the values of the request, and advance the session to its next epoch. Return the context
        of the request.
        """
        if named is not None:
            named.wanted.update(named.asked)
        if self.session is None:
            return Sessionless(self.wanted)
        return Incremental(self.session, self.target.sessions.advance(self.session))

    def _changed(self, looked: Looked) -> Looked | None:
        """Return the items of `looked` that the answer must include, at most one; None if there are several.

        Without a session the answer includes the only partition. With a session it includes the partitions
        for which `Wanted.note_answer` would return True.
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
        """Return the encoded answer, which must release the stretch. Note the answered offsets in the
        session.
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
        """Let the C code receive a fetch if the last answer was short, or if a standby that has fetched all
        records sends it. The result is that of `LearnedRequest.receive`.
        """
        if self._standing is not None:
            return self._standing.receive(sock, memory)
        return super().receive(sock, memory) if self._is_short else None

    def exchanged(self, sock: int, exchange: NativeExchange) -> bool | None:
        """Implement `LearnedRequest.exchanged`. Return None if the client has a quota or another leader
        epoch.
        """
        ((wanted, held),) = self.logs.items()
        if self.target.throttle.bound is not None or wanted.current_epoch not in (-1, held.leader_epoch):
            return None
        return held.exchange_fetch(sock, exchange)

    # --- waiting ------------------------------------------------------------------------------

    def _wait(
        self, context: FetchContext, named: Named | None, looked: Looked, seen: int, correlation_id: int
    ) -> Later:
        """Park a fetch. If the client is a standby that has fetched all records, the next fetches are handled
        in C.
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
        """Answer a fetch after its wait. If there were no publications since the number `seen`, answer from
        `looked`, else from a new look. If only the handler can answer, call `target.serve`. An unexpected
        error closes the connection.
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
        """Return whether no later request has advanced the session, and the client, if it is a standby, is
        still registered.
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
    """Return a stretch of a log. Return None if only the handler can answer: there is an error, the client's
    leader epoch is another, or aborted transactions must be listed.
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
    Return None if `LearnedFetch.learn` returns False, and for a request without a session if a standby sent
    it, it names several partitions, or it closes a session.
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
