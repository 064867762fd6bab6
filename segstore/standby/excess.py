"""Records that a directory had and its primary had not: they were cut, and copies are kept in the quarantine.

On disk files are only read. Threads: any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from segstore.config import arguments
from segstore.files import Files
from segstore.records import CONTROL_FLAG, decode, scan
from segstore.storage.context import os_errors
from segstore.storage.meta.role import read_role

_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)-\d{20}-at-\d+(-\d+)?\.log")


class CutRecord(NamedTuple):
    """A record that was cut; `path` is the copy that has it. `key` and `value` may be None."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    path: str


def cut_records(directory: str | os.PathLike[str], *, files: Files | None = None) -> Iterator[CutRecord]:
    """Yield the records that a standby has cut since it follows, because its primary had not got them. Raises
    StorageError, CorruptRecordError.
    """
    root, files = arguments.path("directory", directory), files or Files()
    with os_errors():
        role = read_role(files, root)
    for path in () if role is None else role.kept:
        yield from read_copy(files, path)


def read_copy(files: Files, path: str) -> Iterator[CutRecord]:
    """Yield the records of one copy. Raises StorageError, CorruptRecordError."""
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
