"""`Files` that count calls, fail, or kill the process: a hook is called before every call, nested ones too.

`write_atomic` and `lock` call other methods, so that a fault can hit each of their steps. Writes through a
mapping call no hook.
"""

from __future__ import annotations

import copy
import errno
import inspect
import os
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from segstore import _native
from segstore.files import Files, Handle
from segstore.names import FULL, OURS

READS = frozenset({"pread", "pread_into", "seek_batch", "read_by", "read_one", "read_many", "read_range"})
"""Of the bytes of an open file, by its handle."""
WRITES = frozenset({"pwrite", "pwritev", "copy_range", "restamp"})
SYNCS = frozenset({"sync", "sync_dir"})
NAMES = frozenset({"rename", "link", "unlink", "mkdir", "rmdir"})
MUTATING = WRITES | SYNCS | NAMES | {"truncate", "allocate"}


class HookedFiles(Files):
    """Files that call `before` ahead of every call."""

    deaths_of_the_process: tuple[type[BaseException], ...] = ()
    """What `before` raises from a death of the simulated process on."""

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do nothing: subclasses override this hook, and the call raises what it raises."""


def _hooked(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: HookedFiles, *args: Any, **kwargs: Any) -> Any:
        self.before(name, args, kwargs)
        return original(self, *args, **kwargs)

    return call


for _name, _function in inspect.getmembers(Files, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(HookedFiles, _name, _hooked(_name, _function))


def _native_sync(self: HookedFiles, handle: Handle) -> Any:
    """The short way's sync goes through `sync`."""
    held = weakref.ref(handle)

    @_native.ffi.callback("int64_t(int32_t, int32_t *)", error=-errno.EIO)
    def called_by_c(fd: int, failed: Any) -> int:
        try:
            self.sync(_open(held))
        except OSError as error:
            return -(error.errno or errno.EIO)
        except self.deaths_of_the_process:  # Python's sync raises it again
            return int(_native.lib.SEG_SLOW)
        return 0

    return called_by_c


def _open(held: Callable[[], Handle | None]) -> Handle:
    handle = held()
    assert handle is not None, "C uses a file that nobody holds"
    return handle


HookedFiles.native_write = Files.native_write  # type: ignore[method-assign]
HookedFiles.native_sync = _native_sync  # type: ignore[method-assign]


class CountingFiles(HookedFiles):
    """Files that keep `calls`, a list of (name, args) in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append((name, args))

    def count(self, *names: str) -> int:
        """Return how often the methods with these names were called."""
        return sum(1 for name, _ in self.calls if name in names)

    def counts(self) -> Counter[str]:
        """Return how often each method was called."""
        return Counter(name for name, _ in self.calls)

    def clear(self) -> None:
        """Forget the calls."""
        self.calls.clear()


class FailingFiles(HookedFiles):
    """Files of which the `nth` call from now (1: the next) of any of `names`, and `times - 1` after it, fail.

    `fault` is the exception to raise, or is called with (name, args) and may raise one. With nth=0 nothing
    fails before `arm`. Calls on the note of a full disk go well and are not counted: the store's own thread
    makes them, some time after an append found no room.
    """

    def __init__(
        self,
        names: Iterable[str],
        fault: BaseException | Callable[[str, tuple[Any, ...]], None],
        nth: int = 1,
        times: int = 1,
    ) -> None:
        self.names, self.fault = frozenset(names), fault
        self._lock = threading.Lock()
        self.arm(nth, times)

    def arm(self, nth: int = 1, times: int = 1) -> None:
        """Let the `nth` call from now on fail."""
        self.hits = 0  # calls that have failed
        self._skip, self._times = nth - 1, times if nth else 0

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name not in self.names or _is_of_note(args):
            return
        with self._lock:
            if self._skip > 0:
                self._skip -= 1
                return
            if self.hits >= self._times:
                return
            self.hits += 1
        if isinstance(self.fault, BaseException):
            # A copy is raised, since the traceback of the original would grow with each raise, and keep all
            # frames alive, with their files.
            raise copy.copy(self.fault)
        self.fault(name, args)


def _is_of_note(args: tuple[Any, ...]) -> bool:
    return bool(args) and f"/{OURS}/{FULL}" in str(getattr(args[0], "path", args[0]))


class KillingFiles(FailingFiles):
    """Files that kill this process with SIGKILL just before the `nth` call of `names`, by default of those
    that change anything.
    """

    def __init__(self, nth: int, names: Iterable[str] = MUTATING) -> None:
        super().__init__(names, lambda name, args: os.kill(os.getpid(), signal.SIGKILL), nth)
