"""What fetches that are alike have in common as bytes: where requests differ, and their answers but for what
the log tells. So neither is read or written field by field.

Threads: the loop's.
"""

from __future__ import annotations

import struct
from typing import Any

from segstore.protocol.codec import encode, structs
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.primitives import uvarint
from segstore.server.apis import write_response
from segstore.server.fetching.sessions import Wanted
from segstore.server.request import CORRELATION_ID, Request, Response
from segstore.storage.transfer.stretch import Stretch

_Response = structs("FetchResponse")
_FLEXIBLE_SINCE, _START_SINCE = 12, 5
"""The first versions whose lengths are varints, and whose answers tell the log start offset."""
INT32, INT64 = struct.Struct(">i"), struct.Struct(">q")
_MARKS = 0x0102030405060708, 0x1112131415161718, 0x2122232425262728
_MARK = b"\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8"


def place_of(request: Request, frame: bytes, holder: Any, name: str) -> int | None:
    """Return where a number of a request's body lies in its frame: the field `name` of `holder`, which is the
    body or one of its parts. None where the frame has what is not usual, such as unknown tags.
    """
    mine, other = bytearray(), bytearray()
    encode(request.body, request.version, mine)
    value = getattr(holder, name)
    setattr(holder, name, ~value)
    try:
        encode(request.body, request.version, other)
    finally:
        setattr(holder, name, value)
    begin = len(frame) - len(mine)
    if begin < CORRELATION_ID.stop or frame[begin:] != mine:
        return None
    return begin + next(i for i, (one, two) in enumerate(zip(mine, other, strict=True)) if one != two)


class PartitionAnswer:
    """The answer that tells of one partition, without an error, all but for what the log tells."""

    def __init__(
        self, request: Request, wanted: Wanted, committed: bool, session_id: int = NO_SESSION
    ) -> None:
        high_watermark, stable, start = _MARKS
        data = _Response.PartitionData(
            partition_index=wanted.partition,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=[] if committed else None,
            records=_MARK,
        )
        topic = _Response.FetchableTopicResponse(
            topic=wanted.topic or "", topic_id=wanted.topic_id, partitions=[data]
        )
        body = _Response(session_id=session_id, responses=[topic])
        made = bytes(write_response(request.api, request.version, 0, body)[0])
        self._is_flexible = request.version >= _FLEXIBLE_SINCE
        at = made.index(_MARK)
        self._before = made[: at - len(self._length(len(_MARK)))]
        self._behind = made[at + len(_MARK) :]
        self._told = struct.Struct(">qqq" if request.version >= _START_SINCE else ">qq")
        self._tells_start = request.version >= _START_SINCE
        self._told_at = made.index(INT64.pack(high_watermark))

    def _length(self, size: int) -> bytes:
        return uvarint(size + 1) if self._is_flexible else INT32.pack(size)

    def of(self, stretch: Stretch, correlation_id: bytes) -> Response:
        """Return the answer with a stretch, which belongs to it from now on."""
        size = len(stretch)
        out = bytearray(self._before)
        out += self._length(size)
        place = len(out)
        out += self._behind
        out[CORRELATION_ID] = correlation_id
        INT32.pack_into(out, 0, len(out) - INT32.size + size)
        ends = stretch.high_watermark, stretch.last_stable_offset, stretch.log_start_offset
        self._told.pack_into(out, self._told_at, *ends[: 2 + self._tells_start])
        return out, [(place, stretch)] if size else []


class EmptyAnswer:
    """The answer of a session in which nothing has changed."""

    def __init__(self, request: Request, session_id: int) -> None:
        made, _ = write_response(request.api, request.version, 0, _Response(session_id=session_id))
        self._made = bytes(made)

    def of(self, correlation_id: bytes) -> Response:
        """Return the answer."""
        out = bytearray(self._made)
        out[CORRELATION_ID] = correlation_id
        return out, []
