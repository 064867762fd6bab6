"""The form of small files that hold one word: "1 <word> <CRC-32 of both, hex>", version 1.

Threads: any; functions without state.
"""

from __future__ import annotations

import zlib

MOST_BYTES = 256


def seal_line(word: str) -> bytes:
    """Return the bytes that `unseal_line` reads. The word has no spaces."""
    line = f"1 {word}"
    return f"{line} {zlib.crc32(line.encode()):08x}\n".encode()


def unseal_line(data: bytes) -> str | None:
    """Return the word; None for content that was never written."""
    line, _, crc = data.rpartition(b" ")
    if crc != b"%08x\n" % zlib.crc32(line):
        return None
    version, _, word = line.partition(b" ")
    return word.decode() if version == b"1" and word.isascii() else None
