"""`RepeatedFetch`: the next requests of a consumer that fetches one partition outside of a fetch session, as
librdkafka does. They differ in their correlation ids and fetch offsets alone, and their answers in what the
log has: so neither is read or written field by field.

Threads: the loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from segstore.coordinator.throttle import QuotaThrottle
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.protocol.fetch_bytes import INT32, INT64, PartitionAnswer, place_of
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.primitives import CORRELATION_ID
from segstore.server.fetching.purgatory import Awaited, Parked, Purgatory
from segstore.server.fetching.reading import Terms
from segstore.server.fetching.sessions import Wanted
from segstore.server.logs import Logs
from segstore.server.request import LATER, SHORT, Later, Received, Request, Response
from segstore.storage.log.exchange import Alike, NativeExchange
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.transfer.stretch import Stretch

from .exchanged import exchanged

log = Logger("segstore")


class Target(NamedTuple):
    """What a consumer's fetches share with all others. `serve` answers a request that has waited, as the
    handler does, from what it wants and its correlation id.
    """

    logs: Logs
    purgatory: Purgatory
    terms: Terms
    throttle: QuotaThrottle
    serve: Callable[[Wanted, int], None]


class RepeatedFetch:
    """Implements `segstore.server.request.Repeat`. `is_like`: the request that was seen last was like the
    first, whether it was answered here or not.
    """

    def __init__(self, request: Request, wanted: Wanted, log: PartitionLog, target: Target) -> None:
        self._request, self._asked, self._log, self._target = request, wanted, log, target
        self.row = request.channel.row(request.api)
        assert request.frame is not None
        self._first, self._at = bytes(request.frame), 0
        self._kind = self._first[: CORRELATION_ID.start]
        self._before, self._behind = b"", b""
        self._most = max(min(wanted.max_bytes, target.terms.max_bytes), 0)
        self._answer: PartitionAnswer | None = None
        self._exchange: NativeExchange | None = None
        self._is_short = False
        """Whether the last answer that was made here had batches, and few enough for C to copy them."""
        self.is_like = False

    def __call__(self, frame: memoryview) -> Response | Later | None:
        """See `Repeat`."""
        self.is_like = False
        if len(frame) != len(self._first) or not (self._at or self._learn()):
            return None
        at = self._at
        if frame[CORRELATION_ID.stop : at] != self._before or frame[at + INT64.size :] != self._behind:
            return None
        if frame[: CORRELATION_ID.start] != self._kind or self._log.is_gone:
            return None
        self.is_like = True
        (offset,) = INT64.unpack_from(frame, at)
        found, terms = self._look(offset), self._target.terms
        if found is None:
            return None
        size = len(found)
        self._is_short = 0 < size <= SHORT
        if size >= terms.min_bytes or terms.max_wait_ms <= 0:
            return self._written(found, bytes(frame[CORRELATION_ID]))
        found.release()
        return None if size else self._park(offset, bytes(frame[CORRELATION_ID]))

    def receive(self, sock: int, memory: Any) -> Received | None:
        """See `Receive`."""
        exchange, log, epoch = self._exchange, self._log, self._asked.current_epoch
        if exchange is None or not self._is_short or self._target.throttle.bound is not None:
            return None
        if epoch >= 0 and log.leader_epoch != epoch:
            return None
        exchange.begin(memory)
        return exchanged(exchange, log.exchange_fetch(sock, exchange))

    def _look(self, offset: int) -> Stretch | None:
        """Return what there is; None where the handler has to say it."""
        log, wanted, target = self._log, self._asked, self._target
        if target.throttle.bound is not None:
            return None
        if wanted.current_epoch >= 0 and log.leader_epoch != wanted.current_epoch:
            return None
        return log.stretch_at_once(offset, self._most, target.terms.committed)

    def _written(self, found: Stretch, correlation_id: bytes) -> Response:
        if self._answer is None:
            asked = self._asked
            self._answer = PartitionAnswer(
                self._request.version,
                asked.topic or "",
                asked.topic_id,
                asked.partition,
                self._target.terms.committed,
            )
            self._exchange = NativeExchange(self._alike(self._answer), self.row.counts)
        return self._answer.of(found, correlation_id)

    def _alike(self, answer: PartitionAnswer) -> Alike:
        terms = self._target.terms
        before, behind, told_at, n_told, is_flexible = answer.parts
        return Alike(
            self._first,
            before,
            told_at,
            n_told,
            is_flexible,
            behind,
            offset_at=self._at,
            most=self._most,
            least=terms.min_bytes if terms.max_wait_ms > 0 else 0,
            longest=SHORT,
            committed=terms.committed,
        )

    # --- waiting --------------------------------------------------------------------------

    def _park(self, offset: int, correlation_id: bytes) -> Response | Later | None:
        """Have a fetch wait at the log's end."""
        purgatory, terms = self._target.purgatory, self._target.terms
        seen = purgatory.publications  # what is published from here on ends the wait
        found = self._look(offset)
        if found is None:
            return None
        if len(found):
            return self._written(found, correlation_id)
        wanted = Wanted(self._asked.topic, self._asked.topic_id, self._request.body.topics[0].partitions[0])
        wanted.offset = offset
        told = Awaited(wanted, found.high_watermark, found.last_stable_offset)
        parked = Parked(self._request, terms, {}, lambda: self._finish(wanted, correlation_id, found, seen))
        purgatory.park(parked, [told], seen)
        return LATER

    def _finish(self, wanted: Wanted, correlation_id: bytes, found: Stretch, seen: int) -> None:
        """Answer a fetch that has waited, with what there is: what it `found` where nothing was published
        since. What fails unexpectedly ends its connection.
        """
        channel = self._request.channel
        try:
            now: Stretch | None = found
            if self._target.throttle.bound is not None or seen != self._target.purgatory.publications:
                now = None if self._log.is_gone else self._look(wanted.offset)
            if now is None:
                self._target.serve(wanted, *INT32.unpack(correlation_id))
            else:
                channel.give(*self._written(now, correlation_id))
        except Exception:
            log.exception("a fetch of %s failed", channel.peer)
            channel.close()

    # --- what is like the first request ---------------------------------------------------

    def _learn(self) -> bool:
        """See where the first request has its offset; returns whether it has only what is usual."""
        part = self._request.body.topics[0].partitions[0]
        request = self._request
        at = place_of(request.body, request.version, self._first, part, "fetch_offset")
        if at is None:
            return False
        self._before, self._behind = self._first[CORRELATION_ID.stop : at], self._first[at + INT64.size :]
        self._at = at
        return True


def repeated(request: Request, asked: Iterable[Wanted], target: Target) -> RepeatedFetch | None:
    """Return what answers the next requests of a consumer; None where it fetches several partitions, or its
    request has what is not usual. The request, which is outside of a session, has come to its handler.
    """
    body, terms = request.body, target.terms
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1 or body.session_id != NO_SESSION:
        return None
    (wanted,) = asked
    if wanted.topic is None or wanted.fetched_epoch >= 0 or terms.replica_id >= 0:
        return None
    try:
        found = target.logs.find(wanted.topic, wanted.partition)
    except SegstoreError:
        return None
    return None if found.has_replicas else RepeatedFetch(request, wanted, found, target)
