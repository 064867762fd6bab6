"""The keys and values of records in Kafka's internal topics, and the data that group members exchange. Each
begins with an int16; the bytes of a message follow (Kafka: CoordinatorRecordSerde,
MessageUtil.toVersionPrefixedBytes).

The int16 of a key is the record's kind; the int16 of a value is the message's version.

Threads: any; functions without state.
"""

from __future__ import annotations

import struct
from typing import Any

from segstore.errors import InvalidRequestError, UnsupportedVersionError

from .codec import decode_at, encode
from .definitions import message

_INT16 = struct.Struct(">h")
NEWEST_VERSION = 99
"""The largest plausible version: Kafka's versions grow by one. A record with a larger or a negative version
is invalid.
"""


def encode_key(body: Any) -> bytes:
    """Return the bytes of a key. Raises InvalidArgumentError for values that the message can't represent."""
    return _prefixed(message(type(body).__name__).api_key, body, 0)


def encode_value(body: Any, version: int) -> bytes:
    """Return the bytes of a value. Raises InvalidArgumentError for values that the version can't
    represent.
    """
    return _prefixed(version, body, version)


def _prefixed(number: int, body: Any, version: int) -> bytes:
    out = bytearray(_INT16.pack(number))
    encode(body, version, out)
    return bytes(out)


def prefix_of(data: bytes) -> int:
    """Return the int16 at the beginning of the data. Raises ValueError if the data is shorter."""
    try:
        return int(_INT16.unpack_from(data)[0])
    except struct.error:
        raise InvalidRequestError(f"{len(data)} bytes have no version") from None


def kind_of(key: bytes, whose: str) -> int:
    """Return the kind of the record that has this key. Raises ValueError if the bytes are not a key; `whose`,
    for example "a group", is part of the error's text.
    """
    kind = prefix_of(key)
    if not 0 <= kind <= NEWEST_VERSION:
        raise InvalidRequestError(f"no record of {whose} has a key of version {kind}")
    return kind


def decode_key(name: str, key: bytes) -> Any:
    """Decode a key, and return it as a body of message `name`. Raises ValueError if the bytes can't be
    decoded.
    """
    return decode_body(name, 0, key)


def decode_value(name: str, value: bytes) -> Any:
    """Decode a value, and return it as a body of message `name`. Raises UnsupportedVersionError for a newer
    version, and ValueError if the bytes can't be decoded.
    """
    version, last = prefix_of(value), message(name).valid.high
    if not 0 <= version <= NEWEST_VERSION:
        raise InvalidRequestError(f"there is no {name} of version {version}")
    if version > last:
        raise UnsupportedVersionError(f"{name} of version {version}: versions 0 to {last} are known")
    return decode_body(name, version, value)


def decode_body(name: str, version: int, data: bytes) -> Any:
    """Decode the message that follows the int16, and return its body. Raises ValueError if the bytes can't be
    decoded.
    """
    return decode_at(name, version, memoryview(data), _INT16.size, len(data))[0]
