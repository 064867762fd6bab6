"""The checksum of small files of JSON: no flipped bit lets a file pass, not even as an older segstore's."""

from __future__ import annotations

import json

import pytest

from segstore.storage.meta.framed import seal, unseal

HELD = {
    "settings": {"version": 1, "topic_id": "y3q6DsI4SJS7A2bvrbOP2Q", "config": {"retention.ms": 1000}},
    "sweeps": {"plain-0": {"swept_ms": 1_700_000_000_000}, "kept-0": {"swept_ms": 1}},
    "quotas": {"somebody": {"producer_byte_rate": 1 << 40}},
}


@pytest.mark.parametrize("name", HELD)
def test_each_flipped_bit_is_found(name: str) -> None:
    """One in the checksum's name made the file pass for one that never had any."""
    data = seal(HELD[name])
    assert unseal(data) == (HELD[name], True)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            unseal(bytes(damaged))


@pytest.mark.parametrize("name", HELD)
def test_what_an_older_segstore_wrote_is_taken_as_it_is(name: str) -> None:
    assert unseal(json.dumps(HELD[name], indent=1).encode() + b"\n") == (HELD[name], False)
