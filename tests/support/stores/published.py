"""Reads and writes slots of `.segstore/ends` as docs/engine.md describes its bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import crc32c

HEADER = SLOT = 64
KEY, START, END, HIGH_WATERMARK, STABLE, RECOVERY_POINT, LAYOUT, EPOCH = range(8)
FORMAT, UNCHECKED = 12, 0x53454731


def ends_path(root: Path) -> Path:
    return root / ".segstore" / "ends"


def get(root: Path, slot: int) -> list[int]:
    """Return the eight values of a slot."""
    *held, layout, epoch, _, _ = struct.unpack_from(
        "<6qIiII", ends_path(root).read_bytes(), HEADER + SLOT * slot
    )
    return [*held, layout, epoch]


def used(root: Path) -> list[int]:
    """Return the slots that belong to a partition."""
    count = (ends_path(root).stat().st_size - HEADER) // SLOT
    return [slot for slot in range(count) if get(root, slot)[KEY]]


def put(root: Path, slot: int, values: list[int]) -> None:
    """Write a slot, with its checksum."""
    held = struct.pack("<6qIi", *values)
    check = crc32c.crc32c(held)
    data = bytearray(ends_path(root).read_bytes())
    data[HEADER + SLOT * slot : HEADER + SLOT * (slot + 1)] = held + struct.pack(
        "<II", check, ~check & (2**32 - 1)
    )
    ends_path(root).write_bytes(data)


def publish(root: Path, what: int, value: int, slot: int | None = None) -> None:
    """Change one value of a slot, by default of the first used one, and its checksum."""
    at = used(root)[0] if slot is None else slot
    values = get(root, at)
    values[what] = value
    put(root, at, values)


def without_checks(root: Path) -> None:
    """Rewrite the file in the form that segstore wrote before there were checksums."""
    data = bytearray(ends_path(root).read_bytes())
    for slot in used(root):
        struct.pack_into("<8q", data, HEADER + SLOT * slot, *get(root, slot))
    struct.pack_into("<I", data, FORMAT, UNCHECKED)
    data[48:64] = bytes(16)
    ends_path(root).write_bytes(data)
