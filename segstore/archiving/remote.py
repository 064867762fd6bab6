"""`RemoteFiles`: the objects of an archive, in a file system of pyarrow.fs, below a base.

An object is there whole, under its name, or not at all: object stores show one once its upload is complete;
elsewhere it is written under another name, synced, and gets its own name last. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Buffer

from segstore.config import arguments
from segstore.errors import ArchiveError, InvalidArgumentError, Needing
from segstore.files import Files

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

T = TypeVar("T")
PART = ".part"
"""Ends the name under which an object is written where it would be seen before it is complete."""


class RemoteFiles:
    """Objects by names below `uri`. Each method raises ArchiveError, which names object and URI, if the file
    system refuses, or is not reached after some tries; the error of pyarrow is its cause.
    """

    def __init__(self, uri: str, filesystem: FileSystem | None = None, files: Files | None = None) -> None:
        """Open the file system of a URI, such as `s3://bucket/log` or a path of a directory; `filesystem` is
        used in place of that of the URI, which is a path within it then. Raises InvalidArgumentError,
        ArchiveError.
        """
        with Needing("pyarrow", "an archive"):
            from pyarrow import fs
        self.uri, self._files, self._fs_module = uri, files or Files(), fs
        self.filesystem, self._base = self._opened(uri, filesystem)
        self._is_local = self.filesystem.type_name == "local"

    def _opened(self, uri: str, filesystem: FileSystem | None) -> tuple[Any, str]:
        if not isinstance(uri, str) or not uri:
            raise InvalidArgumentError(f"uri={uri!r}: give a URI such as s3://bucket/log, or a directory")
        if filesystem is not None:
            return filesystem, uri.rstrip("/")
        try:
            given = uri if ":" in uri.split("/", 1)[0] else arguments.path("uri", uri)
            found, path = self._fs_module.FileSystem.from_uri(given)
        except (ValueError, TypeError, OSError) as error:
            raise InvalidArgumentError(f"uri={uri!r}: {error}") from error
        return found, path.rstrip("/")

    def list(self, prefix: str) -> dict[str, int]:
        """Return the names that begin with a prefix, which ends with "/", with the sizes of their objects in
        bytes.
        """
        selector = self._fs_module.FileSelector(
            self._path(prefix).rstrip("/"), allow_not_found=True, recursive=True
        )
        with self._told(prefix):
            found = self.filesystem.get_file_info(selector)
        skip, is_file = len(self._base) + 1, self._fs_module.FileType.File
        return {
            each.path[skip:]: each.size
            for each in found
            if each.type == is_file and not each.path.endswith(PART)
        }

    def read(self, name: str) -> bytes:
        """Return an object's content. Raises FileNotFoundError if there is none."""
        return self._read(name, lambda opened: bytes(opened.read()))

    def read_range(self, name: str, at: int, length: int) -> bytes:
        """Return up to `length` bytes of an object from byte `at` on, less at its end only. Raises
        FileNotFoundError if there is none.
        """
        return self._read(name, lambda opened: bytes(opened.read_at(length, at)))

    def read_into(self, name: str, at: int, buffer: Buffer) -> int:
        """Fill a buffer with bytes of an object from byte `at` on; return how many were read, less at the end
        of the object only. Raises FileNotFoundError if there is none.
        """

        def fill(opened: Any) -> int:
            opened.seek(at)
            return int(opened.readinto(buffer))

        return self._read(name, fill)

    def write(self, name: str, parts: Iterable[Buffer]) -> int:
        """Make an object of the parts, in place of one that is there; return its size in bytes. An error of
        `parts` leaves no object.
        """
        if self._is_local:
            return self._write_local(name, parts)
        with self._told(name):
            opened, size = self.filesystem.open_output_stream(self._path(name)), 0
            with opened:
                for part in parts:
                    size += opened.write(part)
        return size

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are not there count as deleted."""
        for name in names:
            with self._told(name):
                try:
                    self.filesystem.delete_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _write_local(self, name: str, parts: Iterable[Buffer]) -> int:
        path, size = self._path(name), 0
        with self._told(name):
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with self._files.open_anew(path + PART) as out:
                for part in parts:
                    size += self._files.pwrite(out, part, size)
                self._files.sync(out)
            self._files.rename(path + PART, path)
            self._files.sync_dir(path.rpartition("/")[0])
        return size

    def _read(self, name: str, call: Callable[[Any], T]) -> T:
        with self._told(name), self.filesystem.open_input_file(self._path(name)) as opened:
            return call(opened)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Run a block; an error of the file system tells of which object it is."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArchiveError(f"{self.uri}: {name}: {error}") from error
