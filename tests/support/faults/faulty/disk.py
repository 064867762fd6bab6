"""A directory on a disk: names and files, each with what was synced of it and what was not.

Names are changed in operations (create, rename, link, unlink...), each of them atomic. A sync of a directory
makes the operations durable that touch it, with those on which they depend. Of the others a power cut keeps a
beginning, as a journal does, or any that depend on nothing that is lost. A sync of a file does not make its
name durable, as POSIX says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from .content import Draw
from .image import Image
from .tree import BLOCK, Directory, Key, Node, Renaming, parts_of, paths, used


class Disk:
    """The tree below `root`. Files that exist at the start, or that other code makes, count as synced."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.top = Directory()
        self.moment = 0
        self.renamings: list[Renaming] = []
        self._mapped: list[Node] = []
        self._trees: dict[tuple[int, ...], list[tuple[str, Node | None]]] = {}  # see `_tree`
        if os.path.isdir(self.root):
            self._adopt(self.top, self.root)

    # --- paths ------------------------------------------------------------------------------

    def _split(self, path: str | os.PathLike[str]) -> tuple[str, ...] | None:
        text = os.fspath(path)
        return parts_of(text if text.startswith(os.sep) else os.path.abspath(text), self.root)

    def shown(self, path: str | os.PathLike[str]) -> str:
        """Return a path for messages: relative to the root."""
        parts = self._split(path)
        return os.path.relpath(path, self.root) if parts is None else os.sep.join(parts) or "."

    def find(self, path: str | os.PathLike[str]) -> Node | Directory | None:
        """Return the file or directory at a path; None outside of the tree, and where there is none."""
        parts = self._split(path)
        if parts is None:
            return None
        at: Node | Directory = self.top
        for i, part in enumerate(parts):
            if not isinstance(at, Directory):
                return None
            found = at.live.get(part)
            if found is None:
                found = self._adopted(at, part, os.path.join(self.root, *parts[: i + 1]))
            if found is None:
                return None
            at = found
        return at

    def _place(self, path: str | os.PathLike[str]) -> Key | None:
        head, name = os.path.split(os.path.abspath(path))
        directory = self.find(head)
        return (directory, name) if isinstance(directory, Directory) else None

    def _adopted(self, directory: Directory, name: str, path: str) -> Node | Directory | None:
        if os.path.islink(path) or not os.path.exists(path):
            return None
        node: Node | Directory
        if os.path.isdir(path):
            node = Directory()
            self._adopt(node, path)
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                node = Node(file.read())
        else:
            return None
        directory.live[name] = directory.durable[name] = node
        self._trees.clear()
        return node

    def _adopt(self, directory: Directory, path: str) -> None:
        for name in os.listdir(path):
            self._adopted(directory, name, os.path.join(path, name))

    # --- what was done ------------------------------------------------------------------------

    def _rename(self, *changes: tuple[Key | None, Node | Directory | None]) -> None:
        known = tuple((key[0], key[1], node) for key, node in changes if key is not None)
        for directory, name, node in known:
            before = directory.live.pop(name, None)
            if node is not None:
                directory.live[name] = node
            elif len(known) == 1:
                self._unmap(before)  # writes to a removed file's mapping don't count
        if known:
            self.moment += 1
            self.renamings.append(Renaming(self.moment, known))

    def created(self, path: str | os.PathLike[str]) -> Node:
        """Add a new, empty file, and return it."""
        node = Node()
        self._rename((self._place(path), node))
        return node

    def made(self, path: str | os.PathLike[str]) -> None:
        """Add a new directory."""
        if os.path.abspath(path) != self.root:
            self._rename((self._place(path), Directory()))

    def removed(self, path: str | os.PathLike[str]) -> None:
        """Remove a name."""
        self._rename((self._place(path), None))

    def renamed(self, source: str | os.PathLike[str], target: str, node: Node | Directory | None) -> None:
        """Rename `node` from `source` to `target`."""
        self._rename((self._place(source), None), (self._place(target), node))

    def linked(self, target: str | os.PathLike[str], node: Node | Directory | None) -> None:
        """Give `node` the second name `target`."""
        self._rename((self._place(target), node))

    def written(self, node: Node, at: int, data: bytes, grain: int = 1) -> None:
        """Write bytes of a file."""
        self.moment += 1
        node.write(self.moment, at, data, grain)

    def resized(self, node: Node, size: int) -> None:
        """Give a file another size."""
        self.moment += 1
        node.resize(self.moment, size)
        if node.memory is not None and size < len(node.memory):
            self._unmap(node)  # memory behind the end can't be read

    def _unmap(self, node: Node | Directory | None) -> None:
        if isinstance(node, Node) and node.memory is not None:
            node.memory = None
            self._mapped.remove(node)

    def mapped(self, node: Node, memory: memoryview) -> None:
        """Note that a file can be written through a mapping."""
        if node.memory is None:
            self._mapped.append(node)
        node.memory = memory
        node.watch()

    def look(self, whole: bool = False) -> None:
        """Note what was written through mappings since the last look. Unless `whole`, only one block of the
        zeros behind the data is compared, and more only where that block has changed, since the engine fills
        mappings from the front.
        """
        for node in self._mapped:
            if whole or node.watched.tobytes() != node.seen:
                self._stored(node)

    def _stored(self, node: Node) -> None:
        assert node.memory is not None
        now = node.memory[: used(node.memory)].tobytes()
        was = node.seen.ljust(len(now), b"\0")
        now = now.ljust(len(was), b"\0")
        for at in range(0, len(now), BLOCK):
            if now[at : at + BLOCK] != was[at : at + BLOCK]:
                self.written(node, at, now[at : at + BLOCK], grain=8)
        node.watch()

    def synced_dir(self, directory: Directory) -> None:
        """Make the names in a directory durable, with the operations on which they depend."""
        needed: set[Key] = set()
        durable, left = [], []
        for op in reversed(self.renamings):
            if directory in op.directories or not needed.isdisjoint(op.keys):
                needed |= op.keys
                durable.append(op)
            else:
                left.append(op)
        self.renamings = left[::-1]
        names: dict[Directory, dict[str, Node | Directory]] = {}
        for op in reversed(durable):
            op.apply(names)
        for changed, held in names.items():
            changed.durable = held
        self._trees.clear()

    # --- a power cut ----------------------------------------------------------------------------

    def unsynced(self) -> list[int]:
        """Return the moments of all changes that a power cut may lose."""
        moments = {op.moment for op in self.renamings}
        for node in self._nodes(self.top):
            moments |= {op.moment for op in node.pending}
        return sorted(moments)

    def _nodes(self, directory: Directory) -> Iterator[Node]:
        for node in {*directory.live.values(), *directory.durable.values()}:
            if isinstance(node, Directory):
                yield from self._nodes(node)
            else:
                yield node

    def image(self, draw: Draw) -> Image:
        """Return the image that a power cut at this moment leaves."""
        found: dict[str, bytes | None] = {}
        contents: dict[Node, bytes] = {}
        for path, node in self._tree(self._surviving(draw)):
            if node is not None and node not in contents:
                contents[node] = node.after(draw) if node.pending else node.base
            found[path] = None if node is None else contents[node]
        return Image(found)

    def _surviving(self, draw: Draw) -> list[Renaming]:
        ops = self.renamings
        if draw.upto is not None:
            return [op for op in ops if op.moment < draw.upto]
        if draw.ordered or draw.names in (0.0, 1.0):
            return ops[: draw.some(draw.names, len(ops))]
        lost: set[Key] = set()
        kept = []
        for op in ops:
            if op.keys & lost or draw.rng.random() >= draw.names:
                lost |= op.keys
            else:
                kept.append(op)
        return kept

    def _tree(self, surviving: list[Renaming]) -> list[tuple[str, Node | None]]:
        """Return all paths if these operations survive, each with its file, None for a directory. The result
        is cached until more becomes durable, since the ten kinds of cuts need only few such trees.
        """
        key = tuple(op.moment for op in surviving)
        if key not in self._trees:
            names: dict[Directory, dict[str, Node | Directory]] = {}
            for op in surviving:
                op.apply(names)
            self._trees[key] = list(paths(self.top, "", names))
        return self._trees[key]
