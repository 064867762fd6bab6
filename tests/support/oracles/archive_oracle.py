"""What an archive has, by its formats alone: the bytes of each partition's log, put together from segments
and pieces, each with its CRC checked.
"""

from __future__ import annotations

import os
from pathlib import Path

from segstore import names
from segstore._native import crc32c
from segstore.archiving.chain import read_state
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.segment_list import SegmentList, parse_segment_list
from segstore.archiving.state import ArchivedPartition, ArchiveState
from segstore.storage.store.store import open as open_store

Logs = dict[int, bytes]
"""The bytes of the log of each segment, by its base offset."""


def archived_logs(objects, time: int | None = None) -> dict[TopicIdPartition, Logs]:
    """Return the logs of all partitions that an archive has. Each object that the state names is read."""
    state = read_state(objects, time)
    return {key: partition_logs(objects, each) for key, each in state.partitions.items()}


def list_of(objects, partition: ArchivedPartition) -> SegmentList:
    """Return the list of a partition's segments."""
    if partition.segments is None:
        return SegmentList(partition.key)
    return parse_segment_list(objects.read(partition.segments), partition.segments)


def partition_logs(objects, partition: ArchivedPartition) -> Logs:
    """Return the logs of one partition, of which segments and pieces must join."""
    found: Logs = {}
    end = None
    for segment in list_of(objects, partition).segments:
        for suffix, (size, crc) in segment.files.items():
            data = objects.read(segment.object(partition.key, suffix))
            assert (len(data), crc32c(data)) == (size, crc), segment.object(partition.key, suffix)
            if suffix == names.LOG and segment.until is None:
                assert end is None or segment.base == end, f"{segment.base} after {end}"
                found[segment.base], end = data, segment.end
    for piece in partition.pieces:
        data = objects.read_range(piece.object, piece.at, piece.length)
        assert (len(data), crc32c(data)) == (piece.length, piece.crc), piece
        assert end is None or piece.base >= end, f"{piece} lies in a segment"
        assert len(found.get(piece.base, b"")) == piece.position, piece
        found[piece.base] = found.get(piece.base, b"") + data
    return {base: data for base, data in found.items() if data}


def store_logs(store: str | Path) -> dict[TopicIdPartition, Logs]:
    """Return the logs of all partitions of a store that nobody writes to now."""
    found = {}
    with open_store(store, "r") as opened:
        for info in opened.topics().values():
            for number in info.partition_ids:
                view = opened.partition(info.name, number).source.view
                logs = {
                    segment.base_offset: Path(segment.path).read_bytes()[: view.end_of(slot)]
                    for slot, segment in enumerate(view.segments)
                    if os.path.exists(segment.path)
                }
                key = TopicIdPartition(info.name, info.topic_id, number)
                found[key] = {base: data for base, data in logs.items() if data}
    return found


def check_archive(objects, store: str | Path) -> ArchiveState:
    """Check that an archive has just what a store has; return its newest state."""
    state = read_state(objects)
    there = {key for key in state.partitions if state.topics[key[:2]].deleted is None}
    held = archived_logs(objects)
    assert {key: held[key] for key in there} == store_logs(store)
    return state
