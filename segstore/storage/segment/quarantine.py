"""The quarantine, `.segstore/quarantine`: copies of bytes that were cut out of logs.

The copies are for the user; segstore has no use for them. A copy is `<partition>-<base
offset>-at-<position>.log`; a `.txt` file beside the copy may describe the copy. Threads: the thread that cuts
the bytes.
"""

from __future__ import annotations

import itertools
import os

from segstore import names
from segstore.files import Files
from segstore.storage.segment.batch_scan import CHUNK, next_whole
from segstore.storage.segment.segment import Segment

NOTE = ".txt"


def keep(directory: str, segment: Segment, position: int, end: int) -> str:
    """Copy bytes `position` to `end` of a segment's log; return the path of the copy, which is durable.
    Raises OSError.
    """
    files = segment.pool.files
    files.ensure_directory(directory)
    path = _free_name(directory, segment, position, end)
    if not files.exists(path):
        with files.open_anew(path + names.TEMPORARY) as copy:
            files.copy_range(segment.handle, position, copy, 0, end - position)
            files.sync(copy)
        files.rename(path + names.TEMPORARY, path)
        files.sync_dir(directory)
    return path


def keep_batches(directory: str, segment: Segment, position: int) -> str | None:
    """Copy the bytes from `position` on if these bytes hold a whole batch. Return the path of the copy, None
    if there is no copy. Raises OSError.
    """
    if next_whole(segment.pool.files, segment.handle, position, segment.size, 0) is None:
        return None
    return keep(directory, segment, position, segment.size)


def note(files: Files, path: str, said: dict[str, object]) -> None:
    """Write a `.txt` file beside the copy at `path`, with one line for each item of `said`. Raises
    OSError.
    """
    text = "".join(f"{name}: {value}\n" for name, value in said.items())
    files.write_atomic(path.removesuffix(names.LOG) + NOTE, text.encode())


def _free_name(directory: str, segment: Segment, position: int, end: int) -> str:
    """Return a free path for a copy of the segment's bytes from `position` to `end`. If an earlier try, which
    a crash has stopped, has left a file with the same bytes, return the path of that file.
    """
    partition = os.path.basename(segment.directory)
    stem = os.path.join(directory, f"{partition}-{segment.base_offset:020d}-at-{position}")
    for n in itertools.count():
        path = f"{stem}{f'-{n}' if n else ''}{names.LOG}"
        if not segment.pool.files.exists(path) or _same(segment, position, end, path):
            return path
    raise AssertionError("count() ends")


def _same(segment: Segment, position: int, end: int, path: str) -> bool:
    files = segment.pool.files
    with files.open(path) as kept:
        size = files.size(kept)
        if size != end - position:
            return False
        pieces = ((at, min(CHUNK, size - at)) for at in range(0, size, CHUNK))
        return all(
            files.pread(kept, n, at) == files.pread(segment.handle, n, position + at) for at, n in pieces
        )
