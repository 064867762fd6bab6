"""Ways to change a file without `Files`. On disk: the file that is given, and one beside it."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from segstore._native import ffi, lib


def _of_python(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def _of_os(path: Path, run: Callable[[int], object]) -> None:
    fd = os.open(path, os.O_RDWR)
    run(fd)
    os.close(fd)


def _of_map(path: Path) -> None:
    _of_os(path, lambda fd: mmap.mmap(fd, 1).close())


def _relative(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    os.unlink(path.name, dir_fd=directory)
    os.close(directory)


ESCAPES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.read_bytes(),
    "open": lambda path: path.open("ab").close(),
    "open and write": _of_python,
    "os.pwrite": lambda path: _of_os(path, lambda fd: os.pwrite(fd, b"x", 0)),
    "os.fsync": lambda path: _of_os(path, os.fsync),
    "the C": lambda path: _of_os(
        path, lambda fd: lib.seg_pwrite(fd, ffi.from_buffer("uint8_t[]", b"x"), 1, 0)
    ),
    "a mapping": _of_map,
    "os.replace": lambda path: os.replace(path, path),
    "os.unlink": os.unlink,
    "os.truncate": lambda path: os.truncate(path, 0),
    "os.utime": os.utime,
    "os.chmod": lambda path: os.chmod(path, 0o600),
    "os.link": lambda path: os.link(path, f"{path}2"),
    "os.symlink": lambda path: os.symlink(path, f"{path}2"),
    "os.mkdir": lambda path: os.mkdir(f"{path}2"),
    "shutil.copyfile": lambda path: shutil.copyfile(path, f"{path}2"),
    "in a directory's descriptor": _relative,
}
