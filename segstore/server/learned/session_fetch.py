"""`SessionFetch`: the requests of a fetch session of few partitions (KIP-227), as Java's consumers,
kafka-python and standbys send them. A request names no partition, or the one whose records came last, and
differs from an earlier one in correlation id, session epoch and fetch offset.

On disk files are only read. Threads: the loop's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from segstore.errors import SegstoreError
from segstore.protocol.fetch_bytes import empty_answer
from segstore.protocol.template import MessageField, MessageTemplate, request_template
from segstore.server.fetching.sessions import IDS_SINCE, FetchContext, Incremental, ServedSession, Wanted
from segstore.server.request import LATER, Later, Received, Request, Response
from segstore.storage.store.partition_log import PartitionLog

from .fetch import NEVER, Changed, FetchTarget, LearnedFetch, Looked, Named, filled, learnable_log
from .standing_fetch import StandingFetch

FEW, FEW_OF_REPLICA = 16, 256
"""The most partitions of a session that is learned, of a consumer and of a standby, which follows all
partitions of a store: each request looks at all of them.
"""


class SessionFetch(LearnedFetch):
    """Fetches a session's partitions. C receives and answers the fetches of a standby that waits."""

    def __init__(self, request: Request, session: ServedSession, target: FetchTarget) -> None:
        super().__init__(request, session.id, target)
        self._session = session
        self._forms: dict[tuple[bytes, ...], Named | None] = {}  # by the constants of the template
        self._shapes: dict[int, MessageTemplate] = {}  # a template of each length of requests
        self._empty = empty_answer(request.version, session.id)
        self._standing: StandingFetch | None = None

    @property
    def wanted(self) -> Iterable[Wanted]:
        """The session's partitions."""
        return self._session.wanted.values()

    # --- what is learned ----------------------------------------------------------------------

    def goes_on(self, session: ServedSession, target: FetchTarget) -> bool:
        """Return whether a request that its handler has answered is of this session, with the same terms and
        client.
        """
        mine = self.target
        return session is self._session and target.terms == mine.terms and target.throttle is mine.throttle

    def learn(self, request: Request) -> bool:
        """Answer requests like this one from now on, which its handler has answered. False, and the request
        is not learned, if it names several partitions, or the session has many, or one without a plain log.
        """
        body, self._standing = request.body, None
        parts = [part for topic in body.topics for part in topic.partitions]
        if len(parts) > 1 or body.forgotten_topics_data or (body.topics and not parts):
            return False
        self.logs = self._found(request.version)
        assert request.frame is not None
        fields = [
            MessageField(body, "session_epoch"),
            *(MessageField(each, "fetch_offset") for each in parts),
        ]
        template = request_template(request.frame, request.body_at, request.version, body, fields)
        if template is None or not self.logs:
            return False
        named = self._name(template, body.topics[0], parts[0]) if parts else None
        if parts and named is None:
            return False
        if len(self._forms) > 2 * FEW:  # such as those of earlier leader epochs
            self._forms.clear()
        self._shapes[len(template.front)] = template
        self._forms[template.constants] = named
        return True

    def _name(self, template: MessageTemplate, topic: Any, part: Any) -> Named | None:
        key = (topic.topic_id if self.request.version >= IDS_SINCE else topic.topic), part.partition
        wanted = self._session.wanted.get(key)
        if wanted is None:
            return None
        return Named(key, wanted, Wanted(wanted.topic, wanted.topic_id, part), template)

    def _found(self, version: int) -> dict[Wanted, PartitionLog]:
        """Return the logs of the session's partitions; none if the handler alone answers for one of them."""
        found: dict[Wanted, PartitionLog] = {}
        few = FEW if self.target.terms.replica_id < 0 else FEW_OF_REPLICA
        if len(self._session.wanted) > few:
            return found
        for wanted in self.wanted:
            held = learnable_log(self.target.logs, wanted, version)
            if held is None:
                return {}
            found[wanted] = held
        return found

    # --- a request ----------------------------------------------------------------------------

    def match(self, frame: memoryview) -> tuple[Any, ...] | None:
        """Return the partition that is named, if any, and correlation id, session epoch and fetch offset."""
        shape, session = self._shapes.get(len(frame)), self._session
        if shape is None:
            return None
        values, constants = shape.split(frame)
        if constants not in self._forms or values[1] != session.epoch:
            return None
        named = self._forms[constants]
        if named is not None and session.wanted.get(named.key) is not named.wanted:
            return None
        return (named, *values) if self.target.sessions.has(session) else None

    def answer(self, holes: tuple[Any, ...]) -> Response | Later | None:
        """Answer with what has changed, one partition at most."""
        named, correlation_id, _, *offset = holes
        if named is not None:
            (named.asked.offset,) = offset
        if self.target.terms.replica_id >= 0 and not (self._is_replica() and self._note(named)):
            return None
        return self.respond(correlation_id, named)

    def receive(self, sock: int, memory: Any) -> Received | None:
        """Receive a fetch of a standby that has all there is."""
        return None if self._standing is None else self._standing.receive(sock, memory)

    def advance(self, named: Named | None) -> FetchContext:
        """Take the session to its next epoch."""
        if named is not None:
            named.wanted.update(named.asked)
        return Incremental(self._session, self.target.sessions.advance(self._session))

    def changed(self, looked: Looked) -> Changed | None:
        """Return the partition whose ends the client does not know, or that has records (see
        `Wanted.tell`).
        """
        changed = []
        for wanted, stretch in looked.parts:
            told = wanted.high_watermark, wanted.start_offset
            if (stretch.high_watermark, stretch.log_start_offset) != told or len(stretch):
                changed.append((wanted, stretch))
        if len(changed) > 1:
            looked.release()
            return None
        return changed

    def written(self, changed: Changed, correlation_id: int) -> Response:
        """Return the answer; the session keeps what it tells."""
        if not changed:
            return self._empty.fill((correlation_id,))[0], []
        ((wanted, stretch),) = changed
        wanted.high_watermark, wanted.start_offset = stretch.high_watermark, stretch.log_start_offset
        if len(stretch):
            self._session.give_way(wanted)
        return filled(self.template_of(wanted), stretch, correlation_id)

    # --- a standby ----------------------------------------------------------------------------

    def _is_replica(self) -> bool:
        """Return whether the client is the standby still; else the handler answers with the error."""
        terms = self.target.terms
        try:
            primary = terms.primary
            return primary is not None and primary.check_replica(terms.replica_id, terms.broker_epoch)
        except SegstoreError:
            return False

    def _note(self, named: Named | None) -> bool:
        """Note how far the standby has all partitions, before the look, so that the answer tells of the high
        watermark that follows. False if the handler must compare the standby's log with this one.
        """
        primary = self.target.terms.primary
        assert primary is not None
        for wanted in self.wanted:
            held = self.held(wanted)
            asked = named.asked if named is not None and named.wanted is wanted else wanted
            if held is None or not _agrees(held, asked):
                return False
            try:
                primary.fetched((held.topic, held.partition), held.partition_for_write(), asked.offset)
            except SegstoreError:
                return False
        return True

    def wait(
        self, context: FetchContext, named: Named | None, looked: Looked, seen: int, correlation_id: int
    ) -> Later:
        """Have a fetch wait; of a standby that has all there is, also the next fetches like this one."""
        terms = self.target.terms
        if named is not None and terms.replica_id >= 0 and terms.min_bytes <= 1:
            standing = self._standing_with(named)
            if standing.begin(self._session.epoch, correlation_id, seen):
                return LATER
        return super().wait(context, named, looked, seen, correlation_id)

    def _standing_with(self, named: Named) -> StandingFetch:
        if self._standing is None or self._standing.named is not named:
            self._standing = StandingFetch(self, self._session, named, self.target)
        return self._standing

    def finish_anew(self, epoch: int, correlation_id: int) -> None:
        """Answer a fetch that has taken the session to `epoch`, and has waited, by another look."""
        self.finish(Incremental(self._session, epoch), correlation_id, Looked([], 0), NEVER)

    def is_current(self, context: FetchContext) -> bool:
        """Return whether a fetch that has waited is the session's last one, of the client that it was."""
        if not isinstance(context, Incremental) or context.epoch != self._session.epoch:
            return False
        return self.target.terms.replica_id < 0 or self._is_replica()


def _agrees(held: PartitionLog, asked: Wanted) -> bool:
    """Return whether a standby knows this log's leader epoch, and its own log is the beginning of this one by
    its leader epochs (KIP-595); the end of its log is not compared.
    """
    epoch = held.leader_epoch
    if asked.current_epoch >= 0 and asked.current_epoch != epoch:
        return False
    if asked.fetched_epoch in (-1, epoch) or epoch < 0:
        return True
    known, end = held.epoch_end(asked.fetched_epoch)
    return bool(known == asked.fetched_epoch and end >= asked.offset)


def learned_session(request: Request, session: ServedSession, target: FetchTarget) -> SessionFetch | None:
    """Return what answers the next requests of a session whose handler has answered this one; None as
    `SessionFetch.learn` returns False.
    """
    learned = SessionFetch(request, session, target)
    return learned if learned.learn(request) else None
