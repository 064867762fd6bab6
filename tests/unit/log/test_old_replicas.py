"""A replica whose log holds messages of magic 0 and 1: its followers get record batches of magic 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from drawn_sets import EACH_KIND, KINDS, entry, joined, some
from message_sets import GZIP, NONE, Message
from replica_logs import SMALL, closed, log_bytes, opened, read, replica_of
from stores import write_segment

import segstore
from segstore.errors import CorruptRecordError
from segstore.records import scan
from segstore.replication.fetched import brought

SIZES = (1, 300, 1 << 20)
GAPPED = {**SMALL, "cleanup.policy": "compact"}


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[segstore.PartitionLog]:
    write_segment(tmp_path / "leader" / "t-0", 0, EACH_KIND.data)
    with segstore.open(tmp_path / "leader") as store:
        yield store.partition("t")


def said(log: segstore.PartitionLog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in read(log)]


def expected(messages: list[Message]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(m.offset, m.timestamp, m.key, m.value) for m in messages]


@pytest.mark.parametrize("size", SIZES)
def test_followers_get_magic_2(leading: segstore.PartitionLog, tmp_path: Path, size: int) -> None:
    leader, following = replica_of(leading, 1 << 60), opened(tmp_path / "follower", config=GAPPED)
    follower = replica_of(following)
    leading.append(b"new", timestamp=5)
    while follower.log_end_offset < leading.end_offset:
        data = leader.read(follower.log_end_offset, leader.log_end_offset, size)
        headers, _ = scan(data)
        assert (headers["magic"] == 2).all()
        assert follower.append_as_follower(data) > int(headers["base_offset"][0])
    follower.set_high_watermark(1 << 60)
    assert said(following) == [*expected(EACH_KIND.messages), (leading.end_offset - 1, 5, None, b"new")]
    # The messages of before have no epoch: as batches they have 0.
    assert [epoch for epoch, _ in follower.epochs] == [0, *(epoch for epoch, _ in leader.epochs)]
    closed(following)
    assert segstore.check(tmp_path / "follower") == []


@pytest.mark.parametrize("name", [*KINDS, "each"])
def test_what_a_broker_sends_is_brought_up(tmp_path: Path, name: str) -> None:
    """A cluster that is mirrored sends its old messages as they lie there."""
    drawn = {**KINDS, "each": EACH_KIND}[name]
    following = opened(tmp_path / "follower", config=GAPPED)
    follower = replica_of(following)
    assert follower.append_as_follower(drawn.data) == drawn.messages[-1].offset + 1
    follower.set_high_watermark(1 << 60)
    assert said(following) == expected(drawn.messages)
    assert (following.read(0).batches["magic"] == 2).all()
    assert (scan(log_bytes(tmp_path / "follower" / "t-0"))[0]["magic"] == 2).all()
    closed(following)


def test_damage_is_not_appended(tmp_path: Path) -> None:
    following = opened(tmp_path / "follower", config=GAPPED)
    follower = replica_of(following)
    data = bytearray(KINDS["magic 1, gzip"].data)
    data[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        follower.append_as_follower(bytes(data))
    assert follower.log_end_offset == 0
    closed(following)


def test_what_was_fetched_begins_where_its_first_message_does() -> None:
    data = joined(
        [entry(1, GZIP, some(70, 6)), entry(1, NONE, some(90, 1)), entry(0, GZIP, some(100, 4))]
    ).data
    found = brought(data)
    assert found is not None
    assert (found.fetched.next_offset, found.fetched.epochs) == (104, ((-1, 70),))
    assert len(found.below(70).batches) == 0
    assert found.below(1 << 60) is found.chunk
