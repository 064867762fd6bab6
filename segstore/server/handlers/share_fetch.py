"""ShareFetch: a member of a share group acknowledges records that it has acquired, and acquires more records,
for which it may wait (KIP-932, KIP-1206, KIP-1222; Kafka: KafkaApis.handleShareFetchRequest,
DelayedShareFetch).

Threads: requests are handled in the loop's thread; if a call of the share coordinator may wait or take long,
a worker thread calls the coordinator.

The client's quota is checked before records are acquired. If the connection or the session is closed before
the answer is sent, the acquisition is cancelled, and the records have the same delivery counts as before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from segstore.coordinator.share.core.sessions import FINAL, SharedResult
from segstore.coordinator.share.core.values import AckBatch, AcquireMode
from segstore.coordinator.share.share import AcquiredPartition, AcquireTerms
from segstore.errors import OffsetNotAvailableError, SegstoreError, ShareSessionLimitReachedError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.apis import Api
from segstore.server.fetching.share_purgatory import AcquirableState, ParkedShareFetch
from segstore.server.fetching.share_sessions import WirePartition, WireSession
from segstore.server.node import Node
from segstore.server.request import LATER, Request

from .share_fetches import ShareFetches, with_share_fetches
from .share_requests import (
    GOOD,
    PartOutcome,
    ShareAsked,
    asked_of,
    has_share_groups,
    is_unnamed,
    judged,
    outcome_of,
    renews,
    text_of,
)
from .working import fail, work

log = Logger("segstore")
_Response = structs("ShareFetchResponse")
_Row, _Leader, _Records = _Response.PartitionData, _Response.LeaderIdAndEpoch, _Response.AcquiredRecords
_NO_RECORDS = b""
_STALE = "The share session has ended, or another request of it has come."
_MODE_SINCE = 2
_MOST_AT_ONCE = 10_000
"""If a request may acquire more records than this, a worker thread acquires them, because in the loop's
thread this would delay other requests.
"""

Acknowledgements = Mapping[WirePartition, Sequence[AckBatch]]


class _Work(NamedTuple):
    """The result of one attempt to answer: the outcome of the acknowledgements of each partition, and the
    acquired records of each partition.
    """

    acknowledged: Mapping[WirePartition, PartOutcome]
    acquisitions: Sequence[AcquiredPartition]


class _ShareFetch:
    """A ShareFetch request that is not answered yet. Each attempt to answer it acknowledges and acquires
    records.
    """

    def __init__(self, fetches: ShareFetches, request: Request, session: WireSession) -> None:
        body = request.body
        self._fetches, self._request, self._session, self._body = fetches, request, session, body
        self._next_epoch, self._is_last = session.next_epoch, body.share_session_epoch == FINAL
        self._until = time.monotonic() + max(body.max_wait_ms, 0) / 1000
        self._throttle, self._throttle_ms = fetches.throttle_of(request), 0
        self._acknowledged: dict[WirePartition, PartOutcome] = {}
        self._refused: dict[WirePartition, PartOutcome] = {}
        self._topics: dict[WirePartition, str] = {}

    def begin(self, asked: ShareAsked) -> Any:
        """Make the first attempt to answer: acknowledge and acquire records. Return the answer, or LATER if
        the answer is sent later.
        """
        found = judged(self._fetches.topics, self._request, asked)
        self._acknowledged.update(found.refused)
        return self._go_on(found.good, self._body.max_wait_ms > 0)

    # --- rounds --------------------------------------------------------------------------------

    def _go_on(self, acknowledgements: Acknowledgements, may_wait: bool, is_again: bool = False) -> Any:
        """Make an attempt to answer. Return the answer, or LATER. If the attempt may wait, a worker makes it.
        An attempt in the loop's thread reads each log at most once. If it finds no records, a worker makes
        the next attempt (`is_again`), which may read more often.
        """
        if not self._is_current:
            return self._stale()
        wanted = self._wanted()
        if not (wanted or acknowledgements or self._is_last):
            return self._answer({})
        glance, terms = self._glance(), self._terms()

        if not (is_again or self._is_slow(acknowledgements, wanted)):
            found = self._work(acknowledgements, wanted, terms._replace(max_reads=1))
            if not wanted or any(each.error is None for each in found.acquisitions):
                return self._worked(found, glance, may_wait)
            self._acknowledged.update(found.acknowledged)
            # A worker makes the next attempt, which may read each log more than once.
            return self._go_on({}, may_wait, is_again=True)

        def run() -> _Work:
            return self._work(acknowledgements, wanted, terms)

        def done(result: _Work | BaseException) -> None:
            try:
                if isinstance(result, BaseException):
                    fail(self._request, result)
                elif (answer := self._worked(result, glance, may_wait)) is not LATER:
                    self._request.answer(answer)
            finally:
                if wanted:
                    self._fetches.end_work(self._session)

        if wanted:
            self._fetches.begin_work(self._session)
        return work(self._fetches.node, self._request, run, done, waits=True)

    def _is_slow(self, acknowledgements: Acknowledgements, wanted: Sequence[WirePartition]) -> bool:
        """Return whether a worker must make the attempt, because it may take more than microseconds."""
        if self._is_last or self._body.max_records > _MOST_AT_ONCE:
            return True
        return self._fetches.may_wait(self._session, {*acknowledgements, *wanted})

    @property
    def _is_current(self) -> bool:
        """Whether the connection is open, and the session has had no newer request."""
        session = self._session
        is_next = self._fetches.sessions.is_current(session) and session.next_epoch == self._next_epoch
        return self._request.channel.is_open and (is_next or self._is_last)

    def _stale(self) -> Any:
        return _Response(error_code=Code.INVALID_SHARE_SESSION_EPOCH, error_message=_STALE)

    def _glance(self) -> AcquirableState:
        places = [(topic, key[1]) for key, topic in self._topics.items()]
        return self._fetches.waits.glance(self._session.group, places)

    def _wanted(self) -> Sequence[WirePartition]:
        """Return the partitions from which to acquire records. Return no partition if the request allows no
        records or is throttled.
        """
        body, self._throttle_ms = self._body, 0
        self._topics, self._refused = {}, {}
        if self._is_last or renews(self._request) or body.max_records <= 0 or body.max_bytes <= 0:
            return ()
        if self._throttle.bound is not None and (debt := self._throttle.wait_ms()):
            self._throttle_ms = debt
            return ()
        in_turn = self._session.in_turn(body.share_session_epoch)
        for key, each in self._fetches.topics.found(self._request, in_turn).items():
            if isinstance(each, PartOutcome):
                self._refused[key] = each
            else:
                self._topics[key] = each
        return list(self._topics)

    def _terms(self) -> AcquireTerms:
        body = self._body
        mode = body.share_acquire_mode if self._request.version >= _MODE_SINCE else 0
        most = self._fetches.most_bytes(body.max_bytes, self._throttle)
        return AcquireTerms(body.max_records, body.batch_size, mode, most)

    def _work(
        self, acknowledgements: Acknowledgements, wanted: Sequence[WirePartition], terms: AcquireTerms
    ) -> _Work:
        """Acknowledge records, then acquire records. Records that the acknowledgement has released may be
        acquired again.
        """
        fetches, session = self._fetches, self._session
        outcomes = fetches.acknowledge(session, acknowledgements)
        if self._is_last:
            fetches.release(session)
        if not wanted:
            return _Work(outcomes, ())
        places = list(map(text_of, wanted))
        try:
            return _Work(outcomes, fetches.coordinator.acquire(session.group, session.member, places, terms))
        except SegstoreError as error:
            # Each partition gets this error. The exception is not raised, because `outcomes` must be
            # answered.
            return _Work(outcomes, [AcquiredPartition(*each, error) for each in places])

    # --- after a round -------------------------------------------------------------------------

    def _worked(self, done: _Work, glance: AcquirableState, may_wait: bool) -> Any:
        """Return the answer with the acquired records. If too few records were acquired and the request may
        wait, cancel their acquisition and park the request. Then return LATER, or the result of another
        attempt to answer.
        """
        self._acknowledged.update(done.acknowledged)
        if not self._is_current:
            self._cancel(done.acquisitions)
            return self._stale()
        by_text = {text_of(key): key for key in self._topics}
        got: dict[WirePartition, AcquiredPartition] = {}
        for each in done.acquisitions:
            key = by_text[each.topic_id, each.partition]
            if each.error is None:
                got[key] = each
            elif not isinstance(each.error, OffsetNotAvailableError):
                # A partition with OffsetNotAvailableError is not refused: its state is still being loaded.
                self._refused[key] = outcome_of(each.error)
        if not may_wait or self._is_done(got):
            return self._answer(got)
        self._cancel(list(got.values()))
        return self._park(glance, bool(got))

    def _is_done(self, got: Mapping[WirePartition, AcquiredPartition]) -> bool:
        """Return whether to answer now, because `min_bytes` were acquired, or every partition has an
        error.
        """
        can_wait = any(key not in self._refused for key in self._topics)
        size = sum(len(each.stretch) for each in got.values() if each.stretch is not None)
        return not can_wait or bool(got and size >= self._body.min_bytes)

    def _park(self, glance: AcquirableState, is_sated: bool) -> Any:
        """Park the request until records can be acquired, and return LATER. `glance` is the state before
        records were acquired. If the current state already differs from `glance`, or `max_wait_ms` have
        passed, make another attempt to answer instead, and return its result.
        """
        left = int((self._until - time.monotonic()) * 1000)
        if left <= 0 or self._glance().differs(glance, is_sated):
            return self._go_on({}, left > 0, is_again=True)

        def complete() -> None:
            self._look_again(parked)

        parked = ParkedShareFetch(self._request, left, complete)
        self._fetches.waits.park(self._session.group, parked, glance, is_sated)
        self._fetches.wait(self._session, parked)
        return LATER

    def _look_again(self, parked: ParkedShareFetch) -> None:
        """Make another attempt after the wait, and send its answer, unless it is LATER. Pass unexpected
        exceptions to `fail`.
        """
        self._fetches.waits_no_more(self._session, parked)
        try:
            answer = self._go_on({}, not parked.is_over)
            if answer is not LATER:
                self._request.answer(answer)
        except Exception as error:
            fail(self._request, error)

    def _cancel(self, acquisitions: Sequence[AcquiredPartition]) -> None:
        """Cancel acquisitions that will not be answered. Their records get back the delivery counts that they
        had before the acquisition.
        """
        for each in acquisitions:
            if each.stretch is not None:
                each.stretch.release()
            if each.error is None:
                self._fetches.coordinator.cancel(each)

    # --- the answer ----------------------------------------------------------------------------

    def _answer(self, got: Mapping[WirePartition, AcquiredPartition]) -> Any:
        """Return the response's body. Whoever gets the body must release the file stretches in it."""
        answer = _Response(
            acquisition_lock_timeout_ms=self._fetches.coordinator.lock_timeout_ms(self._session.group),
            throttle_time_ms=self._throttle_ms,
        )
        results = {key: self._result(key, got) for key in self._keys()}
        for key in results if self._is_last else self._session.answered(results):
            if not answer.responses or answer.responses[-1].topic_id != key[0]:
                answer.responses.append(_Response.ShareFetchableTopicResponse(topic_id=key[0]))
            answer.responses[-1].partitions.append(self._row(key, got.get(key)))
        rows = [row for topic in answer.responses for row in topic.partitions]
        if any(row.current_leader.leader_id >= 0 for row in rows):
            answer.node_endpoints = [self._endpoint()]
        if got:
            self._fetches.granted(self._session, got)
        if self._throttle.bound is not None and got:
            answer.throttle_time_ms = self._throttle.charge(sum(len(row.records) for row in rows))
        return answer

    def _keys(self) -> Sequence[WirePartition]:
        """Return the session's partitions, followed by partitions with acknowledgements that are not in the
        session.
        """
        fetched = () if self._is_last else self._session.in_turn(0)
        return list(dict.fromkeys([*fetched, *self._acknowledged]))

    def _result(self, key: WirePartition, got: Mapping[WirePartition, AcquiredPartition]) -> SharedResult:
        return SharedResult(key in got, key in self._refused, key in self._acknowledged)

    def _row(self, key: WirePartition, got: AcquiredPartition | None) -> Any:
        fetched, acknowledged = self._refused.get(key, GOOD), self._acknowledged.get(key, GOOD)
        leader = self._fetches.topics.leader(key, fetched if fetched.code else acknowledged)
        row = _Row(
            partition_index=key[1],
            error_code=fetched.code,
            error_message=fetched.message,
            acknowledge_error_code=acknowledged.code,
            acknowledge_error_message=acknowledged.message,
            current_leader=_Leader(leader_id=leader[0], leader_epoch=leader[1]),
            records=_NO_RECORDS,
        )
        if got is not None:
            row.records = got.stretch
            row.acquired_records = [
                _Records(first_offset=first, last_offset=last, delivery_count=count)
                for first, last, count in got.acquired
            ]
        return row

    def _endpoint(self) -> Any:
        node = self._fetches.node
        host, port = node.endpoint
        return _Response.NodeEndpoint(node_id=node.node_id, host=host, port=port)


def _begin(fetches: ShareFetches, request: Request) -> Any:
    """Find the request's session, or make a session. Then make the first attempt to answer the request, and
    return its result.
    """
    body, asked = request.body, asked_of(request.body)
    epoch, is_acknowledging = body.share_session_epoch, bool(asked.acknowledged)
    try:
        session = fetches.sessions.fetch(
            body.group_id, body.member_id, epoch, request.channel, is_acknowledging
        )
    except SegstoreError as error:
        answer = _Response(error_code=code_of(error), error_message=str(error))
        # The error is answered after a wait, because clients retry at once.
        if isinstance(error, ShareSessionLimitReachedError) and body.max_wait_ms > 0:
            fetches.node.loop.later(body.max_wait_ms / 1000, lambda: request.answer(answer))
            return LATER
        return answer
    fetches.go_on(session)
    if epoch != FINAL:
        session.change(asked.partitions, _forgotten(body))
        fetches.waits.attend(session.group, fetches.coordinator)
    return _ShareFetch(fetches, request, session).begin(asked)


def _forgotten(body: Any) -> Iterator[WirePartition]:
    for topic in body.forgotten_topics_data:
        yield from ((topic.topic_id, number) for number in topic.partitions)


def share_fetch(node: Node, request: Request) -> Any:
    """Answer a ShareFetch at once, or when records are available."""
    body = request.body
    if not has_share_groups(node):
        return _Response(error_code=Code.UNSUPPORTED_VERSION)
    wants = body.max_bytes or body.min_bytes or body.max_records or body.max_wait_ms
    has_mode = request.version < _MODE_SINCE or body.share_acquire_mode in AcquireMode._value2member_map_
    if is_unnamed(body) or not has_mode or (renews(request) and wants):
        return _Response(error_code=Code.INVALID_REQUEST)
    return with_share_fetches(node, request, _begin)


HANDLERS = {Api.SHARE_FETCH: share_fetch}
