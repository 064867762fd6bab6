"""Makes an archive of a store moment by moment, by the formats alone: with segments that were replaced or
deleted, topics that were deleted, and contents of small files that changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from made_archive import CLAIM, SUFFIXES, _batches, _settings, _uploaded

from segstore import names
from segstore._native import crc32c
from segstore.archiving.commit_format import pack_header
from segstore.archiving.object_names import (
    STATE,
    ArchiverClaim,
    CommitName,
    TopicIdPartition,
    claim_object,
    upload,
)
from segstore.archiving.pieces import ArchivedPiece, ArchivedSegment, piece_of
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.state import ArchivedPartition, ArchivedTopic, Versions, Way, header_of, with_version
from segstore.leader_epochs import LeaderEpochCache
from segstore.storage.log.epoch_history import LeaderEpochs
from segstore.storage.store.store import Store
from segstore.storage.store.store import open as open_store

SMALL_FILES = (names.ADOPTED, names.ADOPTED_COPY, names.CLUSTER_ID, names.PRODUCER_IDS, names.GROUPS)


class ArchivedHistory:
    """An archive below `uri`, which has a state for each `take`."""

    def __init__(self, uri: str | Path) -> None:
        self.remote = RemoteFiles(str(uri))
        self.claim, self.ways, self._looked = CLAIM, tuple[Way, ...](), 0
        self.remote.write(claim_object(CLAIM), [b"{}"])
        self.sequence = 0
        self.topics: dict[tuple[str, str], ArchivedTopic] = {}
        self.lists: dict[TopicIdPartition, SegmentList] = {}
        self.partitions: dict[TopicIdPartition, dict[str, Any]] = {}
        self.files: dict[str, Versions] = {}
        self._uploads = 0

    @property
    def uri(self) -> str:
        return self.remote.uri

    def take(self, path: Path, time: int) -> None:
        """Archive a store, which nobody writes, as its state at a time (ms)."""
        self.sequence += 1
        name, bodies = CommitName(self.claim, self.sequence, STATE), list[bytes]()
        with open_store(path, "r") as store:
            self._take_topics(store, time)
            for info in store.topics().values():
                for number in info.partition_ids:
                    key = TopicIdPartition(info.name, info.topic_id, number)
                    self.partitions[key] = self._partition(store, key, str(name), bodies, time)
            for file in SMALL_FILES:
                held = Path(path, names.OURS, file)
                if held.exists():
                    self.files[file] = with_version(self.files.get(file, ()), time, held.read_bytes())
        header = header_of(
            name, time, self.topics.values(), self.partitions.values(), self.files, ways=self.ways
        )
        packed = pack_header(header)
        self.remote.write(str(name), [packed, *bodies])
        self._place_pieces(str(name), len(packed))

    def go_another_way(self, time: int) -> None:
        """Let the next states be those of another claim, from a time (ms) on."""
        self.ways = (*self.ways, Way(time, self.claim))
        self.claim = ArchiverClaim(self.claim.epoch + 1, "0" * 16)
        self.remote.write(claim_object(self.claim), [b"{}"])

    def _place_pieces(self, name: str, pieces_at: int) -> None:
        """Let later states find pieces in the state that has them."""
        for held in self.partitions.values():
            placed = [piece_of(each) for each in held["pieces"]]
            held["pieces"] = [
                (each._replace(at=each.at + pieces_at) if each.object == name else each).to_json()
                for each in placed
            ]

    def _take_topics(self, store: Store, time: int) -> None:
        there = {(info.name, info.topic_id): info for info in store.topics().values()}
        before, self._looked = self._looked, time
        for which, held in self.topics.items():
            if which not in there and held.deleted is None:
                self.topics[which] = held._replace(deleted=time)
        for which, info in there.items():
            created = self.topics[which].created if which in self.topics else before
            known = self.topics[which].settings if which in self.topics else ()
            settings = with_version(known, *_settings(info, time)[0])
            self.topics[which] = ArchivedTopic(*which, info.partition_ids, settings, created)

    def _partition(
        self, store: Store, key: TopicIdPartition, name: str, bodies: list[bytes], time: int
    ) -> dict[str, Any]:
        log = store.partition(key.topic, key.partition)
        view = log.source.view
        directory = os.path.join(store.path, names.partition_dir(key.topic, key.partition))
        ends = dict(zip(view.bases, view.bases[1:], strict=False))
        listed = self._list(key, directory, ends, view.start_offset, time)
        active = view.segments[-1]
        data = Path(active.path).read_bytes()[: view.end_position] if view.end_position else b""
        pieces = []
        if batches := _batches(data):
            at = sum(map(len, bodies))
            bodies.append(data)
            latest = max(each[4] for each in batches)
            place = (name, at, len(data), crc32c(data), active.base_offset, 0)
            pieces.append(ArchivedPiece(*place, batches[0][2], batches[-1][3], latest))
        loaded: LeaderEpochCache = LeaderEpochs.load(
            store.context.files, os.path.join(directory, names.LEADER_EPOCHS)
        )
        told = ArchivedPartition(
            *(key, listed, (), view.start_offset, view.end_offset, log.last_stable_offset),
            *(loaded.entries, None, time),
        )
        return told.to_json(pieces, 0)

    def _list(
        self, key: TopicIdPartition, directory: str, ends: dict[int, int], start: int, time: int
    ) -> str | None:
        before = self.lists.get(key, SegmentList(key))
        there = {base: _crcs(directory, base) for base in ends}
        kept: list[ArchivedSegment] = []
        for each in before.segments:
            same = there.get(each.base) == each.files.get(names.LOG)
            if each.until is None and not same:
                why = "retention" if each.end <= start else "replaced"
                kept.append(each.retire(time, why))
            else:
                kept.append(each)
                there.pop(each.base, None) if each.until is None else None
        for base in there:
            self._uploads += 1
            kept.append(self._upload(key, directory, base, ends[base], time))
        starts = before.starts
        if not starts or starts[-1][1] != start:
            starts = (*starts, (time, start))
        made = self.lists[key] = before.next_version(kept, starts)
        if not made.segments:
            return None
        found = made.object(upload(self.claim, self._uploads))
        self.remote.write(found, [made.to_bytes()])
        return found

    def _upload(
        self, key: TopicIdPartition, directory: str, base: int, end: int, time: int
    ) -> ArchivedSegment:
        made = _uploaded(self.remote, key, directory, base, end, time, self.claim)
        other = made._replace(upload=upload(self.claim, self._uploads))
        for suffix in other.files:
            self.remote.write(other.object(key, suffix), [self.remote.read(made.object(key, suffix))])
        self.remote.delete([made.object(key, suffix) for suffix in SUFFIXES])
        return other


def _crcs(directory: str, base: int) -> tuple[int, int]:
    data = Path(directory, names.segment_file(base, names.LOG)).read_bytes()
    return len(data), crc32c(data)
