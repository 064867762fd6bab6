"""Tools for the files in `.segstore`: two copies of a file, the errors of unreadable files, and the directory
`.segstore/quarantine`.

Both copies are written together. After a power cut one copy may be old. If both copies are valid, and differ,
the first copy is used. Files are replaced by a rename and synced. A directory or link in the place of a file
is moved into `.segstore/quarantine`. Threads: any; one writer for each file.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from segstore import names
from segstore.errors import CorruptCheckpointError, StorageError, copy_of
from segstore.files import Files

T = TypeVar("T")

# The errors if a FIFO, a link, a directory or an overlong file is in the place of a file. They are permanent.
# Other errors (EMFILE, EIO, ENOMEM, EACCES) may be transient, so they don't show that a file is damaged.
NOT_A_FILE = frozenset({errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.EFBIG})


# --- two copies ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy(Generic[T]):
    """One of two copies as it was read: `data` has its bytes, `content` is the parsed value, and `checked`
    says whether a checksum matches. `data` and `content` are None if the file is missing or can't be read.
    `error` is the reason why the file can't be read, else None.
    """

    path: str
    data: bytes | None = None
    content: T | None = None
    checked: bool = False
    error: CorruptCheckpointError | StorageError | None = None

    @property
    def rank(self) -> int:
        return 0 if self.content is None else 1 + self.checked

    def wrong(self, right: Copy[T]) -> str:
        """Return a text about the damage of this copy. If the copy is not damaged, the text says that it
        differs from `right`, the copy that is used.
        """
        if self.error is not None:
            return reason(self.error)
        return (
            "missing" if self.data is None else f"differs from {os.path.basename(right.path)}, which counts"
        )


class Copies(Generic[T]):
    """The two copies of a file. `parse(data, where)` returns (content, whether there was a checksum), or
    raises CorruptCheckpointError.
    """

    def __init__(
        self, files: Files, path: str, copy: str, most: int, parse: Callable[[bytes, str], tuple[T, bool]]
    ) -> None:
        self._files, self.paths, self._most, self._parse = files, (path, copy), most, parse

    def read(self) -> T | None:
        """Return the content; None if both files are missing. Raises CorruptCheckpointError, StorageError,
        OSError.
        """
        return self.believed().content

    def believed(self) -> Copy[T]:
        """Return the copy to use: the first copy, unless only the second copy can be parsed, or only the
        second copy's checksum matches. The second copy is read only if the first copy's checksum does not
        match. Raises the errors of `read`.
        """
        first = self._look(self.paths[0])
        return first if first.checked else self._right(first, self._look(self.paths[1]))

    def look(self, known: Copy[T] | None = None) -> tuple[Copy[T], list[Copy[T]]]:
        """Return (copy to use, list of the copies that differ from it). `known` is a copy that the caller has
        already read under a lock; if it is the first copy, it is not read again. Raises the errors of `read`.
        """
        first = known
        if first is None or first.path != self.paths[0]:
            first = self._look(self.paths[0])
        second = self._look(self.paths[1], first)
        right = self._right(first, second)
        return right, [one for one in (first, second) if one.data != right.data]

    def _right(self, first: Copy[T], second: Copy[T]) -> Copy[T]:
        if first.checked:
            return first
        right = second if second.rank > first.rank else first
        error = first.error or second.error
        if not right.rank and error is not None:
            raise copy_of(error)
        return right

    def _look(self, path: str, other: Copy[T] | None = None) -> Copy[T]:
        """Read the copy at `path`, without parsing its bytes again if `other` has the same bytes."""
        try:
            data = self._files.read_file(path, self._most)
            if other is not None and other.content is not None and data == other.data:
                return Copy(path, data, other.content, other.checked)
            content, checked = self._parse(data, path)
        except FileNotFoundError:
            return Copy(path)
        except (CorruptCheckpointError, OSError) as error:
            return Copy(path, error=copy_of(unreadable(error, path)))
        return Copy(path, data, content, checked)

    def write(self, data: bytes) -> None:
        """Replace both copies. They are durable when this returns. After an OSError, one copy or both
        may have the new content.
        """
        self._files.write_together([(path, data) for path in self.paths])

    def forget(self) -> None:
        """Remove the second copy, then the first. Each removal is durable before the next step. In the
        reverse order a crash could leave only the second copy, which may be outdated. Raises OSError.
        """
        for path in reversed(self.paths):
            if self._files.exists(path):
                self._files.unlink(path)
            # A missing file's removal is synced too, because its sync in an earlier call may have failed.
            self._files.sync_dir(os.path.dirname(path))


def unreadable(error: CorruptCheckpointError | OSError, path: str) -> CorruptCheckpointError | StorageError:
    """Return the error to raise for a damaged file, or raise `error` if it is a transient OSError (EMFILE,
    EIO).
    """
    if not isinstance(error, OSError):
        return error
    if error.errno not in NOT_A_FILE:
        try:
            raise error
        finally:
            del error
    return StorageError(error.errno, error.strerror, path)


def reason(error: Exception) -> str:
    """Return the text of an error without the file's name."""
    if isinstance(error, CorruptCheckpointError):
        return f"line {error.line}: {error.reason}" if error.line else error.reason
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


# --- what is no file ------------------------------------------------------------------------


def put_aside(files: Files, root: str, path: str, *, directory_only: bool = False) -> str:
    """Move the file, directory or link at `path` into `.segstore/quarantine`, and return its new path. Raises
    OSError if the object can't be moved, because it is a mount point, for example. If `directory_only`, and
    the object is no directory, the errno is ENOTDIR.
    """
    directory = os.path.join(root, names.OURS, names.QUARANTINE)
    for made in (os.path.dirname(directory), directory):
        files.check_directory(made)
        if not files.exists(made):
            files.mkdir(made)
            files.sync_dir(os.path.dirname(made))
    target = next(free for free in _names_for(root, path, directory) if not files.exists(free))
    files.rename(os.path.join(path, "") if directory_only else path, target)
    files.sync_dir(directory)
    files.sync_dir(os.path.dirname(path))
    return target


def _names_for(root: str, path: str, directory: str) -> Iterator[str]:
    stem = os.path.relpath(path, root).replace(os.sep, "-").lstrip(".")[: names.MAX_NAME - 8]
    return (os.path.join(directory, f"{stem}{f'.{n}' if n else ''}") for n in itertools.count())
