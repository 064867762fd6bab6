"""`LearnedProduce` answers Produce requests that a connection repeats, each with one batch for the same
partition. The requests differ only in correlation id and batch. On disk: writes the files of the partition's
log. Threads: the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from segstore.coordinator.throttle import QuotaThrottle
from segstore.errors import SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.primitives import uvarint
from segstore.protocol.template import (
    CORRELATION_ID,
    INT32,
    NUMBER_AT,
    Hole,
    MessageField,
    MessageTemplate,
    RecordsFrame,
    answer_template,
)
from segstore.server.apis import write_response
from segstore.server.request import Request, Response
from segstore.storage.log.exchange import NativeExchange
from segstore.storage.store.partition_log import PartitionLog

from .request import LearnedRequest

AT_ONCE = 1 << 20
"""If a request has more bytes than this, a worker thread appends its batches, not the loop's thread."""
_Response = structs("ProduceResponse")
_LEAST, _FLEXIBLE_SINCE = 7, 9
"""The first request version whose batches may be compressed by any codec, and the first request version whose
lengths are varints.
"""
_ACKS = (-1, 1)
"""The values of `acks` in learned requests. (A request with acks=0 gets no answer.)"""
_FLEXIBLE, _FIXED = RecordsFrame(True, b"\0\0\0"), RecordsFrame(False, b"")
"""The bytes of a request that follow the batch. In flexible versions they are three zero bytes: the
partition, the topic and the body have no tagged fields.
"""
_ANSWER_FIELDS = ("base_offset", "log_append_time_ms", "log_start_offset")


class ProduceTarget(NamedTuple):
    """The log to which a producer appends, and the producer's throttle. `refused(error)` returns the answer's
    partition struct for an error.
    """

    log: PartitionLog
    throttle: QuotaThrottle
    refused: Callable[[SegstoreError], Any]


class LearnedProduce(LearnedRequest):
    """Answers Produce requests that a connection repeats, all of them for the same partition."""

    def __init__(self, request: Request, template: MessageTemplate, target: ProduceTarget) -> None:
        # The body and the frame are dropped: this object may live as long as the connection, and would keep
        # the first batch in memory.
        super().__init__(replace(request, body=None, frame=None))
        self._template, self._target = template, target
        body = request.body
        self._acks, self._timeout_ms = body.acks, max(body.timeout_ms, 0)
        self._topic, self._topic_id = body.topic_data[0].name, body.topic_data[0].topic_id
        self._index = body.topic_data[0].partition_data[0].index
        self._answer: MessageTemplate | None = None

    def match(self, frame: memoryview) -> tuple[Any, ...] | None:
        """Return (correlation id, batch) of a request. Return None if any other byte differs from the learned
        request, or if the request is large.
        """
        return self._template.match(frame) if len(frame) <= AT_ONCE else None

    def answer(self, holes: tuple[Any, ...]) -> Response | None:
        """Append the batch and return the response. Return None, without an append, if the handler must
        append.
        """
        correlation_id, batch = holes
        log, throttle, refused = self._target
        if not batch or throttle.bound is not None or log.is_gone or log.append_may_wait(self._acks):
            return None
        try:
            appended = log.append_as_leader(batch, acks=self._acks, timeout_ms=self._timeout_ms)
        except SegstoreError as error:
            return self._refused(correlation_id, refused(error))
        answer = self._answer or self._learn()
        values = correlation_id, appended.base_offset, appended.log_append_time, appended.log_start_offset
        return answer.fill(values)[0], []

    def _learn(self) -> MessageTemplate:
        part = _Response.PartitionProduceResponse(index=self._index)
        fields, version = [MessageField(part, name) for name in _ANSWER_FIELDS], self.request.version
        self._answer = answer_template(version >= _FLEXIBLE_SINCE, version, self._body(part), fields)
        self.exchange = NativeExchange(self._template, self._answer, counts=self.row.counts)
        return self._answer

    def exchanged(self, sock: int, exchange: NativeExchange) -> Response | bool | None:
        """Implement `LearnedRequest.exchanged`: let the C code append the batch. Return None if the producer
        has a quota.
        """
        if self._target.throttle.bound is not None:
            return None
        try:
            return self._target.log.exchange_produce(sock, exchange)
        except SegstoreError as error:
            (correlation_id,) = INT32.unpack_from(exchange.request, NUMBER_AT)
            return self._refused(correlation_id, self._target.refused(error))

    def _refused(self, correlation_id: int, part: Any) -> Response:
        self.row.add_error(part.error_code)
        request = self.request
        return write_response(request.api, request.version, correlation_id, self._body(part))

    def _body(self, part: Any) -> Any:
        topic = _Response.TopicProduceResponse(
            name=self._topic, topic_id=self._topic_id, partition_responses=[part]
        )
        return _Response(responses=[topic])


def learned_produce(request: Request, target: ProduceTarget) -> LearnedProduce | None:
    """Return a `LearnedProduce` for requests that are similar to `request`, which the handler has answered.
    Return None if `request` has an old version, a transaction, several partitions, acks=0, or unknown tagged
    fields.
    """
    frame, body = request.frame, request.body
    if frame is None or request.version < _LEAST or body.acks not in _ACKS:
        return None
    if body.transactional_id is not None or len(body.topic_data) != 1:
        return None
    if len(body.topic_data[0].partition_data) != 1:
        return None
    size, records = len(body.topic_data[0].partition_data[0].records), _FIXED
    length = INT32.size
    if request.version >= _FLEXIBLE_SINCE:
        records, length = _FLEXIBLE, len(uvarint(size + 1))
    begin = len(frame) - len(records.end) - size - length
    if begin <= request.body_at:
        return None
    hole = Hole(CORRELATION_ID, NUMBER_AT, INT32.size)
    template = MessageTemplate(bytes(frame[:begin]), [hole], records)
    return LearnedProduce(request, template, target) if template.match(frame) is not None else None
