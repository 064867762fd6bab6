"""Repairs checkpoints that prevent an open of the store, or whose offsets are too large.

The four checkpoint files of the root may change. Threads: one, while it holds the store's lock and the store
is not open.

After a clean close by segstore the right offsets are those that the writer has published in `.segstore/ends`.
If there was no clean close, and the recovery point of a log is neither in `.segstore/ends` nor in a
checkpoint, the log counts as synced up to its last whole batch, so that an open does not cut off good batches
that follow damaged bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.finding import Repaired
from segstore.storage.log.recovery import last_whole
from segstore.storage.meta.clean_shutdown import read_marker
from segstore.storage.meta.offset_checkpoints import read_offsets, write_offsets
from segstore.storage.meta.published_ends import Ends, open_reader, slot_key
from segstore.storage.meta.small_files import reason
from segstore.storage.meta.topics import TopicFiles
from segstore.storage.segment.segment_files import list_segments

Key = tuple[str, int]
Offsets = dict[Key, int]
FIELDS = {
    names.RECOVERY_POINTS: "synced",
    names.LOG_STARTS: "start",
    names.HIGH_WATERMARKS: "high_watermark",
}


def put_right(files: Files, root: str) -> Iterator[Repaired]:
    """Repair the checkpoints, and yield each repair. Raises OSError."""
    topics = TopicFiles(files, root)
    there: dict[Key, str] = {}
    ids: dict[Key, str] = {}
    for info in topics.load()[0].values():
        for number in info.partition_ids:
            directory = topics.partition_path(info.name, number)
            # A symbolic link may lead out of the store, so it is skipped. The open of the partition raises an
            # error for the link.
            if files.exists(directory) and not files.is_symlink(directory):
                there[info.name, number], ids[info.name, number] = directory, info.topic_id
    marker = read_marker(files, root)
    published = _published(files, root, marker, ids)
    for name in (*FIELDS, names.CLEANER_OFFSETS):
        yield from _offsets(files, os.path.join(root, name), published if marker else {})
    if not marker:
        yield from _unknown(files, os.path.join(root, names.RECOVERY_POINTS), published, there)


def _published(files: Files, root: str, marker: int | None, ids: dict[Key, str]) -> dict[Key, Ends]:
    """Return {partition: the offsets that the writer has published for it}, or an empty dict if segstore was
    not the last writer.
    """
    ends = open_reader(files, os.path.join(root, names.OURS, names.ENDS))
    if ends is None or marker == 0 or ends.nonce != (marker or 0):
        return {}
    found = {key: ends.get(slot_key(topic_id, *key)) for key, topic_id in ids.items()}
    return {key: held for key, held in found.items() if held is not None}


def _offsets(files: Files, path: str, ends: dict[Key, Ends]) -> Iterator[Repaired]:
    """Repair one checkpoint from `ends`, the published offsets of a clean close (empty if the close was not
    clean). Yield each repair.
    """
    field = FIELDS.get(os.path.basename(path))
    published = {} if field is None else {key: getattr(held, field) for key, held in ends.items()}
    try:
        held = read_offsets(files, path)
    except CorruptCheckpointError as error:
        write_offsets(files, path, published)
        yield Repaired(path, None, None, reason(error), _anew(len(published)))
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
    made = {
        k: last_whole(files, d, list_segments(files, d))
        for k, d in there.items()
        if k not in held and k not in published
    }
    if made:
        write_offsets(files, path, held | made)
        message = f"says nothing of {len(made)} partitions, and the last shutdown was not clean"
        yield Repaired(path, None, None, message, "all up to their last whole batches is taken for synced")


def _anew(lines: int) -> str:
    said = "of no partition" if not lines else "of 1 partition" if lines == 1 else f"of {lines} partitions"
    return f"made anew: it has what was published {said}"
