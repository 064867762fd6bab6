"""What a tree of files is made of: files, directories, and the operations that change names in these."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache

from .content import Content

BLOCK = 512  # bytes of a mapping that are compared at once


@lru_cache(1 << 14)
def parts_of(path: str, root: str) -> tuple[str, ...] | None:
    """The names that lead from `root` to `path`, both absolute; None where it is outside."""
    relative = os.path.relpath(path, root)
    if relative == ".":
        return ()
    parts = tuple(relative.split(os.sep))
    return None if parts[0] == ".." else parts


class Node(Content):
    """A file: its content, whatever names it has, and what it is mapped to."""

    def __init__(self, base: bytes = b"") -> None:
        super().__init__(base)
        self.memory: memoryview | None = None  # of the latest writable mapping
        self.watched = memoryview(b"")  # its beginning, with one block of the zeros behind it
        self.seen = b""  # what was in that when it was last looked at

    def watch(self) -> None:
        """From now on this is what is known of the mapping."""
        assert self.memory is not None
        self.watched = self.memory[: used(self.memory) + BLOCK]
        self.seen = self.watched.tobytes()


def used(memory: memoryview) -> int:
    """Bytes of the blocks of a mapping behind which there are only zeros."""
    size, most = BLOCK, len(memory)
    while size < most and memory[size:].tobytes() != bytes(most - size):
        size = min(2 * size, most)
    return -(-len(memory[:size].tobytes().rstrip(b"\0")) // BLOCK) * BLOCK


class Directory:
    """Live names, and those on the disk."""

    def __init__(self) -> None:
        self.live: dict[str, Node | Directory] = {}
        self.durable: dict[str, Node | Directory] = {}


Key = tuple[Directory, str]


class Renaming:
    """Names that get another file (None: none) in one step. `keys`: these names."""

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
    """All that is below `directory`, with these names in directories: a file, or None for a directory."""
    for name, node in sorted(names.get(directory, directory.durable).items(), key=lambda item: item[0]):
        if isinstance(node, Directory):
            yield prefix + name, None
            yield from paths(node, prefix + name + "/", names)
        else:
            yield prefix + name, node
