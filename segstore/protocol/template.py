"""`MessageTemplate`: a message of Kafka's protocol as bytes with named holes. Messages that differ only in
the holes are matched, or made, without encoding or decoding a field.

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
"""Bytes of the size that comes before each message, which is no part of a template."""
NUMBER_AT = 4
"""The position of the correlation id in a request; in an answer it comes first."""
CORRELATION_ID = "correlation_id"
_KINDS = {4: "i", 8: "q"}


class MessageField(NamedTuple):
    """A field of a message's body: `holder` is the body, or a structure in the body."""

    holder: Any
    name: str


class Hole(NamedTuple):
    """The place of a number in a message, by its first byte and its width in bytes, which is 4 or 8."""

    name: str
    at: int
    width: int


class RecordsFrame(NamedTuple):
    """The frame around the records in a message: `is_compact` if their length is a varint, and the bytes
    after the records (`end`).
    """

    is_compact: bool
    end: bytes


class MatchedStart(NamedTuple):
    """The numbers in a message's holes, and the place of the message's records, from `at` to `stop`."""

    values: tuple[Any, ...]
    at: int
    stop: int


class MessageTemplate:
    """`front` is the message up to the length of its records, or all of the message if `records` is None.
    `holes` lie in `front`, in their order.
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
        """Return the numbers in the holes of a message, and its records if the template has any, as a part of
        `message`; None if a byte outside of the holes differs.
        """
        if self.records is None:
            return self._numbers(message) if len(message) == len(self.front) else None
        begun = self.begin(message, len(message))
        if begun is None or message[begun.stop :] != self.records.end:
            return None
        return *begun.values, message[begun.at : begun.stop]

    def begin(self, here: memoryview, size: int) -> MatchedStart | None:
        """Match a message of `size` bytes up to its records, of which only the beginning is given as `here`.
        Return None if the beginning is too short, or a byte outside of the holes differs. The bytes after the
        records are not compared.
        """
        assert self.records is not None
        values = self._numbers(here)
        if values is None:
            return None
        at = len(self.front)
        try:
            if self.records.is_compact:
                length, at = read_uvarint(here, at)
                length -= 1
            else:
                length, at = INT32.unpack_from(here, at)[0], at + INT32.size
        except (IndexError, struct.error, InvalidRequestError):
            return None
        if length < 0 or at + length + len(self.records.end) != size:
            return None
        return MatchedStart(values, at, at + length)

    def split(self, message: memoryview) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Return the numbers in the holes, and the bytes between the holes, of a message that is as long as
        `front`, or longer.
        """
        found = self._shape.unpack_from(message)
        return found[1::2], found[::2]

    def _numbers(self, message: memoryview) -> tuple[int, ...] | None:
        if len(message) < len(self.front):
            return None
        found = self._shape.unpack_from(message)
        return found[1::2] if found[::2] == self.constants else None

    def fill(self, values: Sequence[int], size: int = 0) -> tuple[bytearray, int]:
        """Return the message with its size before it and these numbers in its holes, and the position in it
        for its records. The records' `size` bytes are counted in the lengths, but left for the caller to
        send.
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
    """Return the template of requests that differ from this one in correlation id and `fields`; None if the
    request has bytes that its decoded body lacks, such as tagged fields of unknown tags.
    """
    made = template_after(bytes(frame[:body_at]), version, body, fields)
    return made if made.front == frame else None


def template_after(header: bytes, version: int, body: Any, fields: Sequence[MessageField]) -> MessageTemplate:
    """Return the template of requests that have this header, except for its correlation id, and this body,
    except for `fields`.
    """
    return _template(header, Hole(CORRELATION_ID, NUMBER_AT, INT32.size), version, body, fields)


def answer_template(
    is_flexible: bool,
    version: int,
    body: Any,
    fields: Sequence[MessageField] = (),
    records: MessageField | None = None,
) -> MessageTemplate:
    """Return the template of answers that differ from this one in correlation id, `fields` and `records`. The
    values of `fields` must be encoded in this version.
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
    # The length of no bytes is 1 as a varint, and 0 as an int32, of which the last byte differs.
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
    """Return the place of a field in an encoded message. The place is found by inverting the field's bits,
    which changes exactly its bytes.
    """
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
