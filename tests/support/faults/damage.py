"""Damages stores, for tests of check and repair: files that are lost or garbage, and flipped bits in a
log.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

from compaction import Unsynced
from stores import write_topic

N = 60
SIZES = {"index.interval.bytes": 100}
Damage = Callable[[Path], None]


def lost(pattern: str, which: int) -> Damage:
    return lambda path: sorted((path / "t-0").glob(pattern))[which].unlink()


def garbage(pattern: str, which: int) -> Damage:
    def damage(path: Path) -> None:
        file = sorted((path / "t-0").glob(pattern))[which]
        file.write_bytes(random.Random(5).randbytes(file.stat().st_size or 24))

    return damage


def flip(path: Path, at: int, mask: int = 0x55) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def batches(path: Path) -> list[tuple[int, int, int]]:
    """Return (position, size, base offset) of the batches of a log."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        found.append((at, length + 12, base))
        at += length + 12
    return found


def in_payload(path: Path) -> list[int]:
    at, _, base = batches(path)[3]
    flip(path, at + 65)
    return [base]


def in_header(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 25)
    return [base]


def in_length(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 8)
    return [base]


def base_offset_up(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 7, 0x40)
    return [base]


def base_offset_far_up(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 2, 0x40)
    return [base]


def base_offset_down(path: Path) -> list[int]:
    at, _, base = batches(path)[3]
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, at, base - 2)
    path.write_bytes(data)
    return [base]


def the_first(path: Path) -> list[int]:
    at, _, base = batches(path)[0]
    flip(path, at + 65)
    return [base]


def the_last(path: Path) -> list[int]:
    at, _, base = batches(path)[-1]
    flip(path, at + 65)
    return [base]


def all_of_it(path: Path) -> list[int]:
    found = [base for _, _, base in batches(path)]
    path.write_bytes(bytes(path.stat().st_size))
    return found


def cut_short(path: Path) -> list[int]:
    at, size, base = batches(path)[-1]
    path.write_bytes(path.read_bytes()[: at + size // 2])
    return [base]


def taken_out(path: Path) -> list[int]:
    at, size, base = batches(path)[3]
    data = path.read_bytes()
    path.write_bytes(data[:at] + data[at + size :])
    return [base]


def two_places(path: Path) -> list[int]:
    return in_header(path) + the_last(path)


ROT = [
    in_payload, in_header, in_length, base_offset_up, base_offset_far_up, base_offset_down, the_first,
    the_last, all_of_it, cut_short, taken_out, two_places,
]  # fmt: skip


def plain(path: Path, closed: bool = True, n: int = N) -> Path:
    write_topic(
        path,
        [[b"%03d" % i, b"%03d" % (i + 1)] for i in range(0, n, 2)],
        {**SIZES, "segment.bytes": 900},
        files=Unsynced(),
    )
    if not closed:
        (path / ".kafka_cleanshutdown").unlink()
    return path
