"""`RepeatedProduce`: the next requests of a producer that appends one batch after the other to one partition.
They differ in their correlation ids and their batches alone, and their answers in what the appends give: so
neither is read or written field by field.

Threads: the loop's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from segstore.coordinator.throttle import QuotaThrottle
from segstore.errors import InvalidRequestError, SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.primitives import CORRELATION_ID, read_uvarint, uvarint
from segstore.server.apis import write_response
from segstore.server.request import Received, Request, Response
from segstore.storage.log.exchange import Alike, NativeExchange
from segstore.storage.store.partition_log import PartitionLog

from .exchanged import exchanged

AT_ONCE = 1 << 20
"""Bytes of a request that are appended in the loop's thread, where others wait; more go to a worker."""
_Response = structs("ProduceResponse")
_LEAST, _FLEXIBLE_SINCE = 7, 9
"""The first version whose batches may have any codec, and the first whose lengths are varints."""
_ACKS = (-1, 1)
"""With all else there is no answer, or an error."""
_INT32 = struct.Struct(">i")
_TAGS = b"\0\0\0"
"""What comes behind the batch of the only partition of the only topic: none of them has tagged fields."""
_TOLD = struct.Struct(">qqq")
"""Base offset, log append time and log start offset, side by side in an answer."""
_MARKS = 0x0102030405060708, 0x1112131415161718, 0x2122232425262728


class Target(NamedTuple):
    """Where a producer appends to. `refused` gives a partition's part of the answer that tells an error."""

    log: PartitionLog
    throttle: QuotaThrottle
    refused: Callable[[SegstoreError], Any]


class RepeatedProduce:
    """Implements `segstore.server.request.Repeat`."""

    def __init__(self, request: Request, before: memoryview, target: Target) -> None:
        """`before` is the request up to the length of its batch."""
        (topic,) = request.body.topic_data
        self._topic = {"name": topic.name, "topic_id": topic.topic_id}
        self._index = topic.partition_data[0].index
        self._api, self._version = request.api, request.version
        self.row = request.channel.row(request.api)
        self._kind, self._rest = bytes(before[: CORRELATION_ID.start]), bytes(before[CORRELATION_ID.stop :])
        self._at, self._is_flexible = len(before), request.version >= _FLEXIBLE_SINCE
        self._acks, self._timeout_ms = request.body.acks, max(request.body.timeout_ms, 0)
        self._target = target
        self._answer: bytes | None = None
        self._told_at = 0
        self._exchange: NativeExchange | None = None

    def __call__(self, frame: memoryview) -> Response | None:
        """See `Repeat`."""
        at = self._at
        if (
            frame[CORRELATION_ID.stop : at] != self._rest
            or frame[: CORRELATION_ID.start] != self._kind
            or len(frame) > AT_ONCE
        ):
            return None
        records = self._batch(frame)
        log, throttle, refused = self._target
        if records is None or throttle.bound is not None or log.is_gone or log.append_may_wait(self._acks):
            return None
        try:
            told = log.append_as_leader(records, acks=self._acks, timeout_ms=self._timeout_ms)
        except SegstoreError as error:
            return self._refused(frame, refused(error))
        if self._answer is None:
            self._learn()
        out = bytearray(self._answer)  # type: ignore[arg-type]  # it was learnt
        out[CORRELATION_ID] = frame[CORRELATION_ID]
        _TOLD.pack_into(out, self._told_at, told.base_offset, told.log_append_time, told.log_start_offset)
        return out, []

    def receive(self, sock: int, memory: Any) -> Received | None:
        """See `Receive`."""
        exchange, (log, throttle, refused) = self._exchange, self._target
        if exchange is None or throttle.bound is not None:
            return None
        exchange.begin(memory)
        try:
            done = log.exchange_produce(sock, exchange)
        except SegstoreError as error:
            return exchange.c.received, self._refused(exchange.request, refused(error)), 0
        return exchanged(exchange, done)

    def _batch(self, frame: memoryview) -> memoryview | None:
        """Return the batch, if it and its length are what the request has behind the part that is known."""
        tags = _TAGS if self._is_flexible else b""
        at, end = self._at, len(frame) - len(tags)
        try:
            if self._is_flexible:
                size, at = read_uvarint(frame, at)
                size -= 1
            else:
                size, at = _INT32.unpack_from(frame, at)[0], at + _INT32.size
        except (IndexError, struct.error, InvalidRequestError):
            return None
        return frame[at:end] if 0 < size == end - at and frame[end:] == tags else None

    def _learn(self) -> None:
        """Have an answer encoded, and see where it has what differs from one to the next."""
        base_offset, append_time, start_offset = _MARKS
        part = _Response.PartitionProduceResponse(
            index=self._index,
            base_offset=base_offset,
            log_append_time_ms=append_time,
            log_start_offset=start_offset,
        )
        self._answer = bytes(self._written(memoryview(bytes(CORRELATION_ID.stop)), part))
        self._told_at = self._answer.index(_TOLD.pack(*_MARKS))
        asked = self._kind + bytes(CORRELATION_ID.stop - CORRELATION_ID.start) + self._rest
        alike = Alike(asked, self._answer, self._told_at, 3, self._is_flexible)
        self._exchange = NativeExchange(alike, self.row.counts)

    def _refused(self, frame: memoryview, part: Any) -> Response:
        self.row.add_error(part.error_code)
        return self._written(frame, part), []

    def _written(self, frame: memoryview, part: Any) -> bytearray:
        topic = _Response.TopicProduceResponse(**self._topic, partition_responses=[part])
        (correlation_id,) = _INT32.unpack(frame[CORRELATION_ID])
        return write_response(self._api, self._version, correlation_id, _Response(responses=[topic]))[0]


def repeated(request: Request, target: Target) -> RepeatedProduce | None:
    """Return what answers the next requests of a producer; None where it appends to several partitions, or
    its request has what is not usual. The request has come to its handler, which has appended.
    """
    frame, body = request.frame, request.body
    if (
        frame is None
        or request.version < _LEAST
        or body.acks not in _ACKS
        or body.transactional_id is not None
    ):
        return None
    if len(body.topic_data) != 1 or len(body.topic_data[0].partition_data) != 1:
        return None
    size, is_flexible = len(body.topic_data[0].partition_data[0].records), request.version >= _FLEXIBLE_SINCE
    tags, length = (_TAGS, uvarint(size + 1)) if is_flexible else (b"", _INT32.pack(size))
    end = len(frame) - len(tags)
    begin = end - size - len(length)
    if begin <= CORRELATION_ID.stop or frame[begin : end - size] != length or frame[end:] != tags:
        return None
    return RepeatedProduce(request, frame[:begin], target)
