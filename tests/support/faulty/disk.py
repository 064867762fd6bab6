"""A directory as a disk has it: names and files, each with what was synced of it and what was not.

Names are changed in operations (create, rename, link, unlink...), each of them atomic. Syncing a directory
makes the operations durable that touch it, with those that they rest on; of the others a power cut keeps a
beginning, as a journal does, or any that rest on nothing that is lost. Syncing a file says nothing of its
name, as POSIX has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from .content import Draw
from .image import Image
from .tree import BLOCK, Directory, Key, Node, Renaming, parts_of, paths, used


class Disk:
    """The tree below `root`. What is there at the start, or is made by others than this, counts as synced."""

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
        """A path as it is told: from the root on."""
        parts = self._split(path)
        return os.path.relpath(path, self.root) if parts is None else os.sep.join(parts) or "."

    def find(self, path: str | os.PathLike[str]) -> Node | Directory | None:
        """What has this name; None outside of the tree, and where nothing has it."""
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
                self._unmap(before)  # a removed file's stores are nobody's
        if known:
            self.moment += 1
            self.renamings.append(Renaming(self.moment, known))

    def created(self, path: str | os.PathLike[str]) -> Node:
        """A new, empty file."""
        node = Node()
        self._rename((self._place(path), node))
        return node

    def made(self, path: str | os.PathLike[str]) -> None:
        """A new directory."""
        if os.path.abspath(path) != self.root:
            self._rename((self._place(path), Directory()))

    def removed(self, path: str | os.PathLike[str]) -> None:
        """A name is gone."""
        self._rename((self._place(path), None))

    def renamed(self, source: str | os.PathLike[str], target: str, node: Node | Directory | None) -> None:
        """`node`, which was `source`, is `target`."""
        self._rename((self._place(source), None), (self._place(target), node))

    def linked(self, target: str | os.PathLike[str], node: Node | Directory | None) -> None:
        """`node` is `target` too."""
        self._rename((self._place(target), node))

    def written(self, node: Node, at: int, data: bytes, grain: int = 1) -> None:
        """Bytes of a file."""
        self.moment += 1
        node.write(self.moment, at, data, grain)

    def resized(self, node: Node, size: int) -> None:
        """A file has another size."""
        self.moment += 1
        node.resize(self.moment, size)
        if node.memory is not None and size < len(node.memory):
            self._unmap(node)  # what lies behind the end can't be looked at

    def _unmap(self, node: Node | Directory | None) -> None:
        if isinstance(node, Node) and node.memory is not None:
            node.memory = None
            self._mapped.remove(node)

    def mapped(self, node: Node, memory: memoryview) -> None:
        """A file can be written through a mapping."""
        if node.memory is None:
            self._mapped.append(node)
        node.memory = memory
        node.watch()

    def look(self, whole: bool = False) -> None:
        """Take note of what was stored through mappings since the last look. Unless `whole`, of the zeros
        behind what is there one block is looked at, and more only where that is none of zeros any more: what
        the engine maps to write to, it fills from the front.
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
        """The names in a directory are durable, and what they rest on."""
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
        """The moments of all that a power cut may lose."""
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
        """What a power cut at this moment leaves."""
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
        """All paths where these survive, each with its file, None for a directory; kept until what is durable
        changes, as ten kinds of cuts are drawn of few such trees.
        """
        key = tuple(op.moment for op in surviving)
        if key not in self._trees:
            names: dict[Directory, dict[str, Node | Directory]] = {}
            for op in surviving:
                op.apply(names)
            self._trees[key] = list(paths(self.top, "", names))
        return self._trees[key]
