"""Whole files: reads files, replaces a file in one step, and replaces a file by a copy if the file has other
hard links.

A temporary file "<path>.tmp" lies beside a file while it is replaced. Threads: any, but only one at a time
may write a path. Each step is a call of `Files`, so that a test can inject a fault into it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from segstore.files.calls import Directories, FileContent, Opening
from segstore.files.handle import CODING, Handle, Path
from segstore.files.reserve import PIECE, in_reserve
from segstore.files.stats import Stats

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TEMPORARY = ".tmp"
_MAX_NAME = 255  # Linux file systems allow this many bytes in one name


class Whole(Opening, FileContent, Directories, Stats):
    """Calls on whole files. After a crash a path has the old or the new file, perhaps beside a temporary
    file.
    """

    def ensure_directory(self, path: Path) -> None:
        """Make a directory if it is missing, durably. Other processes and threads may make the directory at
        the same time. Raises OSError: EEXIST if a file is at the path.
        """
        if self.exists(path):
            return
        try:
            in_reserve(lambda: self.mkdir(path))
        except FileExistsError:
            if not self.is_directory(path):
                raise
        self.sync_dir(os.path.dirname(os.path.abspath(path)))

    def open_anew(self, path: Path) -> Handle:
        """Open a new, empty file to read and write. An older file at the path is unlinked; its other hard
        links and open handles keep its bytes. Raises OSError.
        """
        if self.exists(path):
            try:
                self.unlink(path)
            except (IsADirectoryError, PermissionError):
                if self.is_symlink(path) or not self.is_directory(path):
                    raise
                hint = "A directory lies where a file is to be written: move it away, and try again"
                raise OSError(errno.EISDIR, hint, os.fspath(path)) from None
        return in_reserve(lambda: self.open(path, write=True, create=True))

    def read_file(self, path: Path, limit: int = 1 << 26) -> bytes:
        """Return the content of a file of at most `limit` bytes. Raises OSError: EFBIG for a larger file."""
        handle = self.open(path)
        try:
            size = self.size(handle)
            data = self.pread(handle, size + 1, 0) if size <= limit else b""
        finally:
            handle.close()
        if max(size, len(data)) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", os.fspath(path))
        return data

    def write_atomic(self, path: Path, data: Buffer, *, sync: bool = True) -> None:
        """Replace or create a file in one step, so that readers, also after a crash, see the old or the new
        content. If `sync`, the new content is durable when this returns. Raises OSError.
        """
        target = os.fspath(path)
        need = memoryview(data).nbytes
        directory = in_reserve(lambda: self._replace(target, data, sync), need)
        if sync:
            self.sync_dir(directory)

    def write_as_itself(self, path: Path, data: Callable[[tuple[int, int, int]], Buffer]) -> None:
        """Replace or create a file in one step, without a sync. The content may depend on the device, inode
        and time of birth of the new file.

        `data` is called with these three numbers (`which` with `or_change=False`), and returns the content.
        The rename does not change the numbers. Raises OSError.
        """
        in_reserve(lambda: self._replace(os.fspath(path), data, sync=False), PIECE)

    def _replace(
        self, target: str, data: Buffer | Callable[[tuple[int, int, int]], Buffer], sync: bool
    ) -> str:
        """Replace a file and return its directory. If this raises OSError, the file is unchanged."""
        directory, temporary = _beside(target)
        try:
            with self.open_anew(temporary) as handle:
                content = data(self.which(temporary, or_change=False)) if callable(data) else data
                self.pwrite(handle, content, 0)
                if sync:
                    self.sync(handle)
            self.rename(temporary, target)
        except OSError:
            # An error of the cleanup is ignored, because the first error says more. The next write replaces
            # the temporary file.
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        return directory

    def write_together(self, contents: Sequence[tuple[Path, Buffer]]) -> None:
        """Replace or create several files in this order, each in one step. All files are durable when this
        returns.

        After a power cut each file has its old or its new content. One call is quicker than separate writes,
        because the disk writes all contents at once, then all names. After an OSError only the first few
        files, all files or no file may have their new content.
        """
        need = sum(memoryview(data).nbytes + PIECE for _, data in contents)
        for directory in in_reserve(lambda: self._replace_all(contents), need):
            self.sync_dir(directory)

    def _replace_all(self, contents: Sequence[tuple[Path, Buffer]]) -> Iterable[str]:
        """Replace several files; return their directories. Raises OSError."""
        places = [(os.fspath(path), *_beside(os.fspath(path))) for path, _ in contents]
        try:
            with contextlib.ExitStack() as opened:
                handles = [opened.enter_context(self.open_anew(temporary)) for _, _, temporary in places]
                for handle, (_, data) in zip(handles, contents, strict=True):
                    self.pwrite(handle, data, 0)
                    self.start_sync(handle, 0, memoryview(data).nbytes)
                for handle in handles:
                    self.sync(handle)
            for target, _, temporary in places:
                self.rename(temporary, target)
        except OSError:
            for _, _, temporary in places:
                with contextlib.suppress(OSError):
                    self.unlink(temporary)
            raise
        return dict.fromkeys(directory for _, directory, _ in places)

    def take_own(self, path: Path) -> None:
        """If the file has other hard links, put a durable copy in the place of `path`, so that later writes
        to `path` do not change the file of the other links. Raises OSError.
        """
        if self.links(path) < 2:
            return
        target = os.fspath(path)
        directory, temporary = _beside(target)
        with self.open(target) as source, self.open_anew(temporary) as copy:
            self.copy_range(source, 0, copy, 0, self.size(source))
            self.sync(copy)
        self.rename(temporary, target)
        self.sync_dir(directory)


def _beside(target: str) -> tuple[str, str]:
    """Return the directory of `target`, and the path of its temporary file in the same directory."""
    at = target.rfind("/") + 1
    directory, name = target[:at], target[at:]
    if len(name.encode(*CODING)) + len(_TEMPORARY) > _MAX_NAME:
        name = hashlib.blake2b(name.encode(*CODING), digest_size=16).hexdigest()
    return directory.rstrip("/") or directory[:1] or ".", f"{directory}{name}{_TEMPORARY}"
