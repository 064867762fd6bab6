"""Makes an archive of a store at once, by the formats alone: what the archiver of the package is tested
against, and what readers of archives are tested with.
"""

from __future__ import annotations

import os
from pathlib import Path

from segstore import names
from segstore._native import crc32c
from segstore.archiving.commit_format import pack_header
from segstore.archiving.object_names import (
    COMMIT,
    STATE,
    ArchiverClaim,
    CommitName,
    TopicIdPartition,
    claim_object,
    upload,
)
from segstore.archiving.pieces import ArchivedPiece, ArchivedSegment
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.state import ArchivedPartition, ArchivedTopic, header_of
from segstore.leader_epochs import LeaderEpochCache
from segstore.storage.log.epoch_history import LeaderEpochs
from segstore.storage.meta.topic_info import TopicInfo, format_settings
from segstore.storage.store.store import Store
from segstore.storage.store.store import open as open_store

SUFFIXES = (names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX, names.SNAPSHOT)
CLAIM = ArchiverClaim(1, "00000000000000aa")


def make_archive(
    store: str | Path, uri: str | Path, time: int = 1_000, pieces: int = 2, claim: ArchiverClaim = CLAIM
) -> RemoteFiles:
    """Archive a store that nobody writes: one state, and a commit with the last of up to `pieces` pieces of
    each partition.
    """
    remote = RemoteFiles(str(uri))
    remote.write(claim_object(claim), [b"{}"])
    with open_store(store, "r") as opened:
        topics = list(opened.topics().values())
        made = [
            _Made(remote, opened, info, number, time, claim)
            for info in topics
            for number in info.partition_ids
        ]
        told = [ArchivedTopic(t.name, t.topic_id, t.partition_ids, _settings(t, time), 0) for t in topics]
        for name, last in ((CommitName(claim, 1, STATE), False), (CommitName(claim, 2, COMMIT), True)):
            bodies: list[bytes] = []
            entries = [each.entry(name, bodies, last, pieces) for each in made]
            header = header_of(name, time, [] if last else told, entries, {})
            remote.write(str(name), [pack_header(header), *bodies])
    return remote


def _settings(info: TopicInfo, time: int) -> tuple[tuple[int, bytes], ...]:
    return ((time, format_settings(info) if info.ours else b""),)


class _Made:
    def __init__(
        self, remote: RemoteFiles, store: Store, info: TopicInfo, number: int, time: int, claim: ArchiverClaim
    ) -> None:
        self.key, self.time = TopicIdPartition(info.name, info.topic_id, number), time
        log = store.partition(info.name, number)
        self.view = log.source.view
        self.stable = log.last_stable_offset
        directory = os.path.join(store.path, names.partition_dir(info.name, number))
        path = os.path.join(directory, names.LEADER_EPOCHS)
        loaded: LeaderEpochCache = LeaderEpochs.load(store.context.files, path)
        self.epochs = loaded.entries
        sealed = tuple(
            _uploaded(remote, self.key, directory, base, end, time, claim)
            for base, end in zip(self.view.bases, self.view.bases[1:], strict=False)
        )
        self.list_name = None
        if sealed:
            listed = SegmentList(self.key, 1, sealed, ((time, self.view.start_offset),))
            self.list_name = listed.object(upload(claim, 0))
            remote.write(self.list_name, [listed.to_bytes()])

    def entry(self, name: CommitName, bodies: list[bytes], last: bool, most: int) -> dict[str, object]:
        """Return the partition's entry of one commit; its pieces are added to `bodies`."""
        active = self.view.segments[-1]
        data = Path(active.path).read_bytes()[: self.view.end_position] if self.view.end_position else b""
        batches = _batches(data)
        half = len(batches) // 2 if most > 1 else 0
        wanted = batches[half:] if last else batches[:half]
        pieces = []
        if wanted:
            body = data[wanted[0][0] : wanted[-1][0] + wanted[-1][1]]
            at = sum(map(len, bodies))
            bodies.append(body)
            pieces.append(
                ArchivedPiece(
                    *(str(name), at, len(body), crc32c(body), active.base_offset, wanted[0][0]),
                    *(wanted[0][2], wanted[-1][3], max(each[4] for each in wanted)),
                )
            )
        end = self.view.end_offset if last else (wanted[-1][3] if wanted else active.base_offset)
        told = ArchivedPartition(
            *(self.key, self.list_name, (), min(self.view.start_offset, end), end),
            *(min(self.stable, end), self.epochs, None, self.time),
        )
        return told.to_json(pieces, 0)


def _batches(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """Return position, size, first offset, end offset and largest timestamp of each batch."""
    found, at = [], 0
    while at < len(data):
        base = int.from_bytes(data[at : at + 8], "big")
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        delta = int.from_bytes(data[at + 23 : at + 27], "big")
        latest = int.from_bytes(data[at + 35 : at + 43], "big", signed=True)
        found.append((at, size, base, base + delta + 1, latest))
        at += size
    return found


def _uploaded(
    remote: RemoteFiles,
    key: TopicIdPartition,
    directory: str,
    base: int,
    end: int,
    time: int,
    claim: ArchiverClaim,
) -> ArchivedSegment:
    files = {}
    for suffix in SUFFIXES:
        path = Path(directory, names.segment_file(base, suffix))
        if path.exists():
            data = path.read_bytes()
            files[suffix] = (len(data), crc32c(data))
    latest = max(
        (each[4] for each in _batches(Path(directory, names.segment_file(base, names.LOG)).read_bytes())),
        default=-1,
    )
    segment = ArchivedSegment(base, end, upload(claim, 0), files, latest, time)
    for suffix in files:
        data = Path(directory, names.segment_file(base, suffix)).read_bytes()
        remote.write(segment.object(key, suffix), [data])
    return segment
