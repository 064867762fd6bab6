"""`CountedObjects`: the objects of an archive, with counts of requests, bytes and errors.

Nothing is on disk. Threads: any. Requests, writes and errors are counted under a lock. The other counts have
no lock: if two threads increment such a count at the same time, an increment may be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from segstore.archiving.claim import WritableObjects
from segstore.errors import ArchiveError
from segstore.mutex import Mutex

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class ArchiverCounts:
    """The counts of all archivers that one `Archive` has had. `requests` has the number of requests of each
    kind: list, read, write, delete.
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self.requests: Counter[str] = Counter()
        self.errors = self.bytes = self.objects = self.commits = self.states = self.ways = 0
        self.segments = self.deleted = 0

    def asked(self, kind: str, requests: int = 1) -> None:
        with self._lock:
            self.requests[kind] += requests

    def wrote(self, size: int) -> None:
        with self._lock:
            self.objects += 1
            self.bytes += size

    def failed(self) -> None:
        with self._lock:
            self.errors += 1


class CountedObjects:
    """Calls the methods of an archive's objects, and counts the requests."""

    def __init__(self, objects: WritableObjects, counts: ArchiverCounts) -> None:
        self._objects, self._counts, self.uri = objects, counts, objects.uri

    def list(self, prefix: str) -> dict[str, int]:
        """List objects as `RemoteFiles.list` does, and count the request."""
        return self._call("list", lambda: self._objects.list(prefix))

    def read(self, name: str) -> bytes:
        """Read an object as `RemoteFiles.read` does, and count the request."""
        return self._call("read", lambda: self._objects.read(name))

    def read_range(self, name: str, at: int, length: int) -> bytes:
        """Read a range as `RemoteFiles.read_range` does, and count the request."""
        return self._call("read", lambda: self._objects.read_range(name, at, length))

    def write(self, name: str, parts: Iterable[Buffer]) -> int:
        """Write an object as `RemoteFiles.write` does, and count the request and the bytes."""
        size = self._call("write", lambda: self._objects.write(name, parts))
        self._counts.wrote(size)
        return size

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects as `RemoteFiles.delete` does. Each name counts as a request."""
        each = list(names)
        self._counts.asked("delete", max(len(each) - 1, 0))
        self._call("delete", lambda: self._objects.delete(each))

    def delete_unfinished(self) -> int:
        """Delete unfinished uploads as `RemoteFiles.delete_unfinished` does. The requests are not counted."""
        return self._objects.delete_unfinished()

    def _call(self, kind: str, call: Callable[[], T]) -> T:
        self._counts.asked(kind)
        try:
            return call()
        except ArchiveError:
            self._counts.failed()
            raise
