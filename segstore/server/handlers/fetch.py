"""Fetch: answers with stored batches, at once or when `min_bytes` are available. The batches are sent by
sendfile (KIP-227, KIP-516, KIP-595; Kafka: KafkaApis.handleFetchRequest).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, QuotaThrottle, quotas
from segstore.errors import SegstoreError
from segstore.integers import INT64_MAX
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.fetching.purgatory import Parked, Purgatory, awaited
from segstore.server.fetching.reading import Look, Terms, look
from segstore.server.fetching.sessions import (
    FetchContext,
    FetchSessions,
    Incremental,
    Sessionless,
)
from segstore.server.learned.fetch import FetchTarget, LearnedFetch, learned_fetch
from segstore.server.logs import Logs
from segstore.server.node import Node
from segstore.server.primary import primary_of
from segstore.server.request import LATER, Request
from segstore.server.security.allow_list import ResourceType
from segstore.storage.producers.aborted_transactions import outcomes
from segstore.storage.store.partition_log import PartitionLog

from .working import work

log = Logger("segstore")
_Response = structs("FetchResponse")
_COMMITTED = 1
_MOST_AT_HAND = 1000
_REPLICA_STATE_SINCE = 15


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _FetchUnderWay(NamedTuple):
    """A Fetch request that is not answered yet, with the context of its session, its limits and its
    throttle.
    """

    request: Request
    context: FetchContext
    terms: Terms
    throttle: QuotaThrottle


class Fetches:
    """The fetch sessions, the purgatory and the throttles of a server."""

    def __init__(self, node: Node) -> None:
        self._node, self._most = node, node.config.fetch_max_bytes
        self._logs, self._quotas = node.part(Logs), quotas(node.store)
        self._throttles: dict[tuple[str, str], QuotaThrottle] = {}
        slots = node.config.max_incremental_fetch_session_cache_slots
        self.sessions = FetchSessions(slots, _monotonic_ms, random.SystemRandom())
        self.purgatory = Purgatory(node, self._logs)

    def begin(self, request: Request) -> Any:
        """Return the answer to a request, or LATER if the request must wait."""
        context = self.sessions.open(request.version, request.body, self._logs)
        if isinstance(context, Code):
            return _Response(error_code=context)
        throttle = self.throttle_of(request)
        terms = self._terms(request, throttle)
        if throttle.bound is not None and (debt := throttle.wait_ms()):
            body = context.throttled()
            body.throttle_time_ms = debt
            return body
        under_way = _FetchUnderWay(request, context, terms, throttle)
        answer = self._serve(under_way)
        if request.frame is not None:
            self._keep(under_way)
        return answer

    def _keep(self, fetch: _FetchUnderWay) -> None:
        """Set the connection's `learned`, if it can answer later requests like this one without decoding
        them.
        """
        request, context, terms = fetch.request, fetch.context, fetch.terms
        learned = request.channel.learned
        if isinstance(learned, LearnedFetch) and learned.is_like:
            return  # the present `learned` can answer requests like this one
        if self._node.store.mode != "rw" or self._node.authorizer is not None:
            return
        serve = partial(self._serve_again, fetch)
        target = FetchTarget(self._logs, self.purgatory, self.sessions, terms, fetch.throttle, serve)
        if isinstance(context, Incremental):
            if isinstance(learned, LearnedFetch) and learned.goes_on(context.session, target):
                learned.learn(request)
            elif fetch.throttle.bound is None:
                request.channel.learned = learned_fetch(request, context, target)
        elif type(context) is Sessionless:
            request.channel.learned = learned_fetch(request, context, target)

    def _serve_again(self, fetch: _FetchUnderWay, context: FetchContext, correlation_id: int) -> None:
        request, channel = fetch.request, fetch.request.channel
        answer = partial(channel.answer, request.api, request.version, correlation_id)
        again = fetch._replace(request=replace(request, answer=answer, frame=None), context=context)
        self._later(again, lambda: self._serve(again, False))

    def _serve(self, fetch: _FetchUnderWay, may_wait: bool = True) -> Any:
        """Return the answer to a fetch, or LATER if the fetch must wait, or if a worker must first read
        aborted transactions.
        """
        terms = fetch.terms
        may_wait = may_wait and terms.max_wait_ms > 0
        # The number is read before the partitions, so that a publication during their read ends the wait.
        seen = self.purgatory.publications if may_wait else 0
        found = look(self._logs, fetch.context.wanted, terms)
        if found.unsearched:
            found.release()
            return self._search(fetch, found.unsearched, may_wait)
        if not may_wait or found.at_once or found.size >= terms.min_bytes:
            return self._answer(fetch, found)
        found.release()
        parked = Parked(fetch.request, terms, found.sizes, lambda: self._finish(fetch, found, seen))
        self.purgatory.park(parked, awaited(found), seen)
        return LATER

    def _finish(self, fetch: _FetchUnderWay, found: Look, seen: int) -> None:
        """Answer a parked fetch whose wait has ended."""
        # If nothing was published since `found` was read, a new read would find no records again.
        if not found.size and seen == self.purgatory.publications:
            self._later(fetch, lambda: self._answer(fetch, found))
        else:
            self._later(fetch, lambda: self._serve(fetch, False))

    def _later(self, fetch: _FetchUnderWay, serve: Callable[[], Any]) -> None:
        """Send the answer that `serve` returns; close the connection if `serve` raises. Called after the
        handler has returned LATER.
        """
        try:
            answer = serve()
            if answer is not LATER:
                fetch.request.answer(answer)
        except Exception:
            log.exception("a fetch of %s failed", fetch.request.channel.peer)
            fetch.request.channel.close()

    def _search(self, fetch: _FetchUnderWay, unsearched: list[PartitionLog], may_wait: bool) -> Any:
        """Read the aborted transactions of logs in a worker thread, then serve the fetch. Return LATER."""

        def run() -> None:
            for each in unsearched:
                # `_serve` will get the suppressed error again, and put its code into the answer.
                with suppress(SegstoreError):
                    outcomes(each)

        def done(_: object) -> None:
            if fetch.request.channel.is_open:
                again = fetch._replace(terms=fetch.terms._replace(max_searched=INT64_MAX))
                self._later(again, lambda: self._serve(again, may_wait))

        return work(self._node, fetch.request, run, done)

    def throttle_of(self, request: Request) -> QuotaThrottle:
        """Return the throttle of the request's user and client id, from a cache of at most `_MOST_AT_HAND`
        throttles.
        """
        user, client_id = key = request.channel.principal, request.client_id or ""
        throttle = self._throttles.get(key)
        if throttle is None:
            if len(self._throttles) >= _MOST_AT_HAND:
                self._throttles.clear()
            throttle = self._throttles[key] = self._quotas.throttle(CONSUMER_BYTE_RATE, client_id, user)
        return throttle

    def _terms(self, request: Request, throttle: QuotaThrottle) -> Terms:
        """Return the fetch's limits; `max_bytes` is at most the number of bytes that the client's quota
        allows at once.
        """
        body = request.body
        most = max(min(body.max_bytes, self._most), 0)
        if throttle.bound is not None:
            most = min(most, throttle.most_at_once)
        tagged = request.version >= _REPLICA_STATE_SINCE
        replica_id = body.replica_state.replica_id if tagged else body.replica_id
        broker_epoch = body.replica_state.replica_epoch if tagged else -1
        committed = replica_id < 0 and body.isolation_level == _COMMITTED
        least = min(body.min_bytes, most)
        may_read = None if self._node.authorizer is None else self._reader(request, replica_id)
        primary = primary_of(self._node) if replica_id >= 0 else None
        return Terms(
            request.version,
            replica_id,
            committed,
            body.max_wait_ms,
            least,
            most,
            may_read,
            broker_epoch=broker_epoch,
            primary=primary,
        )

    def _reader(self, request: Request, replica_id: int) -> Callable[[str], bool]:
        """Return a function that returns whether the client may read a topic. Each call checks the rights
        that the client has at the time of the call. A replica needs CLUSTER_ACTION on the cluster instead of
        READ on the topic.
        """
        node, principal = self._node, request.channel.principal
        if replica_id >= 0:
            return lambda topic: node.allows(principal, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return lambda topic: node.allows(principal, AclOperation.READ, ResourceType.TOPIC, topic)

    def _answer(self, fetch: _FetchUnderWay, found: Look) -> Any:
        """Return the response's body. Whoever gets the body must release the file stretches in it."""
        body, throttle = fetch.context.answer(found.fetched), fetch.throttle
        if body.error_code:
            found.release()
            return body
        if throttle.bound is not None:
            body.throttle_time_ms = throttle.charge(sum(len(each.data.records) for each in found.fetched))
        if found.at_once and any(each.data.current_leader.leader_id >= 0 for each in found.fetched):
            host, port = self._node.endpoint
            body.node_endpoints = [_Response.NodeEndpoint(node_id=self._node.node_id, host=host, port=port)]
        return body

    def close(self) -> None:
        """Forget the parked fetches: they are not answered."""
        self.purgatory.close()


def fetch(node: Node, request: Request) -> Any:
    """Answer a fetch at once, or when it has waited."""
    return node.part(Fetches).begin(request)


HANDLERS = {Api.FETCH: fetch}
