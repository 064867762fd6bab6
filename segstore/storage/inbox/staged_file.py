"""The description of a stager's files: small, picklable values, which `seal` checks. Threads: any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segstore import names
from segstore._native import crc32c
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.integers import INT32_MAX
from segstore.storage.meta.framed import compact


class StagedFile(NamedTuple):
    """A file that a stager has written: whole batches for one partition, with contiguous offsets.

    `size` is in bytes. `changed` is the ctime of the file's last change (ns), or 0 if a later change might
    get the same ctime. `boot` is the kernel's boot id at the last change. `keyed`: every record was checked
    to have a key, because the topic was compacted at that time.
    """

    stager: str
    name: str
    topic: str
    topic_id: str
    partition: int
    batches: int
    records: int
    size: int
    changed: int
    boot: str
    keyed: bool

    @classmethod
    def parse(cls, row: Any) -> StagedFile:
        """Return the staged file that a row of a manifest describes. Raises ValueError."""
        kinds = (str, str, str, str, int, int, int, int, int, str, bool)
        if not isinstance(row, (list, tuple)) or [type(v) for v in row] != list(kinds):
            raise ValueError(f"{row!r:.200} is no staged file")
        file = cls(*row)
        numbers = file.partition, file.batches - 1, file.records - 1, file.size - 1
        good = names.is_stager(file.stager) and names.is_staged_file(file.name)
        if not good or not all(0 <= n < INT32_MAX for n in numbers):
            raise ValueError(f"{row!r:.200} is no staged file")
        names.check_topic(file.topic)
        return file


@dataclass(frozen=True)
class Staged:
    """The result of `Stager.finish`: the files in `.segstore/inbox/<stager>` of the store at `path`."""

    path: str
    stager: str
    files: tuple[StagedFile, ...]
    crc: int = field(default=-1)

    @classmethod
    def of(cls, path: str, stager: str, files: Sequence[StagedFile]) -> Staged:
        """Return the description of a stager's files, with its CRC."""
        return cls(path, stager, tuple(files), _crc(stager, files))

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def partitions(self) -> frozenset[tuple[str, int]]:
        return frozenset((file.topic, file.partition) for file in self.files)


def _crc(stager: str, files: Sequence[StagedFile]) -> int:
    return crc32c(compact([stager, *files]))


def files_of(messages: Iterable[Staged]) -> tuple[StagedFile, ...]:
    """Return the staged files that the messages describe, each file once, in order. Raises InvalidTypeError,
    InvalidArgumentError.
    """
    if isinstance(messages, Staged) or not isinstance(messages, Iterable):
        raise InvalidTypeError(f"messages must be a sequence of Staged, not {type(messages).__name__}")
    files_in_order: dict[StagedFile, None] = {}
    for message in messages:
        if not isinstance(message, Staged):
            raise InvalidTypeError(f"messages must be of Staged, not {type(message).__name__}")
        try:
            files = [StagedFile.parse(file) for file in message.files]
        except ValueError as error:
            raise InvalidArgumentError(f"a message is damaged: {error}") from error
        if message.crc != _crc(message.stager, files) or {f.stager for f in files} - {message.stager}:
            raise InvalidArgumentError(f"the message of stager {message.stager!r:.60} is damaged: wrong CRC")
        files_in_order |= dict.fromkeys(files)
    return tuple(files_in_order)


def check_id(value: Any) -> str:
    """Return `value` if it is a valid id of a manifest: 1 to 1,000 printable characters. Raises
    InvalidTypeError, InvalidArgumentError.
    """
    if not isinstance(value, str):
        raise InvalidTypeError(f"id must be a str, not {type(value).__name__}")
    if not _is_text(value):
        raise InvalidArgumentError(f"id={value!r:.100}: must be 1 to 1,000 printable characters")
    return value


def check_source(value: Any) -> str:
    """Return `value` if it is a valid source of a manifest: a description of the records' origin, of at most
    1,000 printable characters. Raises InvalidTypeError, InvalidArgumentError.
    """
    if not isinstance(value, str):
        raise InvalidTypeError(f"source must be a str, not {type(value).__name__}")
    if value and not _is_text(value):
        raise InvalidArgumentError(f"source={value!r:.100}: must be up to 1,000 printable characters")
    return value


def _is_text(value: str) -> bool:
    return len(value) <= 1000 and re.fullmatch(r"[^\x00-\x1f\x7f\ud800-\udfff]+", value) is not None
