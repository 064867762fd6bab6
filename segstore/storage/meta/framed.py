"""Lines with a checksum: the form of segstore's small files that have a CRC and JSON in each line.

A line is eight hex digits, the CRC-32C of the JSON; a blank; the JSON, in ASCII without line breaks. Threads:
any; functions without state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from segstore.storage.meta.small_files import crc, parse_json


def compact(held: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(held, separators=(",", ":")).encode()


def frame(held: Mapping[str, Any]) -> bytes:
    """A line for an object."""
    body = compact(held)
    return b"%08x %s\n" % (crc(body), body)


def unframe(line: bytes) -> dict[str, Any]:
    """The object that `frame` was given. Raises ValueError, which says what is wrong."""
    digits, _, body = line.removesuffix(b"\n").partition(b" ")
    if len(digits) != 8 or not line.endswith(b"\n"):
        raise ValueError("it is cut off, or no line with a CRC")
    if digits != b"%08x" % crc(body):
        raise ValueError("CRC mismatch")
    held = parse_json(body)
    if not isinstance(held, dict):
        raise ValueError(f"an object is expected, not {type(held).__name__}")
    return held
