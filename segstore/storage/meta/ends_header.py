"""The header of the published ends: the first 64 bytes of `.segstore/ends`. After the header the file has a
slot for each partition (`published_ends`).

| at | field | |
|---|---|---|
| 0 | sequence | int64, odd while a publication is under way |
| 8 | publications | uint32, for threads that wait |
| 12 | format | uint32: CHECKED, or UNCHECKED in files of an older segstore, which have no checksums |
| 16 | nonce | int64: the number in the clean shutdown marker; 0 while the store is open |
| 24 | generation | int64: counts the changes of the assignment of slots to partitions |
| 32 | boot | int64: identifies the start of the machine after which the last writer opened the store |
| 40 | doubt | int64: 1 if a sync of a partition without a slot may have failed |
| 48 | checksum | CRC-32C of format, nonce, boot, doubt and spare (low 32 bits), and its complement |
| 56 | spare | zero |

The checksum does not cover the counters, because each value of a counter is valid. All numbers are in host
byte order. Threads: any, because the functions have no state.
"""

from __future__ import annotations

import errno
import struct
import time
from typing import NamedTuple

from segstore._native import crc32c, lib
from segstore.files import Files
from segstore.storage.meta.small_files import NOT_A_FILE

SIZE = lib.SEG_ENDS_HEADER
CHECKED, UNCHECKED = lib.SEG_ENDS_CHECKED, lib.SEG_ENDS_UNCHECKED
MOST = 1 << 28  # the largest size of the file in bytes, with room for four million partitions

PUBLICATIONS_AT, FORMAT_AT, NONCE_AT, GENERATION_AT, BOOT_AT = 8, 12, 16, 24, 32
_CHECK_AT, _SPARE_AT = 48, 56
_TRIES = 10  # the longest wait, in milliseconds, for a writer that is changing the header


class EndsHeader(NamedTuple):
    """The header without its counters. `checked`: whether the header and the slots have checksums."""

    checked: bool
    nonce: int
    boot: int
    doubt: bool


class FoundHeader(NamedTuple):
    """The result of `look`. `header` is None if the file is missing or damaged, or if the machine went
    down while the store was open. `size` is the file's size, or 0 if the file is missing, is no regular file,
    or has an impossible size. `damage` is a text about the damage; "" if the file is not damaged.
    """

    header: EndsHeader | None
    size: int = 0
    damage: str = ""


def pack(nonce: int, boot: int, generation: int = 0, *, doubt: bool) -> bytes:
    """Return the bytes of the header from FORMAT_AT on."""
    head, tail = struct.pack("=Iq", CHECKED, nonce), struct.pack("=qq", boot, doubt)
    return head + struct.pack("=q", generation) + tail + _check(head + tail + bytes(8)) + bytes(8)


def _check(held: bytes) -> bytes:
    number = crc32c(held)
    return struct.pack("=II", number, number ^ 0xFFFFFFFF)


def parse(data: bytes) -> EndsHeader | None:
    """Return the header in these bytes; None if the checksum is wrong, or if they are no header of
    `.segstore/ends`.
    """
    form, nonce = struct.unpack_from("=Iq", data, FORMAT_AT)
    boot, doubt = struct.unpack_from("=qq", data, BOOT_AT)
    if form == CHECKED:
        held = data[FORMAT_AT:GENERATION_AT] + data[BOOT_AT:_CHECK_AT] + data[_SPARE_AT:SIZE]
        if data[_CHECK_AT:_SPARE_AT] != _check(held):
            return None
    elif form != UNCHECKED:
        return None
    return EndsHeader(form == CHECKED, nonce, boot, bool(doubt))


def look(files: Files, path: str) -> FoundHeader:
    """Return the header of the file at the path. Raises OSError."""
    found = _look(files, path)
    for _ in range(_TRIES):
        if found.header is not None or found.size < SIZE:
            break
        time.sleep(0.001)  # a writer may have written the header, but not yet its checksum
        found = _look(files, path)
    if found.header is not None and found.header.nonce == 0 and found.header.boot != files.boot():
        return FoundHeader(None, found.size)
    return found


def _look(files: Files, path: str) -> FoundHeader:
    try:
        with files.open(path) as handle:
            head, size = files.pread(handle, SIZE, 0), files.size(handle)
    except FileNotFoundError:
        return FoundHeader(None)
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        return FoundHeader(
            None, 0, f"holds no published ends: {error.strerror or errno.errorcode[error.errno]}"
        )
    if len(head) < SIZE or size > MOST:
        return FoundHeader(None, 0, f"holds no published ends: its size is {size} bytes")
    header = parse(head)
    return FoundHeader(header, size, "" if header else "holds no published ends: its header is damaged")
