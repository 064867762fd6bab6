"""Names in directories: given, moved, taken away, listed, made durable. On disk: what it is asked to change.

Threads: any.
"""

from __future__ import annotations

import os

from segstore.files.handle import Handle, Path, named


class Directories:
    """Each change is one step, whole or not there; it is durable after `sync_dir` of its directory."""

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. OSError as fsync(2)."""
        with Handle(path, os.O_RDONLY | os.O_DIRECTORY) as handle:
            try:
                os.fsync(handle.fd)
            except OSError as e:
                raise named(e, handle.path) from None

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing a file at `target` in one step. OSError as rename(2)."""
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give the file at `source` a second name. OSError as link(2), EEXIST where there is one."""
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        """Remove a file's name. OSError as unlink(2)."""
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. OSError as rmdir(2)."""
        os.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        """The names in a directory, in no order. OSError as opendir(3)."""
        return os.listdir(path)

    def directories(self, path: Path) -> list[str]:
        """The names in a directory that are directories, or symbolic links to such. OSError as opendir(3)."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def irregular(self, path: Path) -> list[str]:
        """The names in a directory that are no regular files. OSError as opendir(3)."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if not entry.is_file(follow_symlinks=False)]
