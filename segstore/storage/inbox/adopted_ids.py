"""`.segstore/adopted` and its second copy `adopted.copy`: the ids of adopted manifests, with the offsets of
their records.

A line has a CRC and {"id", "ms", "offsets": [[topic, partition, first, end], ...], "others", "source"}.
"others" is left out if it is 0, and "source" if it is empty. Lines are appended and synced. The file is
rewritten without expired ids when it has at least twice as many lines as necessary. If a line is damaged or
incomplete, its id is read from the second copy, which is written after the file and not synced. An id counts
as adopted if it is in either file. Threads: one at a time, under the inbox's lock. Other processes read the
file with `read_adoption` and `read_newest`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from segstore import names
from segstore.files import Files
from segstore.logger import Logger
from segstore.storage.inbox.known_ids import Adoption, KnownIds
from segstore.storage.meta.framed import compact, frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE

log = Logger("segstore")
_MOST_BYTES = 1 << 31
_ROW = (str, int, int, int)
_LEAST = 64  # a file with fewer than twice this many lines is not rewritten


class AdoptedIds:
    """The ids of adopted manifests in one store. `retention_ms` limits their age, and `count` limits their
    number.
    """

    def __init__(self, files: Files, path: str, retention_ms: int, count: int) -> None:
        """Read the ids. Damaged lines are removed, durably, before the ids are used. Raises OSError."""
        self._files, self.path, self._known = files, path, KnownIds(retention_ms, count)
        self._size = self._lines = 0
        self._there = files.exists(path)
        self._copy = os.path.join(os.path.dirname(path), names.ADOPTED_COPY)
        self._copied = False  # whether the second copy has the same lines as the file
        self._inode = -1
        self.wrong: list[tuple[str, str, str]] = []
        """(path, damage, repair) of each file that was repaired."""
        if self._there or files.exists(self._copy):
            self._load()

    def _load(self) -> None:
        data, damaged = self._read(self.path)
        copy, damaged_copy = self._read(self._copy)
        by_id = {each.id: each for each in data.adoptions}
        lost = [each for each in copy.adoptions if each.id not in by_id]
        if lost:
            by_id = {
                each.id: each for each in sorted((*data.adoptions, *lost), key=lambda one: one.adopted_ms)
            }
        for adoption in by_id.values():
            self._known.keep(adoption)
        self._size, self._lines = data.size, len(data.adoptions)
        self._note_damage(damaged, damaged_copy, len(lost))
        # A file with several hard links is not written in place, because readers of the other links would
        # see the change.
        shared = self._there and self._files.links(self.path) > 1
        if damaged or lost or shared:
            self._rewrite()
            return
        self._inode = self._files.inode(self.path) if self._there else -1
        shared = self._files.exists(self._copy) and self._files.links(self._copy) > 1
        self._copied = copy == data and not shared
        if not self._copied:
            self._rewrite_copy()

    def _read(self, path: str) -> tuple[_SoundLines, int]:
        """Return the valid lines of a file, and the number of its damaged lines."""
        if not self._files.exists(path):
            return _SoundLines((), 0), 0
        data = self._files.read_file(path, _MOST_BYTES)
        lines = data.splitlines(keepends=True)
        whole = tuple(parse_adoption(line) for line in lines if not _is_damaged(line))
        return _SoundLines(whole, len(data)), len(lines) - len(whole)

    def _note_damage(self, damaged: int, damaged_copy: int, lost: int) -> None:
        if damaged and damaged_copy:
            done = "dropped: what is sealed again under their ids is adopted again"
        else:
            done = f"made anew from the other copy, which has {lost} ids more"
        for path, count in ((self.path, damaged), (self._copy, damaged_copy)):
            if count:
                self.wrong.append((path, f"{count} damaged lines are of no id", done))
        if lost and not damaged:
            self.wrong.append((self.path, f"{lost} ids are missing", done))

    def find(self, id_: str) -> Adoption | None:
        return self._known.find(id_)

    def all(self) -> list[Adoption]:
        """Return the adoptions of all kept ids, the newest last."""
        return self._known.all()

    def record(self, adoption: Adoption) -> None:
        """Record an adoption, durably. After an OSError the file may have the id until `forget`
        removes it.
        """
        self._known.keep(adoption)
        self._known.expire(adoption.adopted_ms)
        if not self._there or self._lines >= 2 * max(len(self._known), _LEAST):
            self._rewrite()
            return
        line = format_adoption(adoption)
        with self._files.open(self.path, write=True) as handle:
            self._files.pwrite(handle, line, self._size)
            self._files.sync(handle)
        self._record_copy(line, self._size)
        # `_size` is set last, because after an error above `forget` truncates the file to the old size.
        self._size, self._lines = self._size + len(line), self._lines + 1

    def _record_copy(self, line: bytes, at: int) -> None:
        """Write a line at position `at` of the second copy. If that fails, the next `record` makes a new
        copy.
        """
        # An error is only logged, because the id is durable already.
        if not self._copied:
            self._rewrite_copy()
            return
        try:
            with self._files.open(self._copy, write=True) as handle:
                self._files.pwrite(handle, line, at)
        except OSError as error:
            self._not_copied(error)

    def forget(self, id_: str) -> None:
        """Remove the id of a failed `record` from both files, durably. Raises OSError."""
        self._known.forget(id_)
        # The copy is removed first, because an id that is in either file counts as adopted.
        self._remove_copy()
        self._files.sync_dir(os.path.dirname(self._copy))
        if not self._files.exists(self.path):
            return
        with self._files.open(self.path, write=True) as handle:
            # If `record` has not replaced the file, truncate it: a rewrite would fail on a full disk.
            if self._files.inode(handle) == self._inode:
                self._files.truncate(handle, self._size)
                self._files.sync(handle)
                return
        self._rewrite()

    def _rewrite(self) -> None:
        data = b"".join(map(format_adoption, self._known.all()))
        # The copy is removed first. If it stayed, and a crash followed, the copy would have expired ids that
        # the new file lacks. The next open would take these ids for lost, and restore them.
        self._remove_copy()
        self._files.write_atomic(self.path, data)
        inode = self._files.inode(self.path)
        self._rewrite_copy()
        # `_inode` is set last. After an error above, the new file at the path has another inode than
        # `_inode`, and `forget` then rewrites the file.
        self._there, self._inode, self._size, self._lines = True, inode, len(data), len(self._known)

    def _remove_copy(self) -> None:
        self._copied = False
        with suppress(FileNotFoundError):
            self._files.unlink(self._copy)

    def _rewrite_copy(self) -> None:
        """Make the second copy anew from the file. If that fails, the next `record` calls this again."""
        try:
            data = self._files.read_file(self.path, _MOST_BYTES) if self._files.exists(self.path) else b""
            self._files.write_atomic(self._copy, data, sync=False)
            self._copied = True
        except OSError as error:
            self._not_copied(error)

    def _not_copied(self, error: OSError) -> None:
        self._copied = False
        log.warning("%s can't be written, and is made anew with the next id: %s", self._copy, error)


class _SoundLines(NamedTuple):
    """The adoptions in the valid lines of a file, and the file's size in bytes."""

    adoptions: tuple[Adoption, ...]
    size: int


def format_adoption(adoption: Adoption) -> bytes:
    """Return the line of the file that records an adoption."""
    rows = [[topic, partition, *ends] for (topic, partition), ends in adoption.offsets.items()]
    others = {"others": adoption.others} if adoption.others else {}
    source = {"source": adoption.source} if adoption.source else {}
    return frame({"id": adoption.id, "ms": adoption.adopted_ms, "offsets": rows, **others, **source})


def parse_adoption(line: bytes) -> Adoption:
    """Parse a line that `format_adoption` made, and return the adoption. Raises ValueError."""
    fields: dict[str, Any] = unframe(line)
    try:
        rows = [tuple(row) for row in fields["offsets"]]
        id_, ms = fields["id"], fields["ms"]
        others, source = fields.get("others", 0), fields.get("source", "")
        kinds = [type(value) for value in (id_, ms, others, source, *(v for row in rows for v in row))]
        if kinds != [str, int, int, str, *_ROW * len(rows)]:
            raise ValueError("no adopted id: a value of it is of another kind")
        return Adoption(id_, ms, {row[:2]: row[2:] for row in rows}, others, source)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no adopted id: {error}") from error


def read_adoption(files: Files, path: str, id_: str) -> Adoption | None:
    """Return the adoption that the file records under the id `id_`, or None if the file lacks this id. Raises
    OSError.
    """
    return _last_line(files, path, b' {"id":%s,' % compact(id_))


def read_newest(files: Files, path: str, series: str) -> Adoption | None:
    """Return the last adoption that the file records under an id that begins with `series` and "/", or None
    if there is none. Raises OSError.
    """
    return _last_line(files, path, b' {"id":%s' % compact(f"{series}/")[:-1])


def _last_line(files: Files, path: str, begin: bytes) -> Adoption | None:
    try:
        data = files.read_file(path, _MOST_BYTES)
    except OSError as error:
        if error.errno not in NOT_A_FILE | {errno.ENOENT}:
            raise
        return None
    start = data.rfind(begin)
    if start < 0:
        return None
    first = data.rfind(b"\n", 0, start) + 1
    try:
        return parse_adoption(data[first : data.index(b"\n", start) + 1])
    except ValueError:
        return None  # the writer has not finished the line yet


def within(data: bytes, ends: Mapping[tuple[str, int], int]) -> bytes:
    """Return those lines of `data` whose adoptions have all their records below `ends`, the log end offsets
    of a copy of the store. Records of partitions that `ends` lacks are ignored.
    """
    lines = []
    for line in data.splitlines(keepends=True):
        if not _is_damaged(line):
            offsets = parse_adoption(line).offsets
            if all(key not in ends or end <= ends[key] for key, (_, end) in offsets.items()):
                lines.append(line)
    return b"".join(lines)


def damaged_lines(files: Files, path: str) -> int:
    """Return the number of damaged lines. Raises OSError."""
    if not files.exists(path):
        return 0
    return sum(_is_damaged(line) for line in files.read_file(path, _MOST_BYTES).splitlines(keepends=True))


def missing_ids(files: Files, path: str, copy: str) -> int:
    """Return the number of ids that only the second copy has. Raises OSError."""
    in_file, in_copy = ({each.id for each in _lines(files, one)} for one in (path, copy))
    return len(in_copy - in_file)


def _lines(files: Files, path: str) -> list[Adoption]:
    data = files.read_file(path, _MOST_BYTES) if files.exists(path) else b""
    return [parse_adoption(line) for line in data.splitlines(keepends=True) if not _is_damaged(line)]


def _is_damaged(line: bytes) -> bool:
    try:
        parse_adoption(line)
    except ValueError:
        return True
    return False
