"""Reads the copies, in the quarantine, of records that were truncated because the new primary did not have
them.

On disk: only reads. Threads: any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from segstore import names
from segstore.config import arguments
from segstore.files import Files
from segstore.records import CONTROL_FLAG, decode, scan
from segstore.storage.context import os_errors
from segstore.storage.segment.quarantine import NOTE

_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)-\d{20}-at-\d+(-\d+)?\.log")


class CutRecord(NamedTuple):
    """A truncated record. `path` is the path of the file that has the record's copy. `key` and `value` may be
    None.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    path: str


def cut_records(directory: str | os.PathLike[str], *, files: Files | None = None) -> Iterator[CutRecord]:
    """Return an iterator over the records that were truncated from the logs of a directory. The iterator
    reads the copies of the records in the directory's quarantine. Records are truncated if a new primary does
    not have them, or if a recovery finds damage before them. Copies that `repair` has made are skipped. The
    iterator raises StorageError, CorruptRecordError.
    """
    return _cut(arguments.path("directory", directory), files or Files())


def _cut(root: str, files: Files) -> Iterator[CutRecord]:
    for path in copies(files, root):
        yield from read_copy(files, path)


def copies(files: Files, root: str) -> list[str]:
    """Return the paths of the files in the quarantine that have copies of truncated records. Raises
    StorageError.
    """
    with os_errors():
        kept = names.below(root, f"{names.OURS}/{names.QUARANTINE}")
        found = frozenset(files.listdir(kept)) if files.exists(kept) else frozenset()
    return [
        names.below(kept, name)
        for name in sorted(found)
        if _NAME.fullmatch(name) and name.removesuffix(names.LOG) + NOTE not in found
    ]


def read_copy(files: Files, path: str) -> Iterator[CutRecord]:
    """Yield the records of one copy in the quarantine. Raises StorageError, CorruptRecordError."""
    found = _NAME.fullmatch(os.path.basename(path))
    assert found is not None, path
    with os_errors(), files.open(path) as handle:
        data = files.pread(handle, files.size(handle), 0)
    batches, _ = scan(data)
    records = decode(data, batches[(batches["attributes"] & CONTROL_FLAG) == 0], path)
    for record, epoch in zip(records, records.leader_epochs.tolist(), strict=True):
        yield CutRecord(
            found["topic"], int(found["partition"]), record.offset, epoch, record.key, record.value, path
        )
