"""Codecs: round trips, the frames of other writers, damage, and bombs."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import cramjam
import pytest

from segstore.records import codecs
from segstore.records.header import CODECS

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
MIB = 1 << 20
JSON = b'{"carrier":"UA","flight":1545,"origin":"EWR","delay":11},'


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


SIZES = [0, 1, 15, 32 * 1024, 32 * 1024 + 1, 64 * 1024, 64 * 1024 + 1, 300_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_round_trip(codec: int, size: int) -> None:
    for plain in (noise(size), (JSON * (size // len(JSON) + 1))[:size]):
        packed = codecs.compress(codec, plain)
        assert bytes(codecs.decompress(codec, packed, max(size, 1))) == plain
        assert len(packed) <= size + size // 6 + 128


@pytest.mark.parametrize(
    ("codec", "level"),
    [(GZIP, -1), (GZIP, 1), (GZIP, 9), (LZ4, 1), (LZ4, 9), (LZ4, 17), (ZSTD, -5), (ZSTD, 19)],
)
def test_level(codec: int, level: int) -> None:
    plain = JSON * 3000
    packed = codecs.compress(codec, plain, level)
    assert len(packed) < len(plain) // 4
    assert bytes(codecs.decompress(codec, packed)) == plain


LINKED = tuple(map(int, version("cramjam").split(".")[:2])) < (2, 12)
LEVELS = {
    "gzip": (GZIP, 1, 9),
    "lz4": (LZ4, 9, 12),
    "zstd": (ZSTD, 1, 19),
}


@pytest.mark.parametrize("name", LEVELS)
def test_level_changes_the_size(name: str) -> None:
    if name == "lz4" and LINKED:
        pytest.skip("cramjam before 2.12 (Python 3.10) links the blocks of lz4 frames: levels fall back to 9")
    codec, low, high = LEVELS[name]
    plain = b"".join(b'{"n":%d,"v":%d}' % (i, i * i % 977) for i in range(9000))
    assert len(codecs.compress(codec, plain, high)) < len(codecs.compress(codec, plain, low))


def xerial(*blocks: bytes) -> bytes:
    framed = (struct.pack(">i", len(block)) + block for block in blocks)
    return codecs.XERIAL + struct.pack(">ii", 1, 1) + b"".join(framed)


def raw(plain: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(plain))


LZ4_LINKED = bytes(cramjam.lz4.compress(JSON * 5000, level=4))

OTHER_WRITERS = {
    "gzip of two members": (GZIP, gzip.compress(JSON) + gzip.compress(b"x" * 70_000), JSON + b"x" * 70_000),
    "gzip with a file name": (GZIP, b"\x1f\x8b\x08\x08" + bytes(6) + b"f\0" + gzip.compress(JSON)[10:], JSON),
    "raw snappy": (SNAPPY, raw(JSON * 100), JSON * 100),
    "raw snappy of nothing": (SNAPPY, raw(b""), b""),
    "snappy-java without blocks": (SNAPPY, xerial(), b""),
    "snappy-java, two blocks": (SNAPPY, xerial(raw(JSON), raw(b"y" * 99)), JSON + b"y" * 99),
    "lz4 with checksums and linked blocks": (LZ4, LZ4_LINKED, JSON * 5000),
    "zstd of two frames": (ZSTD, bytes(cramjam.zstd.compress(JSON)) * 2, JSON * 2),
}


@pytest.mark.parametrize(("codec", "packed", "plain"), OTHER_WRITERS.values(), ids=OTHER_WRITERS)
def test_reads_what_others_write(codec: int, packed: bytes, plain: bytes) -> None:
    assert bytes(codecs.decompress(codec, packed)) == plain


def test_snappy_is_framed_as_snappy_java_does() -> None:
    packed = bytes(codecs.compress(SNAPPY, JSON * 1000))
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    size = int.from_bytes(packed[16:20], "big")
    assert len(cramjam.snappy.decompress_raw(packed[20 : 20 + size]).read()) == 32 * 1024


def test_lz4_frame_is_one_that_kafka_accepts() -> None:
    """Lz4BlockInputStream: version 1, independent blocks; a block that doesn't shrink is stored."""
    packed = bytes(codecs.compress(LZ4, noise(100)))
    assert packed[:7] == bytes.fromhex("04224d18604082")
    assert packed[7:11] == struct.pack("<I", 100 | 1 << 31)
    assert packed[-4:] == bytes(4)


def damaged(codec: int) -> dict[str, bytes]:
    good = bytes(codecs.compress(codec, JSON * 3000))
    return {
        "nothing": b"",
        "its first byte": good[:1],
        "half": good[: len(good) // 2],
        "without its last byte": good[:-1],
        "zeros": bytes(100),
        "ones": b"\xff" * 100,
    }


DAMAGE = [
    pytest.param(codec, bad, id=f"{CODECS[codec]}: {name}")
    for codec in (GZIP, SNAPPY, LZ4, ZSTD)
    for name, bad in damaged(codec).items()
]


@pytest.mark.parametrize(("codec", "bad"), DAMAGE)
def test_damage_is_told(codec: int, bad: bytes) -> None:
    with pytest.raises(codecs.DecompressError, match="snappy|" + CODECS[codec]):
        codecs.decompress(codec, bad, MIB)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=CODECS[1:])
def test_random_damage_gives_bytes_or_an_error(codec: int, rng: random.Random) -> None:
    good = bytes(codecs.compress(codec, JSON * 300 + noise(3000)))
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 8))):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        # Anything but DecompressError would fail here: a panic of the library too.
        with contextlib.suppress(codecs.DecompressError):
            assert len(codecs.decompress(codec, bad[: rng.randrange(1, len(bad) + 1)], MIB)) <= MIB


def bomb(codec: int, size: int = 1 << 26) -> bytes:
    if codec == GZIP:
        z = zlib.compressobj(9, zlib.DEFLATED, 31)
        return z.compress(bytes(size)) + z.flush()
    return bytes(codecs.compress(codec, bytes(size)))


LIES: dict[str, tuple[int, Callable[[], bytes]]] = {
    "raw snappy that claims 4 GiB": (SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + bytes(50)),
    "gzip whose trailer claims 4 GiB": (GZIP, lambda: bomb(GZIP)[:-4] + b"\xff\xff\xff\xff"),
    "a snappy-java block of 2 GiB": (SNAPPY, lambda: xerial() + b"\x7f\xff\xff\xff" + bytes(50)),
}
BOMBS = {CODECS[codec]: (codec, partial(bomb, codec)) for codec in (GZIP, SNAPPY, LZ4, ZSTD)} | LIES


@pytest.mark.parametrize(("codec", "pack"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_gets_no_more_memory_than_allowed(codec: int, pack: Callable[[], bytes]) -> None:
    packed = pack()
    tracemalloc.start()
    try:
        with pytest.raises(codecs.DecompressError):
            codecs.decompress(codec, packed, 2 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * MIB


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_the_limit_itself_is_allowed(codec: int) -> None:
    packed = codecs.compress(codec, bytes(MIB))
    assert len(codecs.decompress(codec, packed, MIB)) == MIB
    with pytest.raises(codecs.DecompressError):
        codecs.decompress(codec, packed, MIB - 1)
