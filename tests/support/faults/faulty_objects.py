"""The objects of an archive with faults: each call of `RemoteFiles` may be refused, wait, or kill the
process, and each object may be lost, cut, flipped, written twice, or listed late.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from segstore.archiving.remote import RemoteFiles
from segstore.errors import ArchiveError

BEFORE, AFTER = "before", "after"
Hook = Callable[[str, str, str], None]
"""Is called before and after each call, with `BEFORE` or `AFTER`, the name of the method, and that of the
object or the prefix; what it raises, the call raises."""
SLOW_DOWN = "AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate."
EXPIRED = "AWS Error EXPIRED_TOKEN during PutObject operation: The provided token has expired."


class FaultyObjects(RemoteFiles):
    """Objects whose faults are set by methods; a `pattern` is a regular expression, found in names. The state
    of the faults is that of one process.
    """

    hooks: list[Hook]

    def __init__(self, uri: str, *arguments: Any, **more: Any) -> None:
        super().__init__(uri, *arguments, **more)
        self.hooks, self.calls = [], []
        self._lost: list[str] = []
        self._changed: list[tuple[str, Callable[[bytes], bytes]]] = []
        self._late: dict[str, int] = {}
        self._lists_late: list[tuple[str, int]] = []
        self._twice: list[str] = []
        self._lock = threading.Lock()

    # --- faults of objects ---------------------------------------------------------------------

    def lose(self, pattern: str) -> None:
        """Tell writes of such objects as done, and make no object."""
        self._lost.append(pattern)

    def cut(self, pattern: str, by: int = 1) -> None:
        """Make such objects shorter."""
        self._changed.append((pattern, lambda data: data[: max(len(data) - by, 0)]))

    def flip(self, pattern: str, at: float = 0.5) -> None:
        """Flip a bit of such objects, at this part of their length."""
        self._changed.append((pattern, lambda data: _flipped(data, at)))

    def double(self, pattern: str) -> None:
        """Write such objects twice, as a retry after a lost answer does."""
        self._twice.append(pattern)

    def list_late(self, pattern: str, lists: int = 3) -> None:
        """Leave such objects out of so many lists after their write."""
        self._lists_late.append((pattern, lists))

    # --- faults of calls -----------------------------------------------------------------------

    def refuse(self, first: int, count: int | None = None, why: str = SLOW_DOWN) -> None:
        """Refuse `count` calls from the `first` one on (from 0), or all."""

        def hook(when: str, method: str, name: str) -> None:
            number = len(self.calls) - 1
            if when == BEFORE and number >= first and (count is None or number < first + count):
                raise ArchiveError(f"{self.uri}: {name}: {why}")

        self.hooks.append(hook)

    def delay(self, pattern: str, seconds: float) -> None:
        """Have calls for such objects take longer."""

        def hook(when: str, method: str, name: str) -> None:
            if when == BEFORE and re.search(pattern, name):
                time.sleep(seconds)

        self.hooks.append(hook)

    def kill_at(self, call: int, when: str = BEFORE) -> None:
        """Kill this process before or after a call, counted from 0."""

        def hook(now: str, method: str, name: str) -> None:
            if now == when and len(self.calls) - 1 == call:
                os.kill(os.getpid(), signal.SIGKILL)

        self.hooks.append(hook)

    def heal(self) -> None:
        """Have no faults from now on."""
        self.hooks.clear()
        self._changed.clear()
        for each in (self._lost, self._lists_late, self._twice):
            each.clear()

    # --- calls ---------------------------------------------------------------------------------

    def list(self, prefix: str) -> dict[str, int]:
        found = self._called("list", prefix, lambda: super(FaultyObjects, self).list(prefix))
        with self._lock:
            hidden = {name for name in found if self._late.get(name, 0) > 0}
            for name in hidden:
                self._late[name] -= 1
        return {name: size for name, size in found.items() if name not in hidden}

    def read(self, name: str) -> bytes:
        return self._called("read", name, lambda: super(FaultyObjects, self).read(name))

    def read_range(self, name: str, at: int, length: int) -> bytes:
        read = super().read_range
        return self._called("read_range", name, lambda: read(name, at, length))

    def read_into(self, name: str, at: int, buffer: Any) -> int:
        read = super().read_into
        return self._called("read_into", name, lambda: read(name, at, buffer))

    def write(self, name: str, parts: Iterable[Any]) -> int:
        return self._called("write", name, lambda: self._written(name, parts))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            delete = super().delete
            self._called("delete", name, lambda one=name, do=delete: do([one]))

    def _written(self, name: str, parts: Iterable[Any]) -> int:
        write = super().write
        if not any(re.search(each, name) for each in self._patterns()):
            return write(name, parts)
        data = b"".join(map(bytes, parts))
        kept = data
        for pattern, change in self._changed:
            kept = change(kept) if re.search(pattern, name) else kept
        if not _any(self._lost, name):
            for _ in range(1 + _any(self._twice, name)):
                write(name, [kept])
        for pattern, lists in self._lists_late:
            if re.search(pattern, name):
                self._late[name] = lists
        return len(data)

    def _patterns(self) -> list[str]:
        changed = [pattern for pattern, _ in (*self._changed, *self._lists_late)]
        return [*changed, *self._lost, *self._twice]

    def _called(self, method: str, name: str, call: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls.append(f"{method} {name}")
            for hook in list(self.hooks):
                hook(BEFORE, method, name)
        result = call()
        for hook in list(self.hooks):
            hook(AFTER, method, name)
        return result


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(each, name) for each in patterns)


def _flipped(data: bytes, at: float) -> bytes:
    if not data:
        return data
    where = min(int(len(data) * at), len(data) - 1)
    return data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]
