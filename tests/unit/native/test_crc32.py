"""CRC-32: by the CPU's means, by tables, and by zlib."""

from __future__ import annotations

import random
import zlib

import pytest
from native_batches import exact

from segstore._native import lib

FUNCTIONS = {"chosen": lib.seg_crc32, "portable": lib.seg_crc32_portable}
# The check value of the catalogue of parametrised CRC algorithms, and values of zlib's.
VECTORS = {
    "empty": (b"", 0x00000000),
    "check": (b"123456789", 0xCBF43926),
    "zeros": (bytes(32), 0x190A55AD),
    "ones": (b"\xff" * 32, 0xFF6CAB0B),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", VECTORS)
def test_published_vectors(name: str, function: str) -> None:
    data, crc = VECTORS[name]
    assert FUNCTIONS[function](0, data, len(data)) == crc


@pytest.mark.parametrize("alignment", [0, 1, 3, 8, 15, 63])
def test_every_length_agrees(alignment: int, rng: random.Random) -> None:
    data = rng.randbytes(alignment + 1024)
    buffer = exact(data)
    for size in range(1025):
        part = data[alignment : alignment + size]
        # Allocated exactly, so that the sanitizers see a step beyond the end.
        end = exact(part)
        crcs = [f(7, at, size) for f in FUNCTIONS.values() for at in (buffer + alignment, end)]
        assert crcs == [zlib.crc32(part, 7)] * 4, f"{size} bytes"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_crc_goes_on_where_it_was_left(function: str, rng: random.Random) -> None:
    data = rng.randbytes(70_001)
    f, whole = FUNCTIONS[function], zlib.crc32(data)
    for cut in (0, 1, 127, 128, 4096, 65_536, 70_001):
        rest = data[cut:]
        assert f(f(0, data, cut), rest, len(rest)) == whole
