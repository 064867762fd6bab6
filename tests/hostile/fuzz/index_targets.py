"""Index files and published ends. On disk: a file in a temporary directory."""

from __future__ import annotations

import itertools
import os
import struct
import tempfile
from collections.abc import Callable
from functools import cache

import memory
from partitions import GOLDEN

from fuzz.mutate import ANY, at_fields, entries
from fuzz.target import Target
from segstore._native import crc32c
from segstore.files import Files
from segstore.index import SealedOffsetIndex, SealedTimeIndex, txn_index
from segstore.index.sparse import SealedIndex
from segstore.storage.meta import ends_header
from segstore.storage.meta.published_ends import EndsWriter, open_reader

_KEYS = (-1, 0, 1, 7, 100, 500, 12_000, (1 << 31) - 1, 1 << 31, (1 << 63) - 1)


def _golden(suffix: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(GOLDEN.glob(f"clean/*/*{suffix}"))]


@cache
def _place() -> tempfile.TemporaryDirectory[str]:
    """Removed with the process."""
    return memory.directory()


def _file(data: bytes) -> str:
    path = os.path.join(_place().name, "file")
    with open(path, "wb") as file:
        file.write(data)
    return path


def look_up(kind: type[SealedIndex], log_size: int, end: int) -> Callable[[bytes], str]:
    """Only leading entries in order and inside count; a look-up finds the last of those at most the key."""

    def run(data: bytes) -> str:
        path = _file(data)
        said = set()
        for mapped in (True, False):
            index = kind(Files(), path, log_size=log_size, end_relative=end, mapped=mapped)
            good = kind.parse(data)[: index.entries]
            assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(good))
            assert all(0 <= e[kind.OFFSET_FIELD] < end for e in good)
            for key in (*_KEYS, *(e[0] for e in good[:5])):
                assert index.lookup(key) == next((e for e in reversed(good) if e[0] <= key), None)
            assert not good or index.entry(-1) == good[-1]
            said.add((min(len(good), 3), index.damaged))
        assert len(said) == 1
        return str(said)

    return run


def aborted(data: bytes) -> str:
    """Transactions that were aborted: those that overlap."""
    found = txn_index.parse(data, 10)
    assert found.tobytes() == data[: found.nbytes]
    for low, high in ((0, 1 << 62), (15, 16), (-1, -1)):
        some, _ = txn_index.aborted(found, low, high)
        assert all(txn.first_offset < high and txn.last_offset >= low for txn in some)
    assert (
        txn_index.format_entries(txn_index.AbortedTxn(*row[1:]) for row in found.tolist())
        == data[: found.nbytes]
    )
    return f"{min(len(found), 3)} of {min(len(data) // 34, 3)}"


def _aborted_seeds() -> list[bytes]:
    txns = [txn_index.AbortedTxn(7, 10 + i, 12 + i, 10 + i) for i in range(5)]
    return [txn_index.format_entries(txns[:n]) for n in (1, 3, 5)]


def published(data: bytes) -> str:
    """What another process published, and what this one would go on with."""
    path = _file(data)
    reader = open_reader(Files(), path)
    seen = None if reader is None else reader.get_all([1, 3, 5])
    writer = EndsWriter(Files(), path)
    writer.begin_empty(9)
    found = writer.get(9)
    assert found is not None, "a slot of a key that was claimed says nothing"
    assert (found.key, found.end) == (9, 0)
    return f"{reader is None}, {0 if seen is None else len(seen)} of 3"


def _ends_seeds() -> list[bytes]:
    """Of before there were checks, and with them."""
    head = struct.pack("<qIiqq", 4, 9, ends_header.UNCHECKED, 77, 2).ljust(64, b"\0")
    slots = b"".join(struct.pack("<8q", key, 1, 50, 50, 40, 30, 2, 4) for key in (1, 3, 5))
    held = [struct.pack("<6qIi", key, 1, 50, 50, 40, 30, 2, 4) for key in (1, 3, 5)]
    checked = b"".join(slot + struct.pack("<II", crc32c(slot), ~crc32c(slot) & 0xFFFFFFFF) for slot in held)
    header = struct.pack("<qI", 4, 9) + ends_header.pack(77, 0, 2, doubt=False)
    return [head + slots + bytes(256), head + slots * 2, head, header + checked + bytes(256), header]


_HEAD = [(0, 8), (8, 4), (12, 4), (16, 8), (24, 8)]
_ENDS = (at_fields(_HEAD), entries("q" * 8, 64), *ANY)
TARGETS = {
    "offset index": Target(
        look_up(SealedOffsetIndex, 100_000, 600), lambda: _golden(".index"), (entries("ii"), *ANY)
    ),
    "time index": Target(
        look_up(SealedTimeIndex, 100_000, 600), lambda: _golden(".timeindex"), (entries("qi"), *ANY)
    ),
    "transaction index": Target(aborted, _aborted_seeds, (entries("hqqqq"), *ANY)),
    "published ends": Target(published, _ends_seeds, _ENDS),
}
