"""Makes checkpoints anew without which a store can't be opened, or which say more than was ever true.

On disk: the four checkpoint files of the root, leader-epoch-checkpoint of each partition.
Threads: one, with the store's lock held and the store not open.

After a clean close by segstore the published ends are the authority. Else, where nothing says how far a log
was synced: all up to its last whole batch is taken for that, so that no good batch behind damage is cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.checkpoint import LeaderEpochs, read_offsets, write_offsets
from segstore.storage.ends import Ends, open_reader, slot_key
from segstore.storage.loader import list_segments
from segstore.storage.repair.repaired import Repaired
from segstore.storage.shutdown import read_marker
from segstore.storage.topics import TopicFiles
from segstore.storage.walk import walk, walk_past_damage

Key = tuple[str, int]
Offsets = dict[Key, int]
FIELDS = {
    names.RECOVERY_POINTS: "synced",
    names.LOG_STARTS: "start",
    names.HIGH_WATERMARKS: "high_watermark",
}


def put_right(files: Files, root: str) -> Iterator[Repaired]:
    """OSError."""
    topics = TopicFiles(files, root)
    there: dict[Key, str] = {}
    ids: dict[Key, str] = {}
    for info in topics.load()[0].values():
        for number in info.partition_ids:
            directory = topics.partition_path(info.name, number)
            # What a link leads to is another's: whoever opens the partition is told.
            if files.exists(directory) and not files.is_symlink(directory):
                there[info.name, number], ids[info.name, number] = directory, info.topic_id
    marker = read_marker(files, root)
    published = _published(files, root, marker, ids)
    for name in (*FIELDS, names.CLEANER_OFFSETS):
        yield from _offsets(files, os.path.join(root, name), published if marker else {})
    if not marker:
        yield from _unknown(files, os.path.join(root, names.RECOVERY_POINTS), published, there)
    for directory in there.values():
        yield from _epochs(files, directory)


def _published(files: Files, root: str, marker: int | None, ids: dict[Key, str]) -> dict[Key, Ends]:
    """What the last writer published, by partition, where that was segstore."""
    ends = open_reader(files, os.path.join(root, names.OURS, names.ENDS))
    if ends is None or marker == 0 or ends.nonce != (marker or 0):
        return {}
    found = {key: ends.get(slot_key(topic_id, *key)) for key, topic_id in ids.items()}
    return {key: held for key, held in found.items() if held is not None}


def _offsets(files: Files, path: str, ends: dict[Key, Ends]) -> Iterator[Repaired]:
    """`ends` are those of a clean close."""
    field = FIELDS.get(os.path.basename(path))
    published = {} if field is None else {key: getattr(held, field) for key, held in ends.items()}
    try:
        held = read_offsets(files, path)
    except CorruptCheckpointError as error:
        write_offsets(files, path, published)
        yield Repaired(path, None, None, _reason(error, path), f"made anew, with {len(published)} lines")
        return
    above = {key: at for key, at in published.items() if held.get(key, 0) > at}
    for key, offset in above.items():
        message = (
            f"{names.partition_dir(*key)}: says {held[key]}, but {offset} was published at a clean close"
        )
        yield Repaired(path, None, held[key], message, "put right")
    if above:
        write_offsets(files, path, held | above)


def _unknown(
    files: Files, path: str, published: dict[Key, Ends], there: dict[Key, str]
) -> Iterator[Repaired]:
    held = read_offsets(files, path)
    made = {k: _last_whole(files, d) for k, d in there.items() if k not in held and k not in published}
    if made:
        write_offsets(files, path, held | made)
        message = f"says nothing of {len(made)} partitions, and the last shutdown was not clean"
        yield Repaired(path, None, None, message, "all up to their last whole batches is taken for synced")


def _last_whole(files: Files, directory: str) -> int:
    """The offset behind the last batch whose CRC holds."""
    end = 0
    for end in reversed(list_segments(files, directory)):
        with files.open(os.path.join(directory, names.segment_file(end, names.LOG))) as handle:
            steps = walk_past_damage(files, handle, files.size(handle), check_crcs=True)
            lasts = [int(step.batches["last_offset"][-1]) for step in steps if len(step.batches)]
        if lasts:
            return lasts[-1] + 1
    return end


def _epochs(files: Files, directory: str) -> Iterator[Repaired]:
    """The log's batches say under which epoch they were written."""
    path = os.path.join(directory, names.LEADER_EPOCHS)
    try:
        LeaderEpochs.load(files, path)
    except CorruptCheckpointError as error:
        epochs = LeaderEpochs(files, path)
        for base in list_segments(files, directory):
            log = os.path.join(directory, names.segment_file(base, names.LOG))
            _assign(files, log, epochs)
        epochs.save()
        yield Repaired(path, None, None, _reason(error, path), "made anew from the log")


def _reason(error: CorruptCheckpointError, path: str) -> str:
    return str(error).removeprefix(f"{path}, ")


def _assign(files: Files, path: str, epochs: LeaderEpochs) -> None:
    with files.open(path) as handle:
        for step in walk(files, handle, 0, files.size(handle), check_crcs=True):
            batches = step.batches
            for epoch, base in zip(
                batches["leader_epoch"].tolist(), batches["base_offset"].tolist(), strict=True
            ):
                if epoch >= 0 and (epochs.latest is None or epoch > epochs.latest):
                    epochs.assign(epoch, base)
