"""Lines with a checksum: the form of segstore's small files that have a CRC and JSON in each line.

A line is eight hex digits, the CRC-32C of the JSON; a blank; the JSON, in ASCII without line breaks. Threads:
any; functions without state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from segstore._native import crc32c
from segstore.storage.meta.small_files import parse_json


def compact(held: Any) -> bytes:
    """Return JSON without blanks."""
    return json.dumps(held, separators=(",", ":")).encode()


def frame(held: Mapping[str, Any]) -> bytes:
    """Return a line for an object."""
    body = compact(held)
    return b"%08x %s\n" % (crc32c(body), body)


def unframe(line: bytes) -> dict[str, Any]:
    """Return the object that `frame` was given. Raises ValueError, which says what is wrong."""
    digits, _, body = line.removesuffix(b"\n").partition(b" ")
    if len(digits) != 8 or not line.endswith(b"\n"):
        raise ValueError("it is cut off, or no line with a CRC")
    if digits != b"%08x" % crc32c(body):
        raise ValueError("CRC mismatch")
    held = parse_json(body)
    if not isinstance(held, dict):
        raise ValueError(f"an object is expected, not {type(held).__name__}")
    return held
