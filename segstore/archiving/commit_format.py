"""The bytes of a commit or a state: a header, and pieces of logs.

| at | field | type |
|---|---|---|
| 0 | magic | 8 bytes, `SEGARCH1` |
| 8 | length of the header | uint32, big-endian |
| 12 | CRC-32C of the header | uint32, big-endian |
| 16 | header | JSON, UTF-8 |
| after the header | pieces, in the order of the header's list | Kafka's bytes, as they are in the log |

The header has each piece's length, so a truncated object is found by its length. Each piece has a CRC of its
own. Threads: any; functions without state.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from segstore._native import crc32c
from segstore.errors import CorruptArchiveError
from segstore.storage.meta.framed import compact, parse_json

MAGIC = b"SEGARCH1"
_PREFIX = struct.Struct(">8sII")
PREFIX = _PREFIX.size
"""Bytes before the header."""
MOST_HEADER = 1 << 28
"""The largest length of a header in bytes. A longer header counts as damaged."""


def pack_header(held: Mapping[str, Any]) -> bytes:
    """Return the first bytes of a commit: its prefix and its header."""
    header = compact(held)
    return _PREFIX.pack(MAGIC, len(header), crc32c(header)) + header


def header_length(prefix: bytes, where: str) -> int:
    """Return the length of the header that follows a prefix. Raises CorruptArchiveError, which names
    `where`.
    """
    if len(prefix) < PREFIX:
        raise CorruptArchiveError(where, f"{len(prefix)} bytes are too few for a commit")
    magic, length, _ = _PREFIX.unpack_from(prefix)
    if magic != MAGIC:
        raise CorruptArchiveError(where, f"it begins with {magic!r}, not with {MAGIC!r}")
    if length > MOST_HEADER:
        raise CorruptArchiveError(where, f"its header would have {length} bytes, more than {MOST_HEADER}")
    return int(length)


def unpack_header(data: bytes, where: str) -> dict[str, Any]:
    """Return the header in the first bytes of an object. Raises CorruptArchiveError, which names `where`."""
    length = header_length(data[:PREFIX], where)
    header = data[PREFIX : PREFIX + length]
    if len(header) < length:
        raise CorruptArchiveError(where, f"its header is cut off at {len(header)} of {length} bytes")
    if crc32c(header) != _PREFIX.unpack_from(data)[2]:
        raise CorruptArchiveError(where, "the CRC of its header is wrong")
    return parse_object(header, where)


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises CorruptArchiveError, which names `where`."""
    try:
        held = parse_json(data)
    except (ValueError, json.JSONDecodeError) as error:
        raise CorruptArchiveError(where, f"no JSON: {error}") from None
    if not isinstance(held, dict):
        raise CorruptArchiveError(where, f"an object is expected, not {type(held).__name__}")
    return held
