"""The codecs that store, with which logs are written whose bytes are compared, make frames that are read."""

from __future__ import annotations

import pytest
from stored_codecs import storing

from segstore.records import CODECS
from segstore.records.codecs import compress, decompress


@pytest.mark.parametrize("size", [0, 1, 100, 40_000, 70_000, 300_000])
@pytest.mark.parametrize("codec", range(1, len(CODECS)))
def test_stored_frames_are_read(codec: int, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    with storing():
        packed = compress(codec, data[:size])
    assert len(packed) >= size
    assert decompress(codec, packed) == data[:size]
