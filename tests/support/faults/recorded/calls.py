"""A program without a store, which makes each call that is wrapped. It tests recorder and replay."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from .recorder import Recorder


class Calls:
    """Makes the calls below `root`, and notes which files are durable, with their content."""

    def __init__(self, root: Path, recorder: Recorder) -> None:
        self.root, self._recorder = root, recorder
        self.durable: dict[str, bytes] = {}

    def changes(self, *names: str) -> None:
        """Note that these files are not durable from now on."""
        for name in names:
            self.durable.pop(name, None)
        self._recorder.note(durable=self.durable)

    def synced(self, name: str, fd: int) -> None:
        """Sync a file, then its directory."""
        os.fdatasync(fd)
        directory = os.open((self.root / name).parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        self.durable[name] = (self.root / name).read_bytes()
        self._recorder.note(durable=self.durable)


def run(root: Path, recorder: Recorder) -> None:
    calls = Calls(root, recorder)
    recorder.begin()
    recorder.note(durable={})
    written(calls)
    copied(calls)
    resized(calls)
    mapped(calls)
    named(calls)
    forked(calls)
    recorder.end(durable=calls.durable)


def written(calls: Calls) -> None:
    path = calls.root / "written"
    with open(path, "wb", buffering=0) as file:
        file.write(b"write " * 200)
        os.writev(file.fileno(), [b"writev ", b"of two "])
        os.pwrite(file.fileno(), b"pwrite", 100)
        os.pwritev(file.fileno(), [b"pwritev", b" of two"], 2000)
        calls.synced("written", file.fileno())
        calls.changes("written")
        os.pwrite(file.fileno(), b"not synced", 0)
    with open(path, "ab", buffering=0) as file:
        file.write(b"at the end")
        calls.synced("written", file.fileno())


def copied(calls: Calls) -> None:
    with open(calls.root / "written", "rb") as source, open(calls.root / "copied", "wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 500, 10, 5)
        os.sendfile(target.fileno(), source.fileno(), 600, 300)
        calls.synced("copied", target.fileno())


def resized(calls: Calls) -> None:
    path = calls.root / "resized"
    with open(path, "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 9000)
        file.write(b"x" * 700)
        os.ftruncate(file.fileno(), 6000)
        calls.synced("resized", file.fileno())
        calls.changes("resized")
        os.truncate(path, 100)
        os.ftruncate(file.fileno(), 5000)
        calls.synced("resized", file.fileno())
    calls.changes("resized")
    open(path, "wb").close()


def mapped(calls: Calls) -> None:
    with open(calls.root / "mapped", "wb+") as file:
        os.ftruncate(file.fileno(), 20_000)
        with mmap.mmap(file.fileno(), 20_000) as memory:
            memory[8:16] = b"at first"
            calls.synced("mapped", file.fileno())
            calls.changes("mapped")
            memory[9_000:9_008] = b"far away"
            memory[0:8] = b"a number"
            calls.synced("mapped", file.fileno())
            calls.changes("mapped")
            memory[700:708] = b"the last"


def named(calls: Calls) -> None:
    root = calls.root
    os.mkdir(root / "d")
    top = os.open(root, os.O_RDONLY)
    os.fsync(top)
    os.close(top)
    with open(root / "d" / "old", "wb") as file:
        file.write(b"o" * 600)
        file.flush()
        calls.synced("d/old", file.fileno())
    os.link(root / "d" / "old", root / "d" / "linked")
    with open(root / "d" / "new", "wb") as file:
        file.write(b"n" * 800)
        file.flush()
        calls.changes("d/old")
        os.rename(root / "d" / "new", root / "d" / "old")
        calls.synced("d/old", file.fileno())
    os.unlink(root / "d" / "linked")
    os.mkdir(root / "d" / "e")
    os.rmdir(root / "d" / "e")


def forked(calls: Calls) -> None:
    """A child's calls are in the trace, in their order."""
    for n in range(3):
        path = calls.root / f"child {n}"
        if (child := os.fork()) == 0:
            with open(path, "wb", buffering=0) as file:
                file.write(b"c" * 1000 * (n + 1))
                os.fsync(file.fileno())
            os._exit(0)
        os.waitpid(child, 0)
        with open(path, "rb+", buffering=0) as file:
            os.pwrite(file.fileno(), b"parent", 0)
            calls.synced(path.name, file.fileno())


def judged(root: Path, note: dict[str, Any]) -> None:
    for name, data in note["durable"].items():
        assert (root / name).read_bytes() == data, name
