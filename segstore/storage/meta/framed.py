"""The three forms of a small file with a checksum: the one place that computes and checks a small file's CRC.

- A line is eight hex digits, the CRC-32C of the JSON; a blank; the JSON, in ASCII without line breaks.
- An object is JSON whose last member is "crc32c": eight hex digits, the CRC-32C of the bytes before that
  member. Files that an older segstore wrote have no such member; they are believed if nothing contradicts
  them.
- A word is "1 <word> <CRC-32 of both, hex>", version 1.

Threads: any; functions without state.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from segstore._native import crc32c

CHECKSUM = "crc32c"
_DEEPEST = 20  # the most brackets that may be open at once; files of segstore have fewer
# A checksum whose name is damaged; no file of an older segstore ends so.
_NAMELESS = re.compile(rb',\n "[^"\n]{6}": "[0-9a-f]{8}"\n}\n\Z')
_TAIL = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n\Z')


# --- JSON ---------------------------------------------------------------------------------


def compact(held: Any) -> bytes:
    """Return JSON without blanks."""
    return json.dumps(held, separators=(",", ":")).encode()


def parse_json(data: bytes) -> Any:
    """Return the JSON value. Raises ValueError if the data is no JSON, or nested too deeply; RecursionError
    if the caller's own calls are too deep, which is no fault of the data.
    """
    try:
        return json.loads(data)
    except RecursionError:
        if _nesting(data) <= _DEEPEST:
            raise
        raise ValueError("JSON that is nested too deeply") from None


def _nesting(data: bytes) -> int:
    """Return how many brackets are open at once."""
    open_now = most = 0
    for bracket in re.findall(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]', data, re.DOTALL):
        open_now += (bracket in (b"[", b"{")) - (bracket in (b"]", b"}"))
        most = max(most, open_now)
    return most


# --- lines --------------------------------------------------------------------------------


def frame(held: Mapping[str, Any]) -> bytes:
    """Return a line for an object."""
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
    """Return an object with its checksum, which `unseal` reads; the object has at least one member."""
    head = json.dumps(held, indent=1).encode().removesuffix(b"\n}")
    return b'%s,\n "%s": "%08x"\n}\n' % (head, CHECKSUM.encode(), crc32c(head))


def unseal(data: bytes) -> tuple[Any, bool]:
    """Return the JSON value without its checksum, and whether it had one: files of an older segstore have
    none. Raises ValueError if the checksum does not match.
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
    """Return the JSON value without its checksum. Raises ValueError if there is no checksum, or it does not
    match.
    """
    held, checked = unseal(data)
    if not checked:
        raise ValueError("it has no checksum")
    return held


# --- words --------------------------------------------------------------------------------


def seal_word(word: object) -> bytes:
    """Return a word, whose text has no blank, with its checksum."""
    line = f"1 {word}".encode()
    return b"%s %08x\n" % (line, zlib.crc32(line))


def unseal_word(data: bytes) -> str:
    """Return the word that `seal_word` was given. Raises ValueError."""
    line, _, crc = data.rpartition(b" ")
    version, _, word = line.partition(b" ")
    if crc != b"%08x\n" % zlib.crc32(line) or version != b"1" or not word.isascii():
        raise ValueError("its checksum does not fit")
    return word.decode()
