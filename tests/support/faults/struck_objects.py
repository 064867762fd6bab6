"""`StruckObjects`: the objects of an archive, at one of whose calls the archiver dies, or gets an error."""

from __future__ import annotations

import threading

from segstore.archiving.remote import RemoteFiles
from segstore.errors import ArchiveError


class KilledError(BaseException):
    """Stands for the end of the process."""


BEFORE, AFTER, HALF = "before", "after", "half"
"""Whether the call that is struck is done: not at all, done and not answered, or, of a delete, by half."""


class StruckObjects:
    """Counts calls; the one with number `at` raises `error`, with `dead` all later ones too."""

    def __init__(self, base: RemoteFiles, at: int = -1, when: str = BEFORE, error=KilledError, dead=True):
        self.base, self.at, self.when, self.error, self.dead = base, at, when, error, dead
        self.uri, self.calls, self.log = base.uri, 0, []
        self._lock = threading.Lock()

    def _call(self, kind, name, call):
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
            self.log.append(f"{kind} {name}")
        if self.at < 0 or number < self.at or (number > self.at and not self.dead):
            return call()
        if number == self.at and self.when == AFTER:
            call()
        raise self.error(f"call {number}: {kind} {name}")

    def list(self, prefix):
        return self._call("list", prefix, lambda: self.base.list(prefix))

    def read(self, name):
        return self._call("read", name, lambda: self.base.read(name))

    def read_range(self, name, at, length):
        return self._call("read", name, lambda: self.base.read_range(name, at, length))

    def write(self, name, parts):
        return self._call("write", name, lambda: self.base.write(name, parts))

    def delete(self, names):
        names = list(names)
        if self.when == HALF and self.calls == self.at:
            self.base.delete(names[: len(names) // 2])
        return self._call("delete", f"{len(names)}: {names[:1]}", lambda: self.base.delete(names))

    def delete_unfinished(self):
        return self.base.delete_unfinished()


def refused(text):
    """Return the error of an object store that refuses a request."""
    return ArchiveError(text)
