"""The parts of a tree of files: files, directories, and the operations that change names in directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache

from .content import Content

BLOCK = 512  # how many bytes of a mapping are compared at once


@lru_cache(1 << 14)
def parts_of(path: str, root: str) -> tuple[str, ...] | None:
    """Return the names that lead from `root` to `path`, both absolute; None where it is outside."""
    relative = os.path.relpath(path, root)
    if relative == ".":
        return ()
    parts = tuple(relative.split(os.sep))
    return None if parts[0] == ".." else parts


class Node(Content):
    """A file: its content, and its writable mapping, if there is one. Its names are in directories."""

    def __init__(self, base: bytes = b"") -> None:
        super().__init__(base)
        self.memory: memoryview | None = None  # the latest writable mapping
        self.watched = memoryview(b"")  # its beginning, with one block of the zeros behind it
        self.seen = b""  # the content of `watched` at the last look

    def watch(self) -> None:
        """Note the present content of the mapping."""
        assert self.memory is not None
        self.watched = self.memory[: used(self.memory) + BLOCK]
        self.seen = self.watched.tobytes()


def used(memory: memoryview) -> int:
    """Return the size of the beginning of a mapping behind which there are only zeros."""
    size, most = BLOCK, len(memory)
    while size < most and memory[size:].tobytes() != bytes(most - size):
        size = min(2 * size, most)
    return -(-len(memory[:size].tobytes().rstrip(b"\0")) // BLOCK) * BLOCK


class Directory:
    """A directory: its live names, and those on the disk."""

    def __init__(self) -> None:
        self.live: dict[str, Node | Directory] = {}
        self.durable: dict[str, Node | Directory] = {}


Key = tuple[Directory, str]


class Renaming:
    """An atomic operation that gives names other files, or removes them (None). `keys` are these names."""

    def __init__(
        self, moment: int, changes: tuple[tuple[Directory, str, Node | Directory | None], ...]
    ) -> None:
        self.moment, self.changes = moment, changes
        self.keys: frozenset[Key] = frozenset((directory, name) for directory, name, _ in changes)
        self.directories = frozenset(directory for directory, _, _ in changes)

    def apply(self, names: dict[Directory, dict[str, Node | Directory]]) -> None:
        for directory, name, node in self.changes:
            held = names.setdefault(directory, dict(directory.durable))
            if node is None:
                held.pop(name, None)
            else:
                held[name] = node


def paths(
    directory: Directory, prefix: str, names: dict[Directory, dict[str, Node | Directory]]
) -> Iterator[tuple[str, Node | None]]:
    """Yield all paths below `directory`, where directories have these names: each with its file, or None for
    a directory.
    """
    for name, node in sorted(names.get(directory, directory.durable).items(), key=lambda item: item[0]):
        if isinstance(node, Directory):
            yield prefix + name, None
            yield from paths(node, prefix + name + "/", names)
        else:
            yield prefix + name, node
