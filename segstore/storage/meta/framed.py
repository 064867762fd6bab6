"""Packs and unpacks three formats of files in `.segstore`, each with a checksum.

- A line is the CRC-32C of the JSON in eight hex digits, a blank, and the JSON in ASCII without line breaks.
- An object is JSON with a last member "crc32c", the CRC-32C of the bytes before this member in eight hex
  digits. Files of an older segstore have no such member.
- A word is "1 <word> <CRC>": 1 is the version, and <CRC> is the CRC-32 of "1 <word>" in hex.

Threads: any, because the functions have no state.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from segstore._native import crc32c

CHECKSUM = "crc32c"
# The deepest nesting of JSON that is accepted; the JSON in segstore's files is not nested so deeply.
_DEEPEST = 20
# Matches a checksum whose name, "crc32c", is damaged. Files of an older segstore, which have no checksum,
# never match.
_NAMELESS = re.compile(rb',\n "[^"\n]{6}": "[0-9a-f]{8}"\n}\n\Z')
_TAIL = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n\Z')


# --- JSON ---------------------------------------------------------------------------------


def compact(held: Any) -> bytes:
    """Return JSON without blanks."""
    return json.dumps(held, separators=(",", ":")).encode()


def parse_json(data: bytes) -> Any:
    """Return the JSON value. Raises ValueError if the data is no JSON, or is nested too deeply;
    RecursionError if the caller's stack has no room for JSON of a normal depth.
    """
    try:
        return json.loads(data)
    except RecursionError:
        if _nesting(data) <= _DEEPEST:
            raise
        raise ValueError("JSON that is nested too deeply") from None


def _nesting(data: bytes) -> int:
    """Return the depth of nesting of JSON: the largest number of brackets that are open at once."""
    open_now = most = 0
    for bracket in re.findall(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]', data, re.DOTALL):
        open_now += (bracket in (b"[", b"{")) - (bracket in (b"]", b"}"))
        most = max(most, open_now)
    return most


# --- lines --------------------------------------------------------------------------------


def frame(held: Mapping[str, Any]) -> bytes:
    """Return the bytes of a line with this JSON object and a CRC."""
    body = compact(held)
    return b"%08x %s\n" % (crc32c(body), body)


def unframe(line: bytes) -> dict[str, Any]:
    """Return the object that `frame` was given. Raises ValueError with the reason."""
    digits, _, body = line.removesuffix(b"\n").partition(b" ")
    if len(digits) != 8 or not line.endswith(b"\n"):
        raise ValueError("it is cut off, or no line with a CRC")
    if digits != b"%08x" % crc32c(body):
        raise ValueError("CRC mismatch")
    held = parse_json(body)
    if not isinstance(held, dict):
        raise ValueError(f"an object is expected, not {type(held).__name__}")
    return held


# --- objects ------------------------------------------------------------------------------


def seal(held: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON object with a checksum, for `unseal`. The object must not be empty."""
    head = json.dumps(held, indent=1).encode().removesuffix(b"\n}")
    return b'%s,\n "%s": "%08x"\n}\n' % (head, CHECKSUM.encode(), crc32c(head))


def unseal(data: bytes) -> tuple[Any, bool]:
    """Return (the JSON value without its checksum, whether there was a checksum). Raises ValueError if the
    bytes are not JSON, or the checksum does not match or is not at the end.
    """
    held = parse_json(data)
    tail = _TAIL.search(data)
    if tail is None:
        if isinstance(held, dict) and (CHECKSUM in held or _NAMELESS.search(data)):
            raise ValueError("its checksum is not where it must be")
        return held, False
    if int(tail[1], 16) != crc32c(data[: tail.start()]):
        raise ValueError("its checksum does not fit")
    del held[CHECKSUM]
    return held, True


def unseal_checked(data: bytes) -> Any:
    """Return the JSON value without its checksum. Raises ValueError if the checksum is missing or does not
    match.
    """
    held, checked = unseal(data)
    if not checked:
        raise ValueError("it has no checksum")
    return held


# --- words --------------------------------------------------------------------------------


def seal_word(word: object) -> bytes:
    """Return the bytes of a word with a checksum. The word must have no blank."""
    line = f"1 {word}".encode()
    return b"%s %08x\n" % (line, zlib.crc32(line))


def unseal_word(data: bytes) -> str:
    """Return the word that `seal_word` was given. Raises ValueError for any other bytes."""
    line, _, crc = data.rpartition(b" ")
    version, _, word = line.partition(b" ")
    if crc != b"%08x\n" % zlib.crc32(line) or version != b"1" or not word.isascii():
        raise ValueError("its checksum does not fit")
    return word.decode()
