"""`RemoteFiles`: the objects of an archive, in a file system of pyarrow.fs, below a base path.

An object is complete, or does not exist. Object stores show an object only after its upload is complete. In
other file systems an object is written under a name that ends with `PART`, and then renamed; on a local file
system the file is synced before the rename, and its directory is synced after the rename. A process that is
killed leaves a file whose name ends with `PART` (`delete_unfinished` removes it), or an unfinished upload
(the life-cycle rules of a bucket remove it).

pyarrow can't cancel an upload: after an error during an upload a short object is completed, and this module
deletes it. So up to `HELD` bytes are read into memory before the upload begins; if reading them fails, there
is no object.

Threads: any. The child of a fork opens connections of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from segstore.archiving.archive_uri import without_secrets
from segstore.archiving.file_systems import OBJECT_STORES, ArchiveLocation, opened, reopened
from segstore.archiving.retries import Retries
from segstore.errors import ArchiveError, Needing
from segstore.files import Files

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from typing_extensions import Buffer

T = TypeVar("T")
PART = ".part"
"""The suffix of an object's temporary name in file systems that show incomplete objects."""
HELD = 64 << 20
"""Up to this many bytes of an object are read into memory before its upload begins."""
PATIENCE = 10.0
"""A failed request is repeated for this many seconds."""
DAY_MS = 24 * 60 * 60 * 1000
_REQUEST = re.compile(r" \(Request ID: [^)]*\)")
"""The id in a server's error text. This id differs in each answer, and is removed, so that a repeated message
is logged once.
"""


class RemoteFiles:
    """Objects by names below a base. `uri` is the base's URI without secrets, for messages. If the file
    system refuses a request, or can't be reached within `patience` seconds, each method raises ArchiveError,
    which names object and URI; pyarrow's error is the cause.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        filesystem: FileSystem | None = None,
        files: Files | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Open the file system of a URI, such as `s3://bucket/log` or the path of a directory. If
        `filesystem` is given, `uri` is a path in it. Raises InvalidArgumentError, ArchiveError.
        """
        with Needing("pyarrow", "an archive"):
            from pyarrow import fs
        self._set(opened(uri, filesystem), files or Files(), fs, patience)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def __getstate__(self) -> tuple[object, ...]:
        # The URI is pickled with its secrets, because a task on another machine needs them.
        return self.uri, self._secret_uri, self._base, self.filesystem, self._patience

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        from pyarrow import fs

        self._set(ArchiveLocation(*state[:4]), Files(), fs, state[4])

    def _set(self, place: ArchiveLocation, files: Files, module: Any, patience: float) -> None:
        self.uri, self._secret_uri, self._base, self._filesystem = place
        self._files, self._fs_module, self._patience = files, module, patience
        kind, self._process = self._filesystem.type_name, os.getpid()
        self._is_local, self._shows_whole = kind == "local", kind in OBJECT_STORES
        self._retries = Retries(0 if self._is_local else patience)

    @property
    def filesystem(self) -> FileSystem:
        """Return the file system. In the child of a fork the file system is reopened, because the parent goes
        on using the open connections.
        """
        if self._process != os.getpid():
            self._filesystem, self._process = reopened(self._filesystem), os.getpid()
        return self._filesystem

    @property
    def directory(self) -> str | None:
        """Return the local directory that has the objects, or None if they are in another file system."""
        return self._base if self._is_local else None

    def end_retries(self) -> None:
        """From now on a failed request raises its error at once. Requests that wait for their next try fail
        now.
        """
        self._retries.end()

    def list(self, prefix: str) -> dict[str, int]:
        """Return {name: size in bytes} of the objects whose names begin with a prefix. The prefix ends with
        "/", or is empty.
        """
        return {name: each.size for name, each in self._listed(prefix) if not name.endswith(PART)}

    def read(self, name: str) -> bytes:
        """Return an object's content. Raises FileNotFoundError if it does not exist."""

        def whole(opened: Any) -> bytes:
            size, data = opened.size(), bytes(opened.read())
            if len(data) < size:
                raise OSError(f"{len(data)} of {size} bytes came")
            return data

        return self._read(name, whole)

    def read_range(self, name: str, at: int, length: int) -> bytes:
        """Return the `length` bytes of an object from byte `at` on, or fewer at the object's end. Raises
        FileNotFoundError if the object does not exist.
        """

        def part(opened: Any) -> bytes:
            wanted = max(min(length, opened.size() - at), 0)
            data = bytes(opened.read_at(wanted, at)) if wanted else b""
            if len(data) < wanted:
                raise OSError(f"{len(data)} of {wanted} bytes came, from byte {at} on")
            return data

        return self._read(name, part)

    def read_into(self, name: str, at: int, buffer: Buffer) -> int:
        """Fill a buffer with bytes of an object from byte `at` on. Return the number of these bytes; it is
        smaller than the buffer only at the object's end. Raises FileNotFoundError if the object does not
        exist.
        """
        view = memoryview(buffer).cast("B")

        def fill(opened: Any) -> int:
            wanted, done = max(min(len(view), opened.size() - at), 0), 0
            if wanted:
                opened.seek(at)
            while done < wanted:
                got = int(opened.readinto(view[done:wanted]))
                if not got:
                    raise OSError(f"{done} of {wanted} bytes came, from byte {at} on")
                done += got
            return done

        return self._read(name, fill)

    def write(self, name: str, parts: Iterable[Buffer]) -> int:
        """Write the parts as an object, which may exist already, and return its size in bytes. An error that
        is raised while `parts` is iterated is raised unchanged, and leaves no object.

        A failed upload is repeated from its beginning, unless `parts` is an iterator of more than `HELD`
        bytes, which can't be read twice.
        """
        source = _PartsSource(parts)
        if not self._is_local:
            source.hold(HELD)
        put = self._put_local if self._is_local else self._upload if self._shows_whole else self._put_renamed
        retries = self._retries if source.can_begin_again else Retries(0)
        with self._errors_named(name, source):
            return retries.run(lambda: put(self._path(name), source))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. A missing object counts as deleted. pyarrow deletes one object at a time, with a
        few requests for each.
        """
        for name in names:
            with self._errors_named(name):
                self._retries.run(partial(self._drop, self._path(name)))

    def delete_unfinished(self, older_ms: int = DAY_MS) -> int:
        """Delete objects that a killed process left unfinished more than `older_ms` ago, and return their
        number. Object stores show no unfinished objects.
        """
        if self._shows_whole:
            return 0
        before = time.time_ns() - older_ms * 1_000_000
        found = [
            name for name, each in self._listed("") if name.endswith(PART) and (each.mtime_ns or 0) < before
        ]
        self.delete(found)
        return len(found)

    # --- requests ------------------------------------------------------------------------------

    def _listed(self, prefix: str) -> Iterator[tuple[str, Any]]:
        where = self._path(prefix).rstrip("/")
        selector = self._fs_module.FileSelector(where, allow_not_found=True, recursive=True)
        with self._errors_named(prefix or "/"):
            found = self._retries.run(lambda: self.filesystem.get_file_info(selector))
        skip, is_file = len(self._base) + 1, self._fs_module.FileType.File
        return ((each.path[skip:], each) for each in found if each.type == is_file)

    def _read(self, name: str, call: Callable[[Any], T]) -> T:
        def request() -> T:
            with self.filesystem.open_input_file(self._path(name)) as found:
                return call(found)

        with self._errors_named(name):
            try:
                return self._retries.run(request)
            except FileNotFoundError:
                raise FileNotFoundError(f"{self.uri}: {name}: there is no such object") from None

    def _upload(self, path: str, source: _PartsSource) -> int:
        """Write an object through an output stream, and return its size. After an error delete the object:
        pyarrow sends parts in the background, and if `source` has raised an error, `close` completes a short
        object. If a request has failed, `close` fails, too, and leaves no object.
        """
        stream = self.filesystem.open_output_stream(path, compression=None)
        try:
            size = sum(int(stream.write(part)) for part in source)
        except BaseException:
            with suppress(OSError):
                stream.close()  # a stream that is never closed prevents the interpreter from exiting
            with suppress(OSError):
                self._drop(path)
            raise
        stream.close()
        return size

    def _put_renamed(self, path: str, source: _PartsSource) -> int:
        self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        size = self._upload(path + PART, source)
        self._drop(path)  # HDFS does not replace an existing file in a move
        self.filesystem.move(path + PART, path)
        return size

    def _put_local(self, path: str, source: _PartsSource) -> int:
        size, directory = 0, path.rpartition("/")[0]
        self._ensure(directory)
        with self._files.open_anew(path + PART) as out:
            try:
                for part in source:
                    size += self._files.pwrite(out, part, size)
                self._files.sync(out)
            except BaseException:
                with suppress(OSError):
                    self._files.unlink(path + PART)
                raise
        self._files.rename(path + PART, path)
        self._files.sync_dir(directory)
        return size

    def _ensure(self, directory: str) -> None:
        """Make a directory and its parents durably."""
        if not self._files.exists(directory):
            self._ensure(os.path.dirname(directory))
            self._files.ensure_directory(directory)

    def _drop(self, path: str) -> None:
        with suppress(FileNotFoundError):
            if self._is_local:
                self._files.unlink(path)
            else:
                self.filesystem.delete_file(path)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    @contextmanager
    def _errors_named(self, name: str, source: _PartsSource | None = None) -> Iterator[None]:
        """A context that raises an error of its block as ArchiveError with the object's name. Errors of
        `source` are raised unchanged. If `source` is None, FileNotFoundError is raised unchanged.
        """
        try:
            yield
        except Exception as error:
            if source is not None and source.error is error:
                raise
            if source is None and isinstance(error, FileNotFoundError):
                raise
            text = without_secrets(str(error), self._secret_uri)
            cause = error if text == str(error) else None
            raise ArchiveError(f"{self.uri}: {name}: {_REQUEST.sub('', text)}") from cause


class _PartsSource:
    """The parts of an object to write. They can be iterated several times if `can_begin_again`. `error` is
    the last exception that an iteration raised.
    """

    def __init__(self, parts: Iterable[Buffer]) -> None:
        self._parts = parts
        self.error: Exception | None = None
        self.can_begin_again = iter(parts) is not parts

    def hold(self, most: int) -> None:
        """Read parts into memory until they have `most` bytes, so that these parts can be iterated again. The
        next iteration yields the parts in memory, and then reads and yields the parts after them.
        """
        if isinstance(self._parts, (list, tuple)):
            return
        held, size, rest = [], 0, iter(self._parts)
        for part in rest:
            held.append(part)
            size += memoryview(part).nbytes
            if size > most:
                if not self.can_begin_again:
                    self._parts = chain(held, rest)
                return
        self._parts, self.can_begin_again = held, True

    def __iter__(self) -> Iterator[Buffer]:
        try:
            yield from self._parts
        except Exception as error:
            self.error = error
            raise
