"""`Files` that remember what was synced, lose the rest at a power cut, and let a chosen call fail.

The files below the root are real ones (best in a memory file system); syncs are only noted. A lock makes each
change and its note atomic; reads and transfers to sinks don't take it.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from faults import MUTATING, FailingFiles

from segstore.files import Files, Handle

from .cuts import draw_of
from .disk import Disk
from .image import Image
from .tree import Directory, Node

CHANGES = MUTATING | {"open", "map", "set_modified"}  # open: to make a file; map: to write to it
_WRITES = frozenset({"pwrite", "pwritev"})


class Call(NamedTuple):
    """A change: the name of the call, and its path relative to the root."""

    name: str
    path: str


_BOOTS = itertools.count(1)


class FaultyFiles(FailingFiles):
    """The files that the package describes. `calls` are all changes that were begun, `reads` counts calls
    that change nothing.
    """

    def __init__(self, root: str | os.PathLike[str], seed: int = 0) -> None:
        super().__init__(CHANGES, OSError(errno.EIO, "injected"), nth=0)
        self._guard = threading.RLock()
        self._rng = random.Random(seed)
        self.disk = Disk(os.fspath(root))
        self.calls: list[Call] = []
        self.reads: Counter[str] = Counter()
        self.watch: Callable[[Call], object] | None = None
        self.dead = False
        self._boot = next(_BOOTS)
        self._part, self._sync_mode = 0.0, "none"
        self._nodes: weakref.WeakKeyDictionary[Handle, Node] = weakref.WeakKeyDictionary()

    def boot(self) -> int:
        """Return a boot id that differs from that of a process which opens the store after a cut."""
        return self._boot

    # --- faults -------------------------------------------------------------------------------

    def fail(
        self,
        nth: int = 1,
        error: int = errno.EIO,
        *,
        names: Iterable[str] = CHANGES,
        part: float = 0.0,
        times: int = 1,
        sync_mode: str = "none",
    ) -> None:
        """Let the `nth` call of `names` from now, and `times` - 1 more, fail with `error`; with nth=0 none
        fails.

        `part` is the fraction of its bytes that a failing write has written. A failed sync leaves on the disk
        what a cut of `sync_mode` would, and no later sync writes the rest. `hits` counts the calls that
        failed.
        """
        with self._guard:
            self.names, self.fault = frozenset(names), OSError(error, os.strerror(error))
            self._part, self._sync_mode = part, sync_mode
            self.arm(nth, times)

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the power is off")
        changes = name in CHANGES and self._changes(name, args, kwargs)
        if name in CHANGES and not changes:
            return
        if not changes:
            self.reads[name] += 1
            super().before(name, args, kwargs)
            return
        with self._guard:
            self.disk.look()
            call = Call(name, self._shown(args))
            self.calls.append(call)
            if self.watch is not None:
                self.watch(call)
            try:
                super().before(name, args, kwargs)
            except OSError:
                self._fail(name, args)
                raise

    def _changes(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if name == "open":
            return bool(kwargs.get("create")) and not os.path.lexists(args[0])
        return name != "map" or bool(kwargs.get("write"))

    def _shown(self, args: tuple[Any, ...]) -> str:
        target = args[2] if len(args) > 2 and isinstance(args[2], Handle) else args[0]
        return self.disk.shown(target.path if isinstance(target, Handle) else target)

    def _fail(self, name: str, args: tuple[Any, ...]) -> None:
        """Do what a failing call has done all the same."""
        if name == "sync" and (node := self._nodes.get(args[0])):
            node.lose(draw_of(self._sync_mode, self._rng, self.disk))
        elif name in _WRITES and self._part:
            data = args[1] if name == "pwrite" else b"".join(bytes(b) for b in args[1])
            some = bytes(data)[: int(len(bytes(data)) * self._part)]
            if some:
                Files.pwrite(self, args[0], some, args[2])
                self._written(args[0], args[2], some)

    # --- power cuts -----------------------------------------------------------------------------

    def image(self, mode: str, rng: random.Random) -> Image:
        """Return the image that a power cut now would leave of the root."""
        with self._guard:
            self.disk.look(whole=True)
            return self.disk.image(draw_of(mode, rng, self.disk))

    def power_cut(self, mode: str, rng: random.Random) -> Image:
        """Cut the power: every call fails from now on, and the root has, in new files, what the disk has.
        Return that image.
        """
        with self._guard:
            image = self.image(mode, rng)
            self.dead = True
            image.write(self.disk.root)
        return image

    def turn_off(self) -> None:
        """Let every call fail from now on; the root stays as it is."""
        with self._guard:
            self.dead = True

    # --- changes ----------------------------------------------------------------------------------

    def _written(self, handle: Handle, at: int, data: bytes) -> None:
        if node := self._nodes.get(handle):
            self.disk.written(node, at, data)

    def open(self, path: Any, *, write: bool = False, create: bool = False) -> Handle:
        with self._guard:
            new = create and not os.path.lexists(path)
            handle = super().open(path, write=write, create=create)
            node = self.disk.created(path) if new else self.disk.find(path)
            if isinstance(node, Node):
                self._nodes[handle] = node
            return handle

    def pwrite(self, handle: Handle, data: Any, position: int) -> int:
        with self._guard:
            done = super().pwrite(handle, data, position)
            self._written(handle, position, bytes(data))
            return done

    def pwritev(self, handle: Handle, buffers: Sequence[Any], position: int) -> int:
        with self._guard:
            done = super().pwritev(handle, buffers, position)
            self._written(handle, position, b"".join(bytes(b) for b in buffers))
            return done

    def copy_range(self, source: Handle, position: int, target: Handle, at: int, count: int) -> int:
        with self._guard:
            size = os.fstat(target.fd).st_size
            done = super().copy_range(source, position, target, at, count)
            self._written(target, at, os.pread(target.fd, done, at))
            assert os.fstat(target.fd).st_size == max(size, at + done)
            return done

    def restamp(self, handle: Handle, end: int, base_offset: int, leader_epoch: int) -> int:
        with self._guard:
            before = os.pread(handle.fd, end, 0)
            try:
                return super().restamp(handle, end, base_offset, leader_epoch)
            finally:
                after = os.pread(handle.fd, end, 0)
                for at in range(0, len(after), 12):
                    if before[at : at + 12] != after[at : at + 12]:
                        self._written(handle, at, after[at : at + 12])

    def truncate(self, handle: Handle, size: int) -> None:
        with self._guard:
            super().truncate(handle, size)
            if node := self._nodes.get(handle):
                self.disk.resized(node, size)

    def allocate(self, handle: Handle, position: int, length: int) -> None:
        with self._guard:
            super().allocate(handle, position, length)
            if (node := self._nodes.get(handle)) and position + length > node.size:
                self.disk.resized(node, position + length)

    def sync(self, handle: Handle) -> None:
        with self._guard:
            self.before("sync", (handle,), {})
            if node := self._nodes.get(handle):
                node.sync()

    def map(self, handle: Handle, length: int, *, write: bool = False) -> mmap.mmap:
        with self._guard:
            memory = super().map(handle, length, write=write)
            if write and (node := self._nodes.get(handle)):
                self.disk.mapped(node, memoryview(memory))
            return memory

    # --- names --------------------------------------------------------------------------------------

    def sync_dir(self, path: Any) -> None:
        with self._guard:
            self.before("sync_dir", (path,), {})
            if not os.path.isdir(path):
                Files.sync_dir(self, path)  # raises the error of the call
            directory = self.disk.find(path)
            if isinstance(directory, Directory):
                self.disk.synced_dir(directory)

    def rename(self, source: Any, target: Any) -> None:
        with self._guard:
            node = self.disk.find(source)
            super().rename(source, target)
            self.disk.renamed(source, target, node)

    def link(self, source: Any, target: Any) -> None:
        with self._guard:
            node = self.disk.find(source)
            super().link(source, target)
            self.disk.linked(target, node)

    def unlink(self, path: Any) -> None:
        with self._guard:
            self.disk.find(path)
            super().unlink(path)
            self.disk.removed(path)

    def mkdir(self, path: Any) -> None:
        with self._guard:
            super().mkdir(path)
            self.disk.made(path)

    def rmdir(self, path: Any) -> None:
        with self._guard:
            self.disk.find(path)
            super().rmdir(path)
            self.disk.removed(path)
