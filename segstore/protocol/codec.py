"""Converts messages between Python objects and bytes. The code for a version of a message is generated from
Kafka's definitions when this version is first used.

A body is an object with one attribute per field, named in snake_case. `structs("FetchResponse")` is the class
of a body; the classes of the structures in the body are attributes of that class:
`structs("FetchResponse").PartitionData`. The constructors take keywords and have Kafka's defaults. A uuid is
16 bytes, an array is a list, received record batches are a memoryview of the message. Threads: no state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

from segstore.errors import InvalidArgumentError, InvalidRequestError, UnsupportedVersionError

from . import primitives
from .definitions import MADE, Field, Message, message
from .primitives import Packed
from .source import decoder_source, encoder_source, fresh

ABSENT: Any = object()


class FileSlice(Protocol):
    """Bytes of a file from `position` on, which stand for record batches in a response and are sent by
    sendfile. `release` is called when the bytes were sent, or will not be sent.
    """

    position: int

    def __len__(self) -> int: ...
    def fileno(self) -> int: ...
    def release(self) -> None: ...


Slices = list[tuple[int, FileSlice]]
"""Pairs of (position in the encoded bytes at which a file slice belongs, this file slice)."""


class Struct:
    """A structure of a message. Two structures are equal if all their fields are equal."""

    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


@cache
def structs(name: str) -> Any:
    """Return the class of a message's body. Raises KeyError if there is no such message."""
    definition = message(name)
    made = {each: _made(each, fields) for each, fields in definition.structs.items()}
    for each, kind in made.items():
        kind.__init__ = _initializer(definition.structs[each], made)
    for each, kind in made.items():
        if each != name:
            setattr(made[name], each, kind)
    return made[name]


def _made(name: str, fields: tuple[Field, ...]) -> Any:
    return type(name, (Struct,), {"__slots__": tuple(field.name for field in fields)})


def _initializer(fields: tuple[Field, ...], made: dict[str, Any]) -> Callable[..., None]:
    parameters = ", ".join(f"{f.name}={'ABSENT' if f.default == MADE else repr(f.default)}" for f in fields)
    lines = [f"def __init__(self, *, {parameters}):"] if fields else ["def __init__(self):", "    pass"]
    for field in fields:
        if field.default == MADE:
            lines.append(f"    if {field.name} is ABSENT: {field.name} = {fresh(field)}")
        lines.append(f"    self.{field.name} = {field.name}")
    space: dict[str, Any] = {"ABSENT": ABSENT, **made}
    exec("\n".join(lines), space)
    return space["__init__"]  # type: ignore[no-any-return]


def decode(name: str, version: int, data: memoryview) -> Any:
    """Return the body of a message. Bytes after the body are ignored, as in Kafka.

    Raises UnsupportedVersionError, and InvalidRequestError if the bytes can't be decoded.
    """
    return decode_at(name, version, data, 0, primitives.MOST_ELEMENTS)[0]


def decode_at(name: str, version: int, data: memoryview, at: int, most: int) -> tuple[Any, int]:
    """Return (body at position `at`, position after the body). The arrays of the body may have at most `most`
    elements together. Raises InvalidRequestError, UnsupportedVersionError.
    """
    read: Callable[..., tuple[Any, int]] = _decoder(name, version)
    try:
        return read(data, at, [most])
    except (IndexError, struct.error) as error:
        raise InvalidRequestError(f"{name} version {version}: the bytes end too early") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{name} version {version}: a string is not UTF-8") from error


def encode(body: Any, version: int, out: bytearray, slices: Slices | None = None) -> None:
    """Append a message's bytes to `out`. If `slices` is given, record batches with a `fileno` are not copied
    to `out`, but added to `slices` with the position in `out` at which they belong.

    Raises UnsupportedVersionError, and InvalidArgumentError for values that the version can't represent.
    """
    _write(type(body).__name__, version, (body,), out, slices)


def packed(name: str, version: int, rows: Sequence[Struct]) -> Packed:
    """Encode structures of the message `name` as an array that can be put into many bodies. Raises the errors
    of `encode`.
    """
    out = bytearray()
    _write(name, version, rows, out, None)
    return Packed(len(rows), version, bytes(out))


def _write(name: str, version: int, rows: Sequence[Any], out: bytearray, slices: Slices | None) -> None:
    try:
        writers = _encoders(name, version)
        for row in rows:
            writers[type(row).__name__](row, out, slices)
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} version {version} can't hold its values: {error}") from error


@cache
def _decoder(name: str, version: int) -> Callable[..., Any]:
    definition = _checked(name, version)
    return _compiled(decoder_source(definition, version), definition, version, "read_")[name]


@cache
def _encoders(name: str, version: int) -> dict[str, Callable[..., None]]:
    """Return the functions that encode a message's structures, by name of the structure; the body is one of
    the structures.
    """
    definition = _checked(name, version)
    return _compiled(encoder_source(definition, version), definition, version, "write_")


def _checked(name: str, version: int) -> Message:
    definition = message(name)
    if version not in definition.valid:
        low, high = definition.valid
        raise UnsupportedVersionError(f"{name} has no version {version}: {low} to {high}")
    return definition


def _compiled(source: str, definition: Message, version: int, prefix: str) -> dict[str, Callable[..., Any]]:
    body = structs(definition.name)
    kinds = {each: getattr(body, each, body) for each in definition.structs}
    space = {**vars(primitives), "unpack": struct.unpack_from, "pack": struct.pack, **kinds}
    exec(compile(source, f"<{definition.name} {version}>", "exec"), space)
    return {each: space[prefix + each] for each in definition.structs}
