"""Which changes of a tree a file system would allow: errors are those of its own calls. Nothing on disk.

Threads: with the lock held that guards the nodes; functions without state. Paths are clean.
"""

from __future__ import annotations

import errno

from segstore.filetree.nodes import ROOT, Directory, File, Node, Nodes, error, lies_below, parent_of


def missing(nodes: Nodes, path: str, now: int) -> dict[str, Node]:
    """Directories that are not there, from the root down to `path`. NotADirectoryError."""
    made: dict[str, Node] = {}
    while path != ROOT:
        node = nodes.get(path)
        if isinstance(node, File):
            raise error(errno.ENOTDIR, path)
        if node is not None:
            break
        made[path] = Directory(now)
        path = parent_of(path)
    return dict(reversed(made.items()))


def check_target(nodes: Nodes, path: str, overwrite: bool) -> File | None:
    """The file that one of this path replaces. FileExistsError, IsADirectoryError, NotADirectoryError."""
    node = nodes.get(path)
    if isinstance(node, Directory):
        raise error(errno.EISDIR, path)
    if node is not None and not overwrite:
        raise error(errno.EEXIST, path)
    missing(nodes, parent_of(path), 0)
    return node


def check_rename(nodes: Nodes, source: str, target: str, node: Node, overwrite: bool) -> Node | None:
    """What `node` at `source` replaces at `target`. Errors as `FileTree.rename`."""
    if lies_below(target, source) or source == ROOT:
        raise error(errno.EINVAL, source, f"can't become {target}")
    there = nodes.get(target)
    if source == target:
        if isinstance(node, Directory):
            raise error(errno.EEXIST, target)
        return None
    if there is None:
        if not isinstance(nodes.get(parent_of(target)), Directory):
            raise error(errno.ENOENT, parent_of(target), "is no directory")
        return None
    if not overwrite:
        raise error(errno.EEXIST, target)
    if isinstance(there, Directory) != isinstance(node, Directory):
        raise error(errno.EISDIR if isinstance(there, Directory) else errno.ENOTDIR, target)
    if isinstance(there, Directory) and nodes.names(target):
        raise error(errno.ENOTEMPTY, target)
    return there
