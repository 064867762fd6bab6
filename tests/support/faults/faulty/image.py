"""The content of a disk after a power cut: bytes by relative path, None for a directory."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path


class Image(dict[str, bytes | None]):
    """A tree of files. Two names of one file become two files."""

    def write(self, path: Path | str) -> Path:
        """Write the tree in place of whatever is at `path`, in new files."""
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, 0o700)
        for name, data in self.items():
            target = os.path.join(path, name)
            if data is None:
                os.mkdir(target, 0o700)
            else:
                _write(target, data)
        return Path(path)

    def digest(self) -> bytes:
        """Return a digest, which is equal for equal trees."""
        found = hashlib.blake2b(digest_size=16)
        for name, data in sorted(self.items()):
            found.update(f"{name}\0{-1 if data is None else len(data)}\0".encode(errors="surrogateescape"))
            found.update(data or b"")
        return found.digest()


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        solid = data.rstrip(b"\0")  # preallocated files are mostly zeros
        os.write(fd, solid) if solid else None
        if len(solid) != len(data):
            os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
