"""`take_over`: makes an archiver the only writer of an archive, with a new claim, and continues the newest
state.

A claim, a state of this claim, and changed lists of segments are written to the archive. The store's files
are only read. Threads: one, and those of `Uploads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from segstore.archiving.chain import newest_state
from segstore.archiving.claim import WritableObjects, check_claim, take_claim
from segstore.archiving.committing import CommitWriter
from segstore.archiving.comparing import Compared, compare, lost
from segstore.archiving.moment import Moment, Moments
from segstore.archiving.object_names import STATE, ArchiverClaim, CommitName, TopicIdPartition, upload
from segstore.archiving.partition_archive import PartitionArchive
from segstore.archiving.segment_list import SegmentList, read_segments
from segstore.archiving.state import ArchivedPartition, ArchiveState, Way, state_of
from segstore.archiving.uploads import Uploads
from segstore.errors import CorruptArchiveError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.logger import Logger

log = Logger("segstore")
_TRIES = 3


class TakenOver(NamedTuple):
    """The result of `take_over`. `claim` and `state` are those that were written. `went_other_ways` are the
    partitions whose log lacks archived records.
    """

    claim: ArchiverClaim
    state: ArchiveState
    partitions: dict[TopicIdPartition, PartitionArchive]
    went_other_ways: tuple[TopicIdPartition, ...]


def take_over(objects: WritableObjects, moments: Moments, uploads: Uploads) -> TakenOver:
    """Claim an archive, compare it with the store, and write a state of the new claim. If there is no
    archive, begin an archive. Raises ArchiveError, ArchiveFencedError, OSError.
    """
    claim = take_claim(objects)
    before = _read(objects)
    check_claim(objects, claim)
    moment = moments.take()
    if before is None:
        before = ArchiveState(CommitName(claim, 0, STATE), 0)
    _warn_if_foreign(objects, before, moments.store.path, moment)
    listed = read_lists(objects, before, uploads)
    compared = {
        key: found
        for key in before.partitions
        if key in moment.ends and (found := _compared(moments, before.partitions[key], listed.get(key)))
    }
    written = _with_lists(objects, claim, before, listed, compared, uploads)
    name = CommitName(claim, before.name.sequence + 1, STATE)
    time = max(before.time, moment.time)
    commit = CommitWriter(name, time)
    cut = tuple(key for key, each in compared.items() if each.is_cut)
    commit.ways = before.ways + ((Way(time, before.name.claim),) if cut else ())
    commit.topics, commit.files = list(before.topics.values()), before.files
    for each in written.values():
        commit.partition(each, each.pieces, 0)
    body = commit.body()
    objects.write(str(name), body)
    check_claim(objects, claim)
    for key in cut:
        _warn(key, before.partitions[key], compared[key])
    state = state_of(commit.header, name, body.pieces_at)
    lists = listed | {key: each.listed for key, each in compared.items()}
    partitions = {
        key: PartitionArchive(
            key,
            lists.get(key, SegmentList(key)),
            inodes=dict(compared[key].inodes) if key in compared else {},
        )
        for key in state.partitions
    }
    return TakenOver(claim, state, partitions, cut)


def _read(objects: WritableObjects) -> ArchiveState | None:
    """Return the newest state, or None if there is no archive. If objects are missing, read the state again,
    because another archiver may delete replaced objects during the read.
    """
    for _ in range(_TRIES - 1):
        try:
            return newest_state(objects)
        except (CorruptArchiveError, FileNotFoundError):
            continue
    return newest_state(objects)


def _warn_if_foreign(objects: WritableObjects, before: ArchiveState, path: str, moment: Moment) -> None:
    """Warn if the store has none of the archive's topics."""
    there = {key for key, each in before.topics.items() if each.deleted is None and each.topic_id}
    if there and not there & moment.all_topics:
        log.warning(
            "%s is the archive of another store: %s has no topic of it, by topic ids; %s counts as deleted"
            " from now on",
            *(objects.uri, path, ", ".join(sorted(name for name, _ in there))),
        )


def read_lists(
    objects: WritableObjects, state: ArchiveState, uploads: Uploads
) -> dict[TopicIdPartition, SegmentList]:
    """Return the lists of segments of all partitions; damaged lists are left out. Raises ArchiveError."""
    held = list(state.partitions.values())
    read = uploads.run([partial(_read_list, objects, each) for each in held])
    return {it.key: each for it, each in zip(held, read, strict=True) if each is not None}


def _read_list(objects: WritableObjects, partition: ArchivedPartition) -> SegmentList | None:
    """Return the list of a partition's segments. Return None if the list is damaged or missing, so that the
    partition is archived again from its beginning.
    """
    try:
        return read_segments(objects, partition)
    except CorruptArchiveError as error:
        log.warning("%s: the partition is archived anew: %s", objects.uri, error)
    return None


def _compared(moments: Moments, partition: ArchivedPartition, listed: SegmentList | None) -> Compared | None:
    key = partition.key
    try:
        view = moments.follower(key).written()
        if listed is None:
            return lost(partition, view)
        info = moments.info(key)
        compacted = info.gapped or bool(dict(info.compacted).get(key.partition))
        epochs = moments.epochs(key)
        return compare(moments.files, partition, listed, view, epochs, compacted)
    except (StoreClosedError, UnknownTopicOrPartitionError):  # the topic was deleted just now
        return None


def _with_lists(
    objects: WritableObjects,
    claim: ArchiverClaim,
    before: ArchiveState,
    listed: Mapping[TopicIdPartition, SegmentList],
    compared: Mapping[TopicIdPartition, Compared],
    uploads: Uploads,
) -> dict[TopicIdPartition, ArchivedPartition]:
    """Write the changed lists, and return all partitions with the names of their lists."""
    found = dict(before.partitions)
    changed: list[tuple[str, TopicIdPartition, Compared]] = []
    for key, each in compared.items():
        found[key] = each.partition
        if each.listed is not listed.get(key):
            changed.append((each.listed.object(upload(claim, len(changed))), key, each))
    uploads.run([partial(objects.write, name, [each.listed.to_bytes()]) for name, _, each in changed])
    for name, key, each in changed:
        found[key] = replace(each.partition, segments=name)
    return found


def _warn(key: TopicIdPartition, before: ArchivedPartition, found: Compared) -> None:
    log.warning(
        "%s: the archive had offsets up to %d, and the store's log is another one from offset %d on: what the"
        " archive had before is kept as an earlier way",
        *(key, before.end, found.common),
    )
