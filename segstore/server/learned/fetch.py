"""`LearnedFetch`: the requests of a consumer or standby that fetches what it fetched before, from other
offsets; `SessionlessFetch` is one that fetches one partition outside of a fetch session, as librdkafka does.

On disk files are only read. Threads: the loop's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from segstore.coordinator.throttle import QuotaThrottle
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.protocol.fetch_bytes import partition_answer
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.template import MessageField, MessageTemplate, request_template
from segstore.server.fetching.purgatory import Awaited, Parked, Purgatory
from segstore.server.fetching.reading import LEVELS, Terms
from segstore.server.fetching.sessions import (
    IDS_SINCE,
    FetchContext,
    FetchSessions,
    Key,
    Sessionless,
    Wanted,
    key_of,
)
from segstore.server.logs import Logs
from segstore.server.request import LATER, SHORT, Later, Request, Response
from segstore.storage.log.exchange import CopyLimits, NativeExchange
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.transfer.stretch import Stretch

from .request import LearnedRequest

log = Logger("segstore")
Changed = list[tuple[Wanted, Stretch]]
"""The partition that an answer tells of, if any."""
NEVER = -2
"""A number of publications that no store has, open or closed."""


class FetchTarget(NamedTuple):
    """What a client's fetches share with those of all clients. `serve` answers a request that has waited, as
    the handler does, from its context and correlation id.
    """

    logs: Logs
    purgatory: Purgatory
    sessions: FetchSessions
    terms: Terms
    throttle: QuotaThrottle
    serve: Callable[[FetchContext, int], None]


class Looked(NamedTuple):
    """What the partitions have: at most one has records, of `size` bytes."""

    parts: list[tuple[Wanted, Stretch]]
    size: int

    def release(self) -> None:
        """Let the stretches go."""
        for _, stretch in self.parts:
            stretch.release()


class Named(NamedTuple):
    """The partition that a request of a session names: the session's entry `wanted`, which keeps its values
    until the request is answered, what is `asked` of the partition, and the template of such requests.
    """

    key: Key
    wanted: Wanted
    asked: Wanted
    template: MessageTemplate


class LearnedFetch(LearnedRequest):
    """Looks at the logs of all partitions of a request, and answers with the one that has records, or waits
    at the ends of all.
    """

    def __init__(self, request: Request, session_id: int, target: FetchTarget) -> None:
        super().__init__(request)
        self.target, self._session_id = target, session_id
        self.logs: dict[Wanted, PartitionLog] = {}
        self._answers: dict[Wanted, MessageTemplate] = {}

    # --- what differs outside of a session and in a session -----------------------------------

    @property
    @abstractmethod
    def wanted(self) -> Iterable[Wanted]:
        """All partitions of a request, in the order in which they are served."""

    @abstractmethod
    def advance(self, named: Named | None) -> FetchContext:
        """Return the context of the request that is to be answered; a session takes the request into
        account.
        """

    @abstractmethod
    def changed(self, looked: Looked) -> Changed | None:
        """Return the partition that the client has to be told of, if any; None, and the stretches are
        released, if there are several.
        """

    @abstractmethod
    def written(self, changed: Changed, correlation_id: int) -> Response:
        """Return the answer, to which the stretch belongs from now on."""

    def is_current(self, context: FetchContext) -> bool:
        """Return whether a request that has waited may be answered here."""
        return True

    # --- a request ----------------------------------------------------------------------------

    def respond(self, correlation_id: int, named: Named | None) -> Response | Later | None:
        """Answer a request at once, or have it wait; None if the handler must answer."""
        terms = self.target.terms
        waits = terms.max_wait_ms > 0
        seen = self.target.purgatory.publications if waits else NEVER  # those after the look end the wait
        looked = self.look(named)
        if looked is None:
            return None
        if looked.size >= terms.min_bytes or not waits:
            changed = self.changed(looked)
            if changed is None:
                return None
            self.advance(named)
            return self.written(changed, correlation_id)
        if looked.size:
            looked.release()
            return None
        return self.wait(self.advance(named), named, looked, seen, correlation_id)

    def look(self, named: Named | None) -> Looked | None:
        """Return what the partitions have; None if the handler must answer, also if several partitions have
        records: they share the bytes of an answer.
        """
        parts: list[tuple[Wanted, Stretch]] = []
        size = 0
        if self.target.throttle.bound is not None:
            return None
        for wanted in self.wanted:
            held = self.held(wanted)
            asked = named.asked if named is not None and named.wanted is wanted else wanted
            stretch = None if held is None else _stretch(held, asked, self.target.terms)
            own = 0 if stretch is None else len(stretch)
            if stretch is None or (own and size):
                if stretch is not None:
                    stretch.release()
                Looked(parts, size).release()
                return None
            parts.append((wanted, stretch))
            size += own
        return Looked(parts, size)

    def held(self, wanted: Wanted) -> PartitionLog | None:
        """Return a partition's log; None if the log is gone: then the handler learns anew."""
        held = self.logs.get(wanted)
        self.is_like = held is not None and not held.is_gone
        return held if self.is_like else None

    def template_of(self, wanted: Wanted) -> MessageTemplate:
        """Return the template of answers that tell of a partition."""
        answer = self._answers.get(wanted)
        if answer is None:
            if len(self._answers) >= 2 * len(self.logs):  # those of partitions that the session has forgotten
                self._answers.clear()
            answer = self._answers[wanted] = partition_answer(
                self.request.version,
                wanted.topic or "",
                wanted.topic_id,
                wanted.partition,
                committed=self.target.terms.committed,
                session_id=self._session_id,
            )
        return answer

    # --- waiting ------------------------------------------------------------------------------

    def wait(
        self, context: FetchContext, named: Named | None, looked: Looked, seen: int, correlation_id: int
    ) -> Later:
        """Have a fetch wait at the ends of all logs."""
        waits = [Awaited(each, at.high_watermark, at.last_stable_offset) for each, at in looked.parts]

        def complete() -> None:
            self.finish(context, correlation_id, looked, seen)

        parked = Parked(self.request, self.target.terms, {}, complete)
        self.target.purgatory.park(parked, waits, seen)
        return LATER

    def finish(self, context: FetchContext, correlation_id: int, looked: Looked, seen: int) -> None:
        """Answer a fetch that has waited: with what was `looked` at if nothing was published since. An
        unexpected error ends the connection.
        """
        channel, target = self.request.channel, self.target
        try:
            now: Looked | None = looked
            if not self.is_current(context):
                now = None
            elif target.throttle.bound is not None or seen != target.purgatory.publications:
                now = self.look(None)
            changed = None if now is None else self.changed(now)
            if changed is None:
                target.serve(context, correlation_id)
            else:
                channel.give(*self.written(changed, correlation_id))
        except Exception:
            log.exception("a fetch of %s failed", channel.peer)
            channel.close()


class SessionlessFetch(LearnedFetch):
    """Fetches one partition. C answers if the last answer had batches, few enough for C to copy."""

    def __init__(
        self,
        request: Request,
        template: MessageTemplate,
        wanted: Wanted,
        held: PartitionLog,
        target: FetchTarget,
    ) -> None:
        super().__init__(request, NO_SESSION, target)
        self._template, self._wanted, self._held = template, wanted, held
        self.logs[wanted] = held
        self._context = Sessionless({key_of(wanted, request.version >= IDS_SINCE): wanted})
        self._is_short = False

    @property
    def wanted(self) -> Iterable[Wanted]:
        """The only partition."""
        return (self._wanted,)

    def match(self, frame: memoryview) -> tuple[Any, ...] | None:
        """Return correlation id and fetch offset."""
        return self._template.match(frame)

    def answer(self, holes: tuple[Any, ...]) -> Response | Later | None:
        """Answer with the batches from the fetch offset on."""
        correlation_id, self._wanted.offset = holes
        response = self.respond(correlation_id, None)
        self._is_short = isinstance(response, tuple) and any(len(part) <= SHORT for _, part in response[1])
        return response

    def advance(self, named: Named | None) -> FetchContext:
        """Return a context with the only partition."""
        return self._context

    def changed(self, looked: Looked) -> Changed | None:
        """Return the only partition: each answer tells of it."""
        return looked.parts

    def written(self, changed: Changed, correlation_id: int) -> Response:
        """Return the answer."""
        ((wanted, stretch),) = changed
        answer = self.template_of(wanted)
        if self.exchange is None:
            self.exchange = NativeExchange(self._template, answer, self._limits(), self.row.counts)
        return filled(answer, stretch, correlation_id)

    def _limits(self) -> CopyLimits:
        terms = self.target.terms
        most = max(min(self._wanted.max_bytes, terms.max_bytes), 0)
        return CopyLimits(most, terms.min_bytes if terms.max_wait_ms > 0 else 0, SHORT, terms.committed)

    def may_exchange(self) -> bool:
        """Return whether the next answer is likely to be short, and no quota or leader epoch forbids it."""
        epoch = self._wanted.current_epoch
        if not self._is_short or self.target.throttle.bound is not None:
            return False
        return bool(epoch < 0 or self._held.leader_epoch == epoch)

    def exchanged(self, sock: int, exchange: NativeExchange) -> bool | None:
        """Answer by C."""
        return self._held.exchange_fetch(sock, exchange)


def filled(answer: MessageTemplate, stretch: Stretch, correlation_id: int) -> Response:
    """Return an answer with a stretch, and the ends of its log."""
    size = len(stretch)
    ends = stretch.high_watermark, stretch.last_stable_offset, stretch.log_start_offset
    out, at = answer.fill((correlation_id, *ends[: len(answer.holes) - 1]), size)
    return out, [(at, stretch)] if size else []


def learnable_log(logs: Logs, wanted: Wanted, version: int) -> PartitionLog | None:
    """Return a partition's log; None if only the handler answers its fetches."""
    try:
        if wanted.topic is None or (version >= IDS_SINCE and logs.id_of(wanted.topic) != wanted.topic_id):
            return None
        found = logs.find(wanted.topic, wanted.partition)
    except SegstoreError:
        return None
    return None if found.has_replicas else found


def _stretch(held: PartitionLog, asked: Wanted, terms: Terms) -> Stretch | None:
    """Return what a log has; None if the handler must answer, with an error or aborted transactions."""
    is_replica = terms.replica_id >= 0
    if asked.fetched_epoch >= 0 and not is_replica:
        return None
    if asked.current_epoch >= 0 and held.leader_epoch != asked.current_epoch:
        return None
    most = max(min(asked.max_bytes, terms.max_bytes), 0)
    level = LEVELS[terms.committed]
    try:
        found = held.stretch(
            asked.offset, most, isolation_level=level, max_searched=terms.max_searched, whole=is_replica
        )
    except SegstoreError:
        return None
    if terms.committed and found.aborted != []:
        found.release()
        return None
    return found


def learned_fetch(request: Request, asked: Iterable[Wanted], target: FetchTarget) -> SessionlessFetch | None:
    """Return what answers the next requests of a consumer whose handler has answered this one, outside of a
    session; None if the request names several partitions, or has unknown tagged fields.
    """
    body, terms = request.body, target.terms
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1 or body.session_id != NO_SESSION:
        return None
    (wanted,) = asked
    held = learnable_log(target.logs, wanted, request.version)
    if held is None or wanted.fetched_epoch >= 0 or terms.replica_id >= 0:
        return None
    assert request.frame is not None
    field = MessageField(body.topics[0].partitions[0], "fetch_offset")
    template = request_template(request.frame, request.body_at, request.version, body, [field])
    return None if template is None else SessionlessFetch(request, template, wanted, held, target)
