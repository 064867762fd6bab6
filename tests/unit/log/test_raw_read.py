"""Promise: a follower reads its leader's batches as they are stored, whole ones, from any offset, up to any
end and size, also above the high watermark.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from replica_logs import ends, log_bytes
from replicated_writers import open_writer, topic

import segstore
from segstore import OffsetOutOfRangeError
from segstore.records import scan
from segstore.storage.log.append import append_columns


def test_all_offsets_ends_and_sizes(tmp_path: Path, rng: random.Random) -> None:
    writer = open_writer(tmp_path / "d")
    writer.topic_admin.make(topic(segment_bytes=900, index_interval_bytes=100))
    replica, partition = writer.partitions.replica("t", 0), writer.partition("t", 0)
    replica.lead(2)
    for _ in range(40):
        count = rng.randrange(1, 5)
        append_columns(partition, [bytes(rng.randrange(120))] * count, None, None, None, None, 65536)
    data = log_bytes(tmp_path / "d" / "t-0")
    batches, end = scan(data)[0], ends(data)[-1]
    assert len(list((tmp_path / "d" / "t-0").glob("*.log"))) > 5
    for offset in range(end + 1):
        for below in (rng.choice(ends(data)), end):
            for most in (0, 61, rng.randrange(3000), 1 << 20):
                wanted = batches[(batches["last_offset"] >= offset) & (batches["last_offset"] < below)]
                sizes = wanted["size"].cumsum()
                count = max(int((sizes <= most).sum()), 1) if len(wanted) else 0
                at = int(wanted["position"][0]) if count else 0
                expected = data[at : at + int(sizes[count - 1])] if count else b""
                assert replica.read(offset, below, most) == expected, (offset, below, most)
    with pytest.raises(OffsetOutOfRangeError):
        replica.read(end + 1, end + 1, 100)
    writer.close()
    assert segstore.check(tmp_path / "d") == []


def test_what_retention_has_removed_is_out_of_range(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "d")
    writer.topic_admin.make(topic(segment_bytes=200, file_delete_delay_ms=0))
    replica, partition = writer.partitions.replica("t", 0), writer.partition("t", 0)
    replica.lead(2)
    for _ in range(20):
        append_columns(partition, [b"1"], None, None, None, None, 65536)
    replica.set_high_watermark(20)
    replica.set_start_offset(11)
    with pytest.raises(OffsetOutOfRangeError):
        replica.read(10, 20, 100)
    assert int(scan(replica.read(11, 20, 100))[0]["base_offset"][0]) == 11
    writer.close()
