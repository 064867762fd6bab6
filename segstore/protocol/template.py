"""`MessageTemplate`: the bytes of a message of Kafka's protocol with holes. A hole is a number that differs
from message to message. If messages differ only in the holes, a template can match and make them without
decoding or encoding other fields.

Threads: no state.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from segstore.errors import InvalidRequestError
from segstore.protocol.codec import encode
from segstore.protocol.primitives import read_uvarint, uvarint

INT32 = struct.Struct(">i")
SIZE = INT32.size
"""Size of the length field before each message, in bytes; templates don't include it."""
NUMBER_AT = 4
"""The position of the correlation id in a request. In an answer the position is 0."""
CORRELATION_ID = "correlation_id"
_KINDS = {4: "i", 8: "q"}


class MessageField(NamedTuple):
    """A field of a message's body; `holder` is the body, or a struct in the body."""

    holder: Any
    name: str


class Hole(NamedTuple):
    """A number that differs between the messages of a template: the position of the number's first byte in
    the message, and the number's width in bytes, 4 or 8.
    """

    name: str
    at: int
    width: int


class RecordsFrame(NamedTuple):
    """The bytes around a message's records. If `is_compact`, the records' length is a varint. `end` has the
    bytes that follow the records.
    """

    is_compact: bool
    end: bytes


class MatchedStart(NamedTuple):
    """The numbers in a message's holes, and the position of the message's records, which begin at `at` and
    end at `stop`.
    """

    values: tuple[Any, ...]
    at: int
    stop: int


class MessageTemplate:
    """A message with holes: numbers that differ from message to message. `front` has the bytes
    of the message up to the length field of its records, or all bytes of the message if `records` is None.
    `holes` are the holes in `front`, in order.
    """

    __slots__ = ("_parts", "_shape", "_sized", "constants", "front", "holes", "records")

    def __init__(self, front: bytes, holes: Sequence[Hole], records: RecordsFrame | None = None) -> None:
        self.front, self.holes, self.records = front, tuple(holes), records
        form, at = "", 0
        for hole in holes:
            form += f"{hole.at - at}s{_KINDS[hole.width]}"
            at = hole.at + hole.width
        form += f"{len(front) - at}s"
        self._shape, self._sized = struct.Struct(">" + form), struct.Struct(">i" + form)
        self._parts = list(self._shape.unpack(front))
        self.constants = tuple(self._parts[::2])

    def match(self, message: memoryview) -> tuple[Any, ...] | None:
        """Return the numbers in the holes of a message. If the template has records, the last element of the
        result is a view of the message's records. Return None if a byte outside of the holes and records
        differs from the template.
        """
        if self.records is None:
            return self._numbers(message) if len(message) == len(self.front) else None
        begun = self.begin(message, len(message))
        if begun is None or message[begun.stop :] != self.records.end:
            return None
        return *begun.values, message[begun.at : begun.stop]

    def begin(self, start: memoryview, size: int) -> MatchedStart | None:
        """Match a message of `size` bytes by its first bytes, `start`. Return None if `start` ends before the
        records begin, or if a byte before the records, outside of the holes, differs from the template. Also
        return None if the records' length does not agree with `size`. The bytes after the records are not
        compared.
        """
        assert self.records is not None
        values = self._numbers(start)
        if values is None:
            return None
        at = len(self.front)
        try:
            if self.records.is_compact:
                length, at = read_uvarint(start, at)
                length -= 1
            else:
                length, at = INT32.unpack_from(start, at)[0], at + INT32.size
        except (IndexError, struct.error, InvalidRequestError):
            return None
        if length < 0 or at + length + len(self.records.end) != size:
            return None
        return MatchedStart(values, at, at + length)

    def split(self, message: memoryview) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Return (numbers in the holes of a message, byte strings between the holes). The message must be at
        least as long as `front`.
        """
        found = self._shape.unpack_from(message)
        return found[1::2], found[::2]

    def _numbers(self, message: memoryview) -> tuple[int, ...] | None:
        if len(message) < len(self.front):
            return None
        found = self._shape.unpack_from(message)
        return found[1::2] if found[::2] == self.constants else None

    def fill(self, values: Sequence[int], size: int = 0) -> tuple[bytearray, int]:
        """Return (frame; position of the records in the frame, or 0 if the template has no records). The
        frame is a length field and the message with these numbers in its holes. `size` bytes of records are
        counted in the lengths, but are not in the frame.
        """
        parts = self._parts.copy()
        parts[1::2] = values
        if self.records is None:
            return bytearray(self._sized.pack(len(self.front), *parts)), 0
        length = _length(self.records.is_compact, size)
        rest = len(length) + size + len(self.records.end)
        out = bytearray(self._sized.pack(len(self.front) + rest, *parts))
        out += length
        at = len(out)
        out += self.records.end
        return out, at


def _length(is_compact: bool, size: int) -> bytes:
    return uvarint(size + 1) if is_compact else INT32.pack(size)


def request_template(
    frame: memoryview, body_at: int, version: int, body: Any, fields: Sequence[MessageField]
) -> MessageTemplate | None:
    """Return the template of requests that differ from this request only in correlation id and `fields`; None
    if this request has bytes that are not in its decoded body, such as tagged fields with unknown tags.
    """
    made = template_after(bytes(frame[:body_at]), version, body, fields)
    return made if made.front == frame else None


def template_after(header: bytes, version: int, body: Any, fields: Sequence[MessageField]) -> MessageTemplate:
    """Return the template of requests with this header and body; the correlation id and `fields` are the
    template's holes.
    """
    return _template(header, Hole(CORRELATION_ID, NUMBER_AT, INT32.size), version, body, fields)


def answer_template(
    is_flexible: bool,
    version: int,
    body: Any,
    fields: Sequence[MessageField] = (),
    records: MessageField | None = None,
) -> MessageTemplate:
    """Return the template of answers that differ from `body` only in correlation id, `fields` and `records`.
    The version must have `fields`.
    """
    head, number = bytes(INT32.size + is_flexible), Hole(CORRELATION_ID, 0, INT32.size)
    if records is None:
        return _template(head, number, version, body, fields)
    kept = getattr(records.holder, records.name)
    try:
        setattr(records.holder, records.name, b"1")
        longer = _encoded(head, version, body)
        setattr(records.holder, records.name, b"")
        made = _template(head, number, version, body, fields)
    finally:
        setattr(records.holder, records.name, kept)
    # The encodings with no and with one byte of records first differ in the last byte of the length of the
    # records: 0 and 1, or 1 and 2 as a varint.
    last = _first_difference(made.front, longer)
    at = last if is_flexible else last + 1 - INT32.size
    return MessageTemplate(made.front[:at], made.holes, RecordsFrame(is_flexible, made.front[last + 1 :]))


def _template(
    head: bytes, number: Hole, version: int, body: Any, fields: Sequence[MessageField]
) -> MessageTemplate:
    made = _encoded(head, version, body)
    holes = [number, *(_hole(made, head, version, body, field) for field in fields)]
    return MessageTemplate(made, sorted(holes, key=lambda hole: hole.at))


def _encoded(head: bytes, version: int, body: Any) -> bytes:
    out = bytearray(head)
    encode(body, version, out)
    return bytes(out)


def _hole(made: bytes, head: bytes, version: int, body: Any, field: MessageField) -> Hole:
    """Return the hole of a field: the bytes that change if all bits of the field's value are inverted."""
    value = getattr(field.holder, field.name)
    setattr(field.holder, field.name, ~value)
    try:
        other = _encoded(head, version, body)
    finally:
        setattr(field.holder, field.name, value)
    width = sum(one != two for one, two in zip(made, other, strict=True))
    return Hole(field.name, _first_difference(made, other), width)


def _first_difference(one: bytes, other: bytes) -> int:
    return next(i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
