"""Promise: what a leader keeps of its last appends is what lies in its log, and never what was cut; it is
little, and a log that follows keeps nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replicated_writers import open_writer, topic

import segstore
from segstore.records import CHUNK_BYTES, scan
from segstore.records.encoded import Encoded
from segstore.storage.log import recent_appends
from segstore.storage.log.append import append_columns
from segstore.storage.log.recent_appends import COPIED, MOST


@pytest.fixture
def led(tmp_path: Path) -> Iterator[Any]:
    """The partition and the replica of a leader that keeps its last appends."""
    writer = open_writer(tmp_path / "d")
    writer.topic_admin.make(topic(segment_bytes=4 * CHUNK_BYTES))
    replica, partition = writer.partitions.replica("t", 0), writer.partition("t", 0)
    replica.lead(2)
    replica.keep_recent()
    yield partition, replica
    writer.close()
    assert segstore.check(tmp_path / "d") == []


def append(partition: Any, *values: bytes) -> range:
    return append_columns(partition, list(values), None, None, None, None, 65536)


def test_each_append_is_there_as_it_lies_in_the_log(led: Any, rng: random.Random) -> None:
    partition, replica = led
    firsts = []
    for _ in range(20):
        count = rng.choice([1, 3, 300, 3000])  # copied, and kept in its buffer
        firsts.append(append(partition, *[rng.randbytes(rng.randrange(400)) for _ in range(count)]).start)
    end = replica.log_end_offset
    for first in firsts:
        for below in (end, rng.randrange(first, end)):
            most = rng.choice([1, 5000, CHUNK_BYTES])
            recent = replica.recent.take(first, below, most)
            if recent is None:
                assert below < end
                continue
            assert first < recent.next_offset <= below
            assert recent.epochs == ((2, first),)
            assert bytes(recent.data) == replica.read(first, recent.next_offset, 1 << 30)
            assert len(recent.data) <= most or recent.next_offset in [*firsts, end]
    assert replica.recent.take(firsts[-1] + 1, end, 1000) is None or firsts[-1] + 1 == end


def test_appends_one_behind_the_other_are_given_together(led: Any) -> None:
    partition, replica = led
    for number in range(5):
        append(partition, b"%d" % number)
    whole = replica.read(0, 5, 1000)
    one = len(whole) // 5
    assert bytes(replica.recent.take(1, 5, 3 * one).data) == whole[one : 4 * one]
    assert bytes(replica.recent.take(1, 3, 3 * one).data) == whole[one : 3 * one]
    assert bytes(replica.recent.take(1, 5, 1).data) == whole[one : 2 * one]


def test_an_append_in_two_epochs_tells_where_each_begins(led: Any) -> None:
    partition, replica = led
    append(partition, b"a", b"b")
    replica.lead(7)
    append(partition, b"c")
    assert replica.recent.take(0, 3, 1000).epochs == ((2, 0), (7, 2))


@pytest.mark.parametrize("cut", ["truncate_to", "truncate_fully_and_start_at", "follow"])
def test_nothing_is_kept_of_what_is_cut(led: Any, cut: str) -> None:
    partition, replica = led
    append(partition, b"a")
    append(partition, b"b")
    replica.follow() if cut == "follow" else getattr(replica, cut)(1)
    assert [replica.recent.take(offset, 9, 1000) for offset in (0, 1)] == [None, None]
    replica.follow()
    replica.lead(3)
    append(partition, b"c")
    assert replica.recent.take(replica.log_end_offset - 1, 9, 1000) is None  # nobody asked to keep it


def test_what_is_committed_is_let_go_of(led: Any) -> None:
    partition, replica = led
    for value in (b"a", b"b", b"c"):
        append(partition, value)
    replica.recent.drop_below(2)
    assert [replica.recent.take(offset, 3, 1000) is None for offset in range(3)] == [True, True, False]


def test_a_failed_append_is_not_kept(led: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, replica = led

    def full(*args: Any) -> None:
        raise OSError(28, "no room")

    monkeypatch.setattr(partition.writer, "_write_ready", full)
    with pytest.raises(segstore.StorageError):
        append(partition, b"lost")
    monkeypatch.undo()
    append(partition, b"there")
    recent = replica.recent.take(0, 1, 1000)
    assert bytes(recent.data) == replica.read(0, 1, 1000)
    assert b"there" in bytes(recent.data)


def test_a_large_append_is_not_copied_and_that_of_another_is_not_kept(led: Any) -> None:
    partition, replica = led
    append(partition, *[b"v" * 100] * (COPIED // 50))
    recent = replica.recent.take(0, replica.log_end_offset, 1)
    assert isinstance(recent.data, memoryview)
    end, received = replica.log_end_offset, bytearray(recent.data)
    partition.put([Encoded.of(received, scan(received)[0])])  # as a client has sent it
    assert replica.log_end_offset == 2 * end
    assert replica.recent.take(end, 2 * end, 1) is None


def test_few_appends_are_kept_of_all_partitions_together(led: Any) -> None:
    partition, replica = led
    for _ in range(MOST + 10):
        append(partition, b"v")
    kept = [replica.recent.take(offset, offset + 1, 1) for offset in range(MOST + 10)]
    assert [each is None for each in kept] == [True] * 10 + [False] * MOST
    assert len(recent_appends._of_all) == MOST
