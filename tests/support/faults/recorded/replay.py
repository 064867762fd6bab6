"""Carries out a trace on a disk that knows what was synced."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from faulty.cuts import draw_of
from faulty.disk import Disk
from faulty.tree import Directory, Node

from . import trace
from .trace import Event

OF_FILES = (trace.WRITTEN, trace.SIZED, trace.SYNCED, trace.NOT_SYNCED)


class RecordedDisk(Disk):
    """A disk whose files are all in a trace; it never looks at the real directory."""

    def _adopted(self, directory: Directory, name: str, path: str) -> Node | Directory | None:
        return None

    def existing(self, path: str, node: Node | Directory) -> None:
        """Add what was there before, durably."""
        directory = self.find(os.path.dirname(path))
        assert isinstance(directory, Directory), path
        directory.live[os.path.basename(path)] = directory.durable[os.path.basename(path)] = node


class Replay:
    """The disk below `root` as events change it.

    Of the bytes of a failed sync the disk gets none, or any sectors, drawn by `rng`, and no later sync writes
    the others, since the kernel calls their pages clean.
    """

    def __init__(self, root: str, rng: random.Random) -> None:
        self.disk, self._rng = RecordedDisk(root), rng
        self._nodes: dict[int, Node] = {}

    def apply(self, event: Event) -> None:
        """Make a change."""
        disk = self.disk
        match event.op:
            case trace.FILE_BEFORE:
                node = self._nodes[event.inode] = Node(event.second)
                disk.existing(event.path, node)
            case trace.DIRECTORY_BEFORE if event.path != disk.root:
                disk.existing(event.path, Directory())
            case trace.CREATED:
                self._nodes[event.inode] = disk.created(event.path)
            case trace.WRITTEN:
                disk.written(self._nodes[event.inode], event.at, event.first, 8 if event.mapped else 1)
            case trace.SIZED:
                disk.resized(self._nodes[event.inode], event.at)
            case trace.SYNCED:
                self._nodes[event.inode].sync()
            case trace.NOT_SYNCED:
                mode = self._rng.choice(("none", "sectors"))
                self._nodes[event.inode].lose(draw_of(mode, self._rng, disk))
            case trace.DIRECTORY_SYNCED:
                directory = disk.find(event.path)
                assert isinstance(directory, Directory), event.path
                disk.synced_dir(directory)
            case trace.MADE:
                disk.made(event.path)
            case trace.RENAMED:
                disk.renamed(event.path, event.target, disk.find(event.path))
            case trace.LINKED:
                disk.linked(event.target, disk.find(event.path))
            case trace.REMOVED:
                disk.removed(event.path)

    def shown(self, event: Event) -> str:
        """Return an event in words."""
        name = trace.NAMES[event.op]
        if event.op == trace.NOTED:
            return name
        if event.op in OF_FILES:
            node = self._nodes[event.inode]
            path = next((path for path, each in _live(self.disk.top) if each is node), "a removed file")
            return f"{name} of {path}, {len(event.first)} bytes at {event.at}"
        to = f" to {self.disk.shown(event.target)}" if event.op in (trace.RENAMED, trace.LINKED) else ""
        return f"{name} {self.disk.shown(event.path)}{to}"


def _live(directory: Directory, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the paths that a running program sees, with their files."""
    for name, each in directory.live.items():
        if isinstance(each, Directory):
            yield from _live(each, f"{prefix}{name}/")
        else:
            yield prefix + name, each
