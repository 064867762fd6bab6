"""Two logs beside each other: equal offsets must have equal records, whatever batches they lie in."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.records import Columns, Template, encode, scan
from segstore.replica_fetcher.comparison import ComparedWindow, Divergence, compare

pytestmark = pytest.mark.kind("mirrors")

GZIP = 1


def batch(offset: int, *values: bytes, codec: int = 0, ms: int = 17, **template: Any) -> bytes:
    """One batch."""
    columns = Columns(list(values), timestamps=[ms] * len(values))
    made = encode(columns, codec, template=Template(base_offset=offset, **template))
    return b"".join(bytes(each.data) for each in made)


def damaged(data: bytes) -> bytes:
    """The header has another CRC, and the record's length is wrong."""
    changed = bytearray(data)
    changed[17] ^= 0xFF
    changed[61] = 0x7F
    return bytes(changed)


AB = batch(0, b"a") + batch(1, b"b")
CASES: dict[str, tuple[bytes, bytes, int | None, int | None]] = {
    "the same bytes": (AB, AB, 2, None),
    "another value": (AB, batch(0, b"a") + batch(1, b"x"), 1, 1),
    "another first value": (AB, batch(0, b"x") + batch(1, b"b"), None, 0),
    "another timestamp": (AB, batch(0, b"a") + batch(1, b"b", ms=18), 1, 1),
    "another leader epoch of the same records": (AB, batch(0, b"a", b"b", leader_epoch=3), 2, None),
    "batches put together": (AB, batch(0, b"a", b"b"), 2, None),
    "batches put together, one is another": (AB, batch(0, b"a", b"x"), 1, 1),
    "compressed": (AB, batch(0, b"a", b"b", codec=GZIP), 2, None),
    "the first was compacted away": (AB, batch(1, b"b"), 2, None),
    "the last was compacted away": (AB, batch(0, b"a"), 1, None),
    "all were compacted away": (AB, batch(2, b"c"), None, None),
    "one away, one other": (AB + batch(2, b"c"), batch(0, b"a") + batch(2, b"x"), 1, 2),
    "nothing there": (AB, b"", None, None),
    "the other has more": (batch(1, b"b"), AB + batch(2, b"c"), 2, None),
    "one lies within": (batch(0, b"a", b"b", b"c"), batch(1, b"x"), None, 0),
    "damaged here": (batch(0, b"a") + damaged(batch(1, b"b")), AB, 1, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_compare(name: str) -> None:
    ours, theirs, agreed, other = CASES[name]
    batches = scan(ours, check_crcs=False)[0]
    window = ComparedWindow(0, int(batches["last_offset"][-1]) + 1, ours, batches)
    assert compare(window, theirs, scan(theirs)[0], "t-0") == Divergence(agreed, other)
