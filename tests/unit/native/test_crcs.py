"""CRC-32 and CRC-32C: by the CPU's means, by tables, and by other libraries."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from native_batches import exact

from segstore import _native
from segstore._native import crc32c_by, lib


class Crc(NamedTuple):
    """`vectors`: data and its CRC, as published; `judge`: another library's. It goes on at `cuts`."""

    functions: dict[str, Any]
    vectors: dict[str, tuple[bytes, int]]
    judge: Callable[..., int]
    cuts: tuple[int, ...]


# RFC 3720, B.4, values of zlib's, and the check values of the catalogue of parametrised CRC algorithms.
CRCS = {
    "CRC-32": Crc(
        {"chosen": lib.seg_crc32, "portable": lib.seg_crc32_portable},
        {
            "empty": (b"", 0x00000000),
            "check": (b"123456789", 0xCBF43926),
            "zeros": (bytes(32), 0x190A55AD),
            "ones": (b"\xff" * 32, 0xFF6CAB0B),
        },
        zlib.crc32,
        (0, 1, 127, 128, 4096, 65_536, 70_001),
    ),
    "CRC-32C": Crc(
        {"chosen": lib.seg_crc32c, "portable": lib.seg_crc32c_portable},
        {
            "empty": (b"", 0x00000000),
            "check": (b"123456789", 0xE3069283),
            "zeros": (bytes(32), 0x8A9136AA),
            "ones": (b"\xff" * 32, 0x62A8AB43),
            "rising": (bytes(range(32)), 0x46DD794E),
        },
        crc32c,
        (0, 1, 511, 512, 4096, 65_536, 70_001),
    ),
}
VECTORS = [(crc, name) for crc, found in CRCS.items() for name in found.vectors]


@pytest.mark.parametrize("function", ["chosen", "portable"])
@pytest.mark.parametrize(("crc", "name"), VECTORS)
def test_published_vectors(crc: str, name: str, function: str) -> None:
    data, value = CRCS[crc].vectors[name]
    assert CRCS[crc].functions[function](0, data, len(data)) == value


@pytest.mark.parametrize("alignment", [0, 1, 3, 8, 15, 63])
@pytest.mark.parametrize("crc", CRCS)
def test_every_length_agrees(crc: str, alignment: int, rng: random.Random) -> None:
    data, functions = rng.randbytes(alignment + 1024), CRCS[crc].functions.values()
    buffer = exact(data)
    for size in range(1025):
        part = data[alignment : alignment + size]
        # Allocated exactly, so that the sanitizers see a step beyond the end.
        end = exact(part)
        found = [f(7, at, size) for f in functions for at in (buffer + alignment, end)]
        assert found == [CRCS[crc].judge(part, 7)] * 4, f"{size} bytes"


@pytest.mark.parametrize("function", ["chosen", "portable"])
@pytest.mark.parametrize("crc", CRCS)
def test_a_crc_goes_on_where_it_was_left(crc: str, function: str, rng: random.Random) -> None:
    data = rng.randbytes(70_001)
    f, whole = CRCS[crc].functions[function], CRCS[crc].judge(data)
    for cut in CRCS[crc].cuts:
        rest = data[cut:]
        assert f(f(0, data, cut), rest, len(rest)) == whole


def test_the_cpu_is_used_where_it_can() -> None:
    flags = open("/proc/cpuinfo", encoding="ascii").read()  # noqa: SIM115
    can = "sse4_2" in flags or (" crc32" in flags and "aarch64" in flags.lower())
    if not can:
        pytest.skip("this CPU has no instruction for CRC-32C")
    assert lib.seg_crc32c_is_hardware()


@pytest.mark.parametrize("hardware", [True, False], ids=["the CPU's", "the package's"])
@pytest.mark.parametrize("name", CRCS["CRC-32C"].vectors)
def test_small_files_have_the_same_crc_on_every_machine(name: str, hardware: bool) -> None:
    data, crc = CRCS["CRC-32C"].vectors[name]
    assert crc32c_by(hardware)(data) == crc == _native.crc32c(data)


def test_the_package_computes_where_the_cpu_does_not() -> None:
    assert crc32c_by(False) is crc32c
    assert crc32c_by(True) is not crc32c
