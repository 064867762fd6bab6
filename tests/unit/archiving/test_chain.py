"""`read_state`: finds the newest state of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_archive import CLAIM, make_archive

import segstore
from segstore.archiving.chain import read_state
from segstore.archiving.commit_format import pack_header
from segstore.archiving.object_names import (
    COMMIT,
    STATE,
    ArchiverClaim,
    CommitName,
    TopicIdPartition,
    claim_object,
)
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import parse_segment_list
from segstore.archiving.state import Way, header_of
from segstore.errors import ArchiveError, CorruptArchiveError


@pytest.fixture
def remote(tmp_path: Path) -> RemoteFiles:
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config={"segment.bytes": 1000})
        for number in range(100):
            store.partition("t").append(b"%03d" % number * 20)
    return make_archive(tmp_path / "store", tmp_path / "archive")


def test_a_state_with_the_commits_behind_it(remote: RemoteFiles) -> None:
    state = read_state(remote)
    topic = state.topic("t")
    assert topic is not None
    found = state.partitions[TopicIdPartition("t", topic.topic_id, 0)]
    assert (found.start, found.end, found.stable) == (0, 100, 100)
    assert found.segments is not None
    segments = parse_segment_list(remote.read(found.segments), found.segments).current
    ends = [each.end for each in segments]
    assert [each.base for each in segments] == [0, *ends[:-1]]
    assert found.pieces[0].first == ends[-1]
    assert found.pieces[-1].end == 100
    last = found.pieces[-1]
    assert len(remote.read_range(last.object, last.at, last.length)) == last.length
    assert remote.list("commits/")[last.object] == last.at + last.length


def test_a_missing_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        read_state(RemoteFiles(str(tmp_path / "none")))


def test_a_missing_commit_is_told_by_name(remote: RemoteFiles) -> None:
    later = CommitName(CLAIM, 4, COMMIT)
    remote.write(str(later), [pack_header(header_of(later, 5, [], [], {}))])
    with pytest.raises(CorruptArchiveError, match=r"00003\.commit: it is missing"):
        read_state(remote)


@pytest.mark.parametrize(
    ("at", "told"),
    [(3, "begins with"), (12, "the CRC of its header"), (40, "the CRC of its header")],
)
def test_a_flipped_byte_is_told_by_name(remote: RemoteFiles, at: int, told: str) -> None:
    name = str(CommitName(CLAIM, 2, COMMIT))
    data = bytearray(remote.read(name))
    data[at] ^= 1
    remote.write(name, [data])
    with pytest.raises(CorruptArchiveError, match=told) as caught:
        read_state(remote)
    assert caught.value.object == name


def test_an_earlier_way_is_taken_for_a_time_before_its_end(remote: RemoteFiles) -> None:
    other = ArchiverClaim(2, "0" * 16)
    remote.write(claim_object(other), [b"{}"])
    assert read_state(remote).name.claim == CLAIM  # a claim without a state does not count
    name = CommitName(other, 3, STATE)
    remote.write(str(name), [pack_header(header_of(name, 5_000, [], [], {}, ways=[Way(5_000, CLAIM)]))])
    assert read_state(remote).topic_names() == []
    assert read_state(remote, 5_000).topic_names() == []
    assert read_state(remote, 4_999).topic_names() == ["t"]
