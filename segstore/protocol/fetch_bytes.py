"""What requests and answers of Fetch that are alike have in common as bytes: where requests differ, and the
answers that tell of nothing, or of one partition without an error, but for what the log tells. So neither
side reads or writes them field by field.

Threads: no state.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Protocol

from segstore.errors import InvalidRequestError
from segstore.protocol.codec import FileSlice, Slices, encode, structs
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.primitives import CORRELATION_ID, read_uvarint, uvarint

_Response = structs("FetchResponse")
_FLEXIBLE_SINCE, _START_SINCE = 12, 5
"""The first versions whose lengths are varints, and whose answers tell the log start offset."""
INT32, INT64 = struct.Struct(">i"), struct.Struct(">q")
_SIZE = INT32.size
_MARKS = 0x0102030405060708, 0x1112131415161718, 0x2122232425262728
_MARK = b"\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8"


def place_of(body: Any, version: int, frame: bytes, holder: Any, name: str) -> int | None:
    """Return where a number of a request's body lies in its `frame`, which ends with that body: the field
    `name` of `holder`, which is the body or one of its parts. None where the frame has what is not usual,
    such as unknown tags.
    """
    mine, other = bytearray(), bytearray()
    encode(body, version, mine)
    value = getattr(holder, name)
    setattr(holder, name, ~value)
    try:
        encode(body, version, other)
    finally:
        setattr(holder, name, value)
    begin = len(frame) - len(mine)
    if begin < CORRELATION_ID.stop or frame[begin:] != mine:
        return None
    return begin + next(i for i, (one, two) in enumerate(zip(mine, other, strict=True)) if one != two)


def _whole(version: int, body: Any) -> bytes:
    """Return an answer with its size, and correlation id 0."""
    out = bytearray(CORRELATION_ID.stop)
    if version >= _FLEXIBLE_SINCE:
        out.append(0)  # no tagged fields
    encode(body, version, out)
    INT32.pack_into(out, 0, len(out) - _SIZE)
    return bytes(out)


class Batches(FileSlice, Protocol):
    """Batches that an answer brings, with what it tells of their log."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class Brought(NamedTuple):
    """What an answer tells of its partition; the records are a part of it, which is not copied."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview


class BegunAnswer(NamedTuple):
    """What an answer tells of its partition before its records, which lie from `at` to `end`."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    at: int
    end: int


class PartitionAnswer:
    """The answers that tell of one partition, without an error. `topic_id` counts from version 13 on, `topic`
    before; `committed`: aborted transactions are told, of which there are none.
    """

    def __init__(
        self,
        version: int,
        topic: str,
        topic_id: bytes,
        partition: int,
        committed: bool,
        session_id: int = NO_SESSION,
    ) -> None:
        high_watermark, stable, start = _MARKS
        data = _Response.PartitionData(
            partition_index=partition,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=[] if committed else None,
            records=_MARK,
        )
        told = _Response.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=[data])
        made = _whole(version, _Response(session_id=session_id, responses=[told]))
        self._is_flexible = version >= _FLEXIBLE_SINCE
        at = made.index(_MARK)
        self._before = made[: at - len(self._length(len(_MARK)))]
        self._behind = made[at + len(_MARK) :]
        self._told = struct.Struct(">qqq" if version >= _START_SINCE else ">qq")
        self._tells_start = version >= _START_SINCE
        self._told_at = made.index(INT64.pack(high_watermark))
        # The same, of an answer without its size.
        self._named = self._before[CORRELATION_ID.stop : self._told_at]
        self._named_at = slice(CORRELATION_ID.stop - _SIZE, self._told_at - _SIZE)
        self._rest = self._before[self._told_at + self._told.size :]
        self._rest_at = slice(self._told_at + self._told.size - _SIZE, len(self._before) - _SIZE)

    def _length(self, size: int) -> bytes:
        return uvarint(size + 1) if self._is_flexible else INT32.pack(size)

    @property
    def parts(self) -> tuple[bytes, bytes, int, int, bool]:
        """Return what comes before the length of the records, with the answer's size, and what behind them;
        where the log's numbers lie, and how many these are; and whether lengths are varints.
        """
        return self._before, self._behind, self._told_at, 2 + self._tells_start, self._is_flexible

    def of(self, batches: Batches, correlation_id: bytes) -> tuple[bytearray, Slices]:
        """Return the answer with these batches, which belong to it from now on, and where their bytes are to
        be put in.
        """
        size = len(batches)
        out = bytearray(self._before)
        out += self._length(size)
        place = len(out)
        out += self._behind
        out[CORRELATION_ID] = correlation_id
        INT32.pack_into(out, 0, len(out) - _SIZE + size)
        ends = batches.high_watermark, batches.last_stable_offset, batches.log_start_offset
        self._told.pack_into(out, self._told_at, *ends[: 2 + self._tells_start])
        return out, [(place, batches)] if size else []

    def begin(self, here: memoryview, size: int) -> BegunAnswer | None:
        """Return what an answer tells before its records. It has `size` bytes without its size, and its
        beginning is `here`; None where it is no such answer, or too little is here. Its correlation id is not
        looked at.
        """
        if here[self._named_at] != self._named or here[self._rest_at] != self._rest:
            return None
        at = self._rest_at.stop
        try:
            if self._is_flexible:
                length, at = read_uvarint(here, at)
                length -= 1
            else:
                length, at = INT32.unpack_from(here, at)[0], at + INT32.size
        except (IndexError, struct.error, InvalidRequestError):
            return None
        if length < 0 or at + length + len(self._behind) != size:
            return None
        ends = self._told.unpack_from(here, self._told_at - _SIZE)
        return BegunAnswer(ends[0], ends[1], ends[2] if self._tells_start else -1, at, at + length)

    def is_end(self, behind: memoryview) -> bool:
        """Return whether this is what comes behind the records."""
        return behind == self._behind

    def read(self, answer: memoryview) -> Brought | None:
        """Return what an answer brings, which is here without its size; None where it is no such answer. Its
        correlation id is not looked at.
        """
        begun = self.begin(answer, len(answer))
        if begun is None or answer[begun.end :] != self._behind:
            return None
        return Brought(*begun[:3], answer[begun.at : begun.end])


class EmptyAnswer:
    """The answer of a session in which nothing has changed."""

    def __init__(self, version: int, session_id: int) -> None:
        self._made = _whole(version, _Response(session_id=session_id))

    def of(self, correlation_id: bytes) -> tuple[bytearray, Slices]:
        """Return the answer."""
        out = bytearray(self._made)
        out[CORRELATION_ID] = correlation_id
        return out, []
