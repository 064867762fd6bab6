"""CRC-32C: by the CPU's means, by tables, and by the crc32c package."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c
from native_batches import exact

from segstore import _native
from segstore._native import crc32c_by, lib

FUNCTIONS = {"chosen": lib.seg_crc32c, "portable": lib.seg_crc32c_portable}
# RFC 3720, B.4, and the check value of the catalogue of parametrised CRC algorithms.
VECTORS = {
    "empty": (b"", 0x00000000),
    "check": (b"123456789", 0xE3069283),
    "zeros": (bytes(32), 0x8A9136AA),
    "ones": (b"\xff" * 32, 0x62A8AB43),
    "rising": (bytes(range(32)), 0x46DD794E),
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
        assert crcs == [crc32c(part, 7)] * 4, f"{size} bytes"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_crc_goes_on_where_it_was_left(function: str, rng: random.Random) -> None:
    data = rng.randbytes(70_001)
    f, whole = FUNCTIONS[function], crc32c(data)
    for cut in (0, 1, 511, 512, 4096, 65_536, 70_001):
        rest = data[cut:]
        assert f(f(0, data, cut), rest, len(rest)) == whole


def test_the_cpu_is_used_where_it_can() -> None:
    flags = open("/proc/cpuinfo", encoding="ascii").read()  # noqa: SIM115
    can = "sse4_2" in flags or (" crc32" in flags and "aarch64" in flags.lower())
    if not can:
        pytest.skip("this CPU has no instruction for CRC-32C")
    assert lib.seg_crc32c_is_hardware()


@pytest.mark.parametrize("hardware", [True, False], ids=["the CPU's", "the package's"])
@pytest.mark.parametrize("name", VECTORS)
def test_small_files_have_the_same_crc_on_every_machine(name: str, hardware: bool) -> None:
    data, crc = VECTORS[name]
    assert crc32c_by(hardware)(data) == crc == _native.crc32c(data)


def test_the_package_computes_where_the_cpu_does_not() -> None:
    assert crc32c_by(False) is crc32c
    assert crc32c_by(True) is not crc32c
