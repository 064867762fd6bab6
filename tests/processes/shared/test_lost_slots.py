"""Promise: a host that was killed within a publication costs no partition its shared log."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from shared_members import members

import segstore
from segstore._native import lib

pytestmark = pytest.mark.kind("members of a shared store")


def damage(root: Path, *, all_slots: bool) -> None:
    """Leave the published ends as a host that was killed within a publication: the sequence is odd, and a
    slot's check is wrong; or without their header.
    """
    with (root / ".segstore" / "ends").open("r+b") as file:
        if all_slots:
            file.seek(8)
            file.write(bytes(56))
            return
        (sequence,) = struct.unpack("<q", file.read(8))
        file.seek(0)
        file.write(struct.pack("<q", sequence | 1))
        file.seek(lib.SEG_ENDS_HEADER + 2 * lib.SEG_ENDS_SLOT + 16)
        file.write(b"\1" * 8)


def leave_batch(path: Path, offset: int) -> None:
    """Leave a whole batch behind the log's end, as a member that died before it was published."""
    data = path.read_bytes()
    last = data[-len(data) // offset :]
    path.write_bytes(data + struct.pack(">q", offset) + last[8:])


@pytest.mark.parametrize("all_slots", [False, True], ids=["one slot", "all slots"])
def test_a_partition_keeps_its_slot(all_slots: bool, store_dir: Path) -> None:
    with members(store_dir, True, topic={}) as [host]:
        host.run("store.create_topic('u', 2); store.partition('u', 0).append(b'x') and 0")
        host.run("for n in range(9): store.partition('u', 1).append(b'%d' % n)")
        host.run("store.delete_topic('t')")  # a lower slot is free
        host.kill()
    leave_batch(store_dir / "u-1" / "00000000000000000000.log", 9)
    damage(store_dir, all_slots=all_slots)
    with segstore.open(store_dir, shared=True) as store:
        assert store.partition("u", 1).append(b"9") == 9
    with segstore.open(store_dir, "r") as store:
        assert [each.value for each in store.partition("u", 1).scan()] == [b"%d" % n for n in range(10)]
