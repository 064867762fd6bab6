"""Reads and writes Kafka's checkpoint files, which are texts: offsets by partition in the root, leader epochs
in a partition's directory.

A file has a line with the version (0), a line with the number of entries, and a line per entry, "topic
partition offset" or "epoch startOffset"; each line ends in a newline
(org.apache.kafka.server.common.CheckpointFile). A missing or empty file has no entries. Any other content
raises CorruptCheckpointError. Files are replaced by a rename and synced, so that a crash leaves the old
content or the new content.

Threads: any thread may call the functions; a `LeaderEpochs` is used under the partition's lock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from segstore.errors import CorruptCheckpointError, InvalidTopicError
from segstore.files import Files
from segstore.integers import INT32_MAX
from segstore.leader_epochs import LeaderEpochCache
from segstore.mutex import Mutex
from segstore.names import MAX_OFFSET, MAX_PARTITION, check_topic
from segstore.storage.meta.small_files import NOT_A_FILE, reason

Path = str | os.PathLike[str]

VERSION = 0

_NUMBER = re.compile(rb"[0-9]{1,19}")


# --- the two formats ---------------------------------------------------------


def parse_offsets(data: bytes, where: Path) -> dict[tuple[str, int], int]:
    """Return the offsets by (topic, partition). Raises CorruptCheckpointError, with `where` as the file's
    name, and the number of the line.
    """
    found: dict[tuple[str, int], int] = {}
    for line, (topic, partition, offset) in _entries(data, where, 3):
        key = _topic(topic, where, line), _number(partition, MAX_PARTITION, where, line)
        if key in found:
            raise CorruptCheckpointError(where, line, f"partition {key[0]}-{key[1]} is there twice")
        found[key] = _number(offset, MAX_OFFSET, where, line)
    return found


def format_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Return the content of a file with these offsets, in order of topic and partition; `parse_offsets` reads
    it.
    """
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return _format(lines)


def parse_leader_epochs(data: bytes, where: Path) -> list[tuple[int, int]]:
    """Return (epoch, start offset) of each line, without checking their order. Raises CorruptCheckpointError,
    with `where` as the file's name.
    """
    return [
        (_number(epoch, INT32_MAX, where, line), _number(start, MAX_OFFSET, where, line))
        for line, (epoch, start) in _entries(data, where, 2)
    ]


def format_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Return the content of a file with these epochs, which `parse_leader_epochs` reads."""
    return _format([f"{epoch} {start}\n" for epoch, start in epochs])


def _format(lines: list[str]) -> bytes:
    return "".join((f"{VERSION}\n{len(lines)}\n", *lines)).encode()


def _entries(data: bytes, where: Path, width: int) -> list[tuple[int, list[bytes]]]:
    """Return (number of the line, counted from 1, and the `width` fields of the line) for each entry."""
    if not data:
        return []
    *lines, rest = data.split(b"\n")
    if rest:  # the last digits of a line without a newline may be missing
        raise CorruptCheckpointError(where, len(lines) + 1, "the last line does not end")
    version = _number(lines[0], MAX_OFFSET, where, 1)
    if version != VERSION:
        raise CorruptCheckpointError(where, 1, f"version {version} is unknown, {VERSION} is known")
    count = _number(lines[1] if len(lines) > 1 else b"", MAX_OFFSET, where, 2)
    if count != len(lines) - 2:
        raise CorruptCheckpointError(where, 2, f"says {count} entries, but there are {len(lines) - 2}")
    found = [(at, line.split()) for at, line in enumerate(lines[2:], 3)]
    for at, fields in found:
        if len(fields) != width:
            raise CorruptCheckpointError(where, at, f"{width} fields are expected, there are {len(fields)}")
    return found


def _number(text: bytes, most: int, where: Path, line: int) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise CorruptCheckpointError(where, line, f"{_shown(text)} is no number from 0 to {most}")
    return int(text)


def _topic(text: bytes, where: Path, line: int) -> str:
    try:
        return check_topic(text.decode("ascii", "replace"))
    except InvalidTopicError:
        raise CorruptCheckpointError(where, line, f"{_shown(text)} is no topic's name") from None


def _shown(text: bytes) -> str:
    return repr(text[:80].decode("ascii", "backslashreplace"))


# --- files -------------------------------------------------------------------


def read_offsets(files: Files, path: Path) -> dict[tuple[str, int], int]:
    """Return the offsets by (topic, partition); no offsets if the file is missing. Raises
    CorruptCheckpointError, OSError.
    """
    return parse_offsets(_read(files, path), path)


def try_offsets(files: Files, path: Path) -> tuple[dict[tuple[str, int], int] | None, str]:
    """Return (offsets by (topic, partition), ""); (None, "") if the file is missing or empty; or (None,
    reason why the file can't be used). Raises a transient OSError (EMFILE, EIO).
    """
    try:
        data = files.read_file(path)
        return (parse_offsets(data, path) if data else None), ""
    except FileNotFoundError:
        return None, ""
    except CorruptCheckpointError as error:
        return None, reason(error)
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        return None, reason(error)


def write_offsets(files: Files, path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace the file. The new file is durable when this returns. Raises OSError."""
    files.write_atomic(path, format_offsets(offsets))


def _read(files: Files, path: Path) -> bytes:
    try:
        return files.read_file(path)
    except FileNotFoundError:
        return b""


class LeaderEpochs(LeaderEpochCache):
    """Keeps the leader epochs of a partition, and writes their file (Kafka: LeaderEpochFileCache with its
    LeaderEpochCheckpointFile). Changes are in memory until `save`.

    `save` may leave out the sync (Kafka: KAFKA-15046). Epochs that a power cut removes from the file are then
    found in the record batches. Compaction may remove batches later, so a flush calls `sync` before it
    reports the batches as durable.
    """

    def __init__(self, files: Files, path: Path, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._files, self._path = files, path
        self._unsynced, self._saving = False, Mutex()
        super().__init__(entries)

    @classmethod
    def load(cls, files: Files, path: Path) -> LeaderEpochs:
        """Return the epochs in the file; no epochs if the file is missing. As in Kafka, an entry removes
        earlier entries if their epoch or start offset is not smaller.

        Raises CorruptCheckpointError, OSError.
        """
        return cls(files, path, parse_leader_epochs(_read(files, path), path))

    def save(self, *, sync: bool = True) -> None:
        """Replace the file. If `sync`, the new file is durable when this returns. Raises OSError."""
        with self._saving:
            self._unsynced = True
            self._files.write_atomic(self._path, format_leader_epochs(tuple(self._entries)), sync=sync)
            self._unsynced = not sync

    def sync(self) -> None:
        """Sync the file if `save` has left out the sync. Any thread may call this. Raises OSError."""
        if not self._unsynced:
            return
        # This is cleared before the sync, because a `save` during the sync sets it again.
        self._unsynced = False
        try:
            with suppress(FileNotFoundError), self._files.open(self._path, write=True) as handle:
                self._files.sync(handle)
            self._files.sync_dir(os.path.dirname(self._path))
        except BaseException:
            self._unsynced = True
            raise
